from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshot_vectors import ENROLMENT, LINUX, encoded, full_record, record

from ticket_agent.protocol.errors import SnapshotError, SnapshotLimitError
from ticket_agent.protocol.json_strict import MAX_DEPTH
from ticket_agent.protocol.snapshot import (
    DEFAULT_BOUNDS,
    MAX_BOUNDS,
    MAX_PROVIDERS,
    HostSnapshot,
    SnapshotBounds,
    SnapshotDomain,
    SnapshotEntry,
    UnavailableReason,
    decode_snapshot,
    encode_snapshot,
    snapshot_digest,
    with_entries,
)
from ticket_agent.protocol.snapshot_names import (
    check_entry_path,
    check_provider,
    check_source_id,
    is_identifier,
)
from ticket_agent.protocol.tokens import U64_MAX

DOMAIN = ENROLMENT.domain(LINUX)
CANONICAL = encoded(record())


def text(**changes: Any) -> bytes:
    """The canonical encoding of a record with other members, whatever they are."""
    return json.dumps(json.loads(CANONICAL) | changes, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


def decode(data: bytes, **more: Any) -> HostSnapshot:
    return decode_snapshot(data, **{"domain": DOMAIN, "bounds": DEFAULT_BOUNDS, **more})


def test_a_record_is_read_and_written_to_the_byte() -> None:
    assert text() == CANONICAL
    assert decode(CANONICAL) == record()
    assert snapshot_digest(CANONICAL) == snapshot_digest(encoded(decode(CANONICAL)))


ENTRY = {"path": "a", "value": "1"}
REFUSED = {
    "another schema": (text(schema="cohesix-host-snapshot/v2"), "snapshot-schema"),
    "another source": (text(source_id="mac-controller"), "snapshot-source_id"),
    "a provider of another source": (text(provider="launchd"), "snapshot-provider"),
    "a provider that is no text": (text(provider=1), "snapshot-provider"),
    "another epoch": (text(epoch=8), "snapshot-epoch"),
    "true as the epoch": (text(epoch=True), "snapshot-epoch"),
    "sequence 0": (text(sequence=0), "snapshot-sequence"),
    "true as the sequence": (text(sequence=True), "snapshot-sequence"),
    "a sequence that is a float": (
        CANONICAL.replace(b'"sequence":1,', b'"sequence":1.0,'),
        "snapshot-sequence",
    ),
    "a negative sequence": (text(sequence=-1), "snapshot-sequence"),
    "a sequence over u64": (text(sequence=U64_MAX + 1), "json-number"),
    "a sequence that is a text": (text(sequence="1"), "snapshot-sequence"),
    "observed at 0": (text(observed_unix_ms=0), "snapshot-observed_unix_ms"),
    "observed null": (text(observed_unix_ms=None), "snapshot-observed_unix_ms"),
    "no time to live": (text(ttl_ms=0), "snapshot-ttl_ms"),
    "true as the time to live": (text(ttl_ms=True), "snapshot-ttl_ms"),
    "a time to live over the bound": (text(ttl_ms=30_001), "snapshot-ttl_ms"),
    "1 as available": (text(available=1), "snapshot-available"),
    "available with a reason": (text(reason="timed_out"), "snapshot-reason"),
    "unavailable without a reason": (text(available=False, entries=[]), "snapshot-reason"),
    "an unknown reason": (text(available=False, reason="asleep", entries=[]), "snapshot-reason"),
    "a reason that is no text": (text(available=False, reason=1, entries=[]), "snapshot-reason"),
    "entries left behind": (text(available=False, reason="timed_out"), "snapshot-entries"),
    "entries that are no array": (text(entries={}), "snapshot-entries"),
    "an entry that is no object": (text(entries=["a"]), "snapshot-entries"),
    "an entry with more": (text(entries=[ENTRY | {"unit": ""}]), "snapshot-members"),
    "an entry without its value": (text(entries=[{"path": "a"}]), "snapshot-members"),
    "an entry twice": (text(entries=[ENTRY, ENTRY]), "snapshot-entries"),
    "entries out of order": (text(entries=[{"path": "b", "value": ""}, ENTRY]), "snapshot-entries"),
    "numbers in numeric order": (
        text(entries=[{"path": path, "value": ""} for path in ("links/2", "links/10")]),
        "snapshot-entries",
    ),
    "a value that is no text": (text(entries=[{"path": "a", "value": 1}]), "snapshot-value"),
    "a value with a NUL": (text(entries=[{"path": "a", "value": "a\0"}]), "snapshot-entries"),
    "a value of 1025 bytes": (text(entries=[{"path": "a", "value": "é" * 512 + "x"}]), "snapshot-entries"),
    "a path with a traversal": (text(entries=[{"path": "../escape", "value": ""}]), "snapshot-path"),
    "a member too many": (text(more=1), "snapshot-members"),
    "a member missing": (CANONICAL.replace(b'"reason":null,', b""), "snapshot-members"),
    "a member twice": (CANONICAL.replace(b'"epoch":7,', b'"epoch":7,"epoch":7,'), "json-repeated"),
    "a member twice in an entry": (CANONICAL.replace(b'"path":', b'"path":"a","path":'), "json-repeated"),
    "members out of order": (
        CANONICAL.replace(b'"epoch":7,"sequence":1,', b'"sequence":1,"epoch":7,'),
        "snapshot-canonical",
    ),
    "a blank behind it": (CANONICAL + b" ", "snapshot-canonical"),
    "a newline behind it": (CANONICAL + b"\n", "snapshot-canonical"),
    "a blank within": (CANONICAL.replace(b",", b", ", 1), "snapshot-canonical"),
    "a longer escape": (
        text(entries=[{"path": "a", "value": "X"}]).replace(b"X", b"\\u0058"),
        "snapshot-canonical",
    ),
    "an escaped solidus": (
        text(entries=[{"path": "a", "value": "X"}]).replace(b"X", b"\\/"),
        "snapshot-canonical",
    ),
    "an upper-case escape": (
        text(entries=[{"path": "a", "value": "X"}]).replace(b"X", b"\\u001F"),
        "snapshot-canonical",
    ),
    "a lone surrogate": (
        text(entries=[{"path": "a", "value": "X"}]).replace(b"X", b"\\ud800"),
        "json-surrogate",
    ),
    "an encoded surrogate": (text(entries=[{"path": "a", "value": "\ud800"}]), "json-not-utf8"),
    "no UTF-8": (CANONICAL.replace(b"source", b"\xff", 1), "json-not-utf8"),
    "UTF-16": (CANONICAL.decode().encode("utf-16"), "json-not-utf8"),
    "a byte order mark": (b"\xef\xbb\xbf" + CANONICAL, "json-bom"),
    "NaN": (CANONICAL.replace(b'"ttl_ms":100', b'"ttl_ms":NaN'), "json-number"),
    "another document behind it": (CANONICAL + b"{}", "json-syntax"),
    "an array": (b"[]", "json-not-object"),
    "deep nesting": (b"[" * 4000, "json-depth"),
    "deep nesting inside": (
        text(entries="X").replace(b'"X"', b"[" * MAX_DEPTH + b"]" * MAX_DEPTH),
        "json-depth",
    ),
}


@pytest.mark.parametrize(("data", "code"), REFUSED.values(), ids=REFUSED)
def test_refusals(data: bytes, code: str) -> None:
    with pytest.raises(SnapshotError) as refused:
        decode(data)
    assert not isinstance(refused.value, SnapshotLimitError)
    assert refused.value.code == code
    assert "\n" not in str(refused.value)


TOO_MUCH = {
    "nothing": (b"", {}),
    "a byte too many": (CANONICAL, {"bounds": SnapshotBounds(max_bytes=len(CANONICAL) - 1)}),
    "65 entries": (text(entries=[{"path": f"{i:02}", "value": ""} for i in range(65)]), {}),
    "33 providers": (
        CANONICAL,
        {
            "domain": SnapshotDomain(
                source_id=LINUX,
                epoch=7,
                providers=frozenset({"systemd", *(f"p{i}" for i in range(MAX_PROVIDERS))}),
            )
        },
    ),
}


@pytest.mark.parametrize(("data", "more"), TOO_MUCH.values(), ids=TOO_MUCH)
def test_sizes_are_limits(data: bytes, more: dict[str, Any]) -> None:
    with pytest.raises(SnapshotLimitError):
        decode(data, **more)


def test_everything_may_be_as_large_as_its_bound() -> None:
    full = full_record()
    assert decode(encoded(full)) == full
    sixty_four = record(entries=tuple(SnapshotEntry(f"{i:02}", "") for i in range(64)))
    assert decode(encoded(sixty_four)) == sixty_four
    wide = record(entries=(SnapshotEntry("a", "é" * 2048),), ttl_ms=30_000)
    assert decode(encoded(wide, MAX_BOUNDS), bounds=MAX_BOUNDS) == wide
    assert decode(encoded(record(U64_MAX, observed_unix_ms=U64_MAX))).sequence == U64_MAX


@pytest.mark.parametrize(
    ("name", "most"),
    [("max_bytes", 8192), ("max_entries", 64), ("max_value_bytes", 4096), ("max_ttl_ms", 30_000)],
)
def test_bounds_have_bounds(name: str, most: int) -> None:
    for value in (1, most):
        assert getattr(SnapshotBounds(**{name: value}), name) == value
    odd: list[Any] = [0, -1, most + 1, True, 1.0, "1", None]
    for value in odd:
        with pytest.raises(SnapshotLimitError, match=name):
            SnapshotBounds(**{name: value})


# -- what is published ---------------------------------------------------------------------------------------

NOT_PUBLISHED: dict[str, tuple[dict[str, Any], type[SnapshotError]]] = {
    "another source": ({"source_id": "another"}, SnapshotError),
    "another epoch": ({"epoch": 8}, SnapshotError),
    "sequence 0": ({"sequence": 0}, SnapshotError),
    "true as the sequence": ({"sequence": True}, SnapshotError),
    "a sequence over u64": ({"sequence": U64_MAX + 1}, SnapshotError),
    "no time to live": ({"ttl_ms": 0}, SnapshotError),
    "entries and a reason": (
        {"reason": UnavailableReason.TIMED_OUT, "entries": (SnapshotEntry("a", ""),)},
        SnapshotError,
    ),
    "unsorted": ({"entries": (SnapshotEntry("b", ""), SnapshotEntry("a", ""))}, SnapshotError),
    "a leading underscore": ({"entries": (SnapshotEntry("_a", ""),)}, SnapshotError),
    "a leading dot within": ({"entries": (SnapshotEntry("a/.b", ""),)}, SnapshotError),
    "a lone surrogate": ({"entries": (SnapshotEntry("a", "\ud800"),)}, SnapshotError),
    "a value too long": ({"entries": (SnapshotEntry("a", "x" * 1025),)}, SnapshotError),
    "too many entries": (
        {"entries": tuple(SnapshotEntry(f"{i:02}", "") for i in range(65))},
        SnapshotLimitError,
    ),
    "too many bytes": (
        {"entries": tuple(SnapshotEntry(f"{i:02}", "x" * 1024) for i in range(9))},
        SnapshotLimitError,
    ),
}


@pytest.mark.parametrize(("changes", "error"), NOT_PUBLISHED.values(), ids=NOT_PUBLISHED)
def test_what_would_be_refused_is_not_published(changes: dict[str, Any], error: type[SnapshotError]) -> None:
    with pytest.raises(SnapshotError) as refused:
        encode_snapshot(replace(record(), **changes), domain=DOMAIN, bounds=DEFAULT_BOUNDS)
    assert type(refused.value) is error


@pytest.mark.parametrize("path", ["_a", ".a", "a/_b", "a/.b/c"])
def test_a_receiver_takes_paths_that_are_not_published(path: str) -> None:
    assert decode(text(entries=[{"path": path, "value": ""}])).entries == (SnapshotEntry(path, ""),)


# -- names ---------------------------------------------------------------------------------------------------

GOOD_PATHS = ["a", "A.b-c_9", "a/b/c/d/e/f", "a" * 128, "/".join(["a" * 63, "b" * 64, "c" * 63]), "a.b", "9"]
BAD_PATHS = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/./b",
    "a/../b",
    "a..b",
    "-a",
    "a/-b",
    "a b",
    "a@b",
    "é",
    "a\n",
    "a\0",
    "a\\b",
    "a/b/c/d/e/f/g",
    "a" * 129,
    "/".join(["a" * 64, "b" * 64, "c" * 63]),
]


@pytest.mark.parametrize("path", GOOD_PATHS)
def test_paths(path: str) -> None:
    assert check_entry_path(path) == check_entry_path(path, publishing=True) == path


@pytest.mark.parametrize("path", BAD_PATHS)
def test_no_paths(path: str) -> None:
    for publishing in (False, True):
        with pytest.raises(SnapshotError) as refused:
            check_entry_path(path, publishing=publishing)
        assert refused.value.code == "snapshot-path"


@pytest.mark.parametrize("name", ["", "../x", "-option", "a/b", "a\nb", "a..b", "x" * 129, "é"])
def test_no_identifiers(name: str) -> None:
    assert not is_identifier(name)
    assert not is_identifier(name, publishing=True)
    for check in (check_provider, check_source_id):
        with pytest.raises(SnapshotError):
            check(name)


def test_names_are_what_every_reader_takes() -> None:
    assert (check_provider("x" * 128), check_source_id("x" * 32)) == ("x" * 128, "x" * 32)
    for name in ("_x", ".x"):
        assert (is_identifier(name), is_identifier(name, publishing=True)) == (True, False)
        with pytest.raises(SnapshotError):
            check_provider(name)
        with pytest.raises(SnapshotError):
            check_source_id(name)
    with pytest.raises(SnapshotError):
        check_source_id("x" * 33)


# -- laws ----------------------------------------------------------------------------------------------------

PARTS = st.from_regex(r"\A[a-z0-9][a-z0-9._-]{0,10}\Z").filter(lambda part: ".." not in part)
PATHS = st.lists(PARTS, min_size=1, max_size=6).map("/".join)
VALUES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
COUNTERS = st.integers(1, U64_MAX)
ENTRIES = st.dictionaries(PATHS, VALUES, max_size=12).map(
    lambda found: tuple(SnapshotEntry(path, value) for path, value in found.items())
)


@st.composite
def records(draw: st.DrawFn) -> HostSnapshot:
    reason = draw(st.none() | st.sampled_from(UnavailableReason))
    made = HostSnapshot(
        provider=draw(st.sampled_from(sorted(DOMAIN.providers))),
        source_id=LINUX,
        epoch=DOMAIN.epoch,
        sequence=draw(COUNTERS),
        observed_unix_ms=draw(COUNTERS),
        ttl_ms=draw(st.integers(1, 30_000)),
        reason=reason,
    )
    return made if reason is not None else with_entries(made, draw(ENTRIES))


@given(records())
def test_what_is_written_is_read_and_is_what_the_standard_library_writes(snapshot: HostSnapshot) -> None:
    data = encode_snapshot(snapshot, domain=DOMAIN, bounds=DEFAULT_BOUNDS)
    assert decode(data) == snapshot
    assert json.dumps(json.loads(data), ensure_ascii=False, separators=(",", ":")).encode() == data


@given(st.binary(max_size=400) | st.text(max_size=200).map(lambda drawn: drawn.encode("utf-8", "replace")))
def test_no_bytes_do_anything_but_be_refused(data: bytes) -> None:
    with pytest.raises(SnapshotError):
        decode(data)


@given(st.integers(0, len(CANONICAL) - 1), st.integers(0, 255))
def test_whatever_is_accepted_is_canonical(at: int, byte: int) -> None:
    data = CANONICAL[:at] + bytes([byte]) + CANONICAL[at + 1 :]
    try:
        snapshot = decode(data)
    except SnapshotError:
        return
    assert encoded(snapshot) == data


def test_entries_are_sorted_by_their_bytes() -> None:
    paths = ["a/b", "a.b", "links/2", "links/10", "a-b", "a"]
    made = with_entries(record(), [SnapshotEntry(path, "") for path in paths])
    assert [entry.path for entry in made.entries] == ["a", "a-b", "a.b", "a/b", "links/10", "links/2"]
    assert decode(encoded(made)) == made
