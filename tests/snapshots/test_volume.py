"""How much of a record's bounds an observation takes: never less than the record that is published."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.protocol.errors import SnapshotError
from ticket_agent.protocol.snapshot import (
    DEFAULT_BOUNDS,
    MAX_BOUNDS,
    HostSnapshot,
    SnapshotBounds,
    SnapshotEntry,
    encode_snapshot,
    with_entries,
)
from ticket_agent.protocol.tokens import U64_MAX
from ticket_agent.snapshots.volume import Volume, measured

NAMES = st.text("abcz0189._-", min_size=1, max_size=12).map(lambda text: f"a{text.replace('..', '.x')}")
VALUES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
ENTRIES = st.dictionaries(NAMES, VALUES, max_size=20).map(
    lambda found: [SnapshotEntry(path, value) for path, value in found.items()]
)
U64 = st.integers(1, U64_MAX)


@given(ENTRIES, U64, U64, U64, st.integers(1, 30_000))
def test_no_record_of_these_entries_is_larger(
    entries: list[SnapshotEntry], epoch: int, sequence: int, observed: int, ttl_ms: int
) -> None:
    snapshot = with_entries(
        HostSnapshot(
            provider="systemd",
            source_id="host-a",
            epoch=epoch,
            sequence=sequence,
            observed_unix_ms=observed,
            ttl_ms=ttl_ms,
        ),
        entries,
    )
    found = measured(entries, provider="systemd", source_id="host-a")
    size = len(encode_snapshot(snapshot, domain=snapshot.source, bounds=MAX_BOUNDS))
    assert size <= found.bytes <= size + 3 * 19 + 4
    assert found.entries == len(entries)
    assert found.value_bytes == max((len(entry.value.encode()) for entry in entries), default=0)


@given(ENTRIES, st.data())
def test_an_order_is_no_volume(entries: list[SnapshotEntry], data: st.DataObject) -> None:
    other = data.draw(st.permutations(entries))
    names = {"provider": "systemd", "source_id": "host-a"}
    assert measured(entries, **names) == measured(other, **names)


@given(ENTRIES)
def test_what_has_a_share_of_one_at_most_fits(entries: list[SnapshotEntry]) -> None:
    bounds = SnapshotBounds(max_bytes=700, max_entries=8, max_value_bytes=40)
    found = measured(entries, provider="systemd", source_id="host-a")
    snapshot = with_entries(
        HostSnapshot(
            provider="systemd",
            source_id="host-a",
            epoch=U64_MAX,
            sequence=U64_MAX,
            observed_unix_ms=U64_MAX,
            ttl_ms=30_000,
        ),
        entries,
    )
    try:
        encode_snapshot(snapshot, domain=snapshot.source, bounds=bounds)
    except SnapshotError:
        fits = False
    else:
        fits = True
    assert (found.share(bounds) <= 1) == fits


@pytest.mark.parametrize(
    ("volume", "share"),
    [
        (Volume(bytes=8192, entries=1, value_bytes=1), 1.0),
        (Volume(bytes=4096, entries=1, value_bytes=1), 0.5),
        (Volume(bytes=1, entries=48, value_bytes=1), 0.75),
        (Volume(bytes=1, entries=1, value_bytes=2048), 2.0),
        (Volume(bytes=0, entries=0, value_bytes=0), 0.0),
    ],
)
def test_the_fullest_bound_counts(volume: Volume, share: float) -> None:
    assert volume.share(DEFAULT_BOUNDS) == share


@pytest.mark.parametrize(
    "entries",
    [
        [("a", "1"), ("a", "2")],
        [("../a", "1")],
        [("_a", "1")],
        [("a", "\0")],
        [("a", "\ud800")],
        [("a\ud800", "1")],
        [("a", "x" * 4097)],
        [(f"{number}", "") for number in range(65)],
        [(f"{number}", "x" * 900) for number in range(10)],
    ],
    ids=["twice", "above", "hidden", "NUL", "surrogate", "surrogate in a path", "long", "many", "large"],
)
def test_what_makes_no_record_has_no_volume(entries: list[tuple[str, str]]) -> None:
    with pytest.raises(SnapshotError):
        measured(
            [SnapshotEntry(path, value) for path, value in entries], provider="systemd", source_id="host-a"
        )
