"""The former agent's files: hand-made ones are read exactly, wrong ones are refused by the member."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from foreign_state import STATES, admitted_spec, entry, journal, write_files
from hypothesis import given
from hypothesis import strategies as st
from ticket_lines import admitted_documents
from vector_files import load

from ticket_agent.agent.foreign_journal import (
    ForeignCursor,
    ForeignStateError,
    parse_cursor,
    parse_journal,
    parse_topology,
)
from ticket_agent.agent.keys import base_key
from ticket_agent.agent.predecessor import lane_of
from ticket_agent.agent.takeover import ForeignState, Lane, cursor_of, mount_of, records_of, takeover_of
from ticket_agent.cli.foreign_dir import opened, read_state
from ticket_agent.journal.fs import RealFs
from ticket_agent.journal.record import decode_record, encode_record
from ticket_agent.journal.transitions import State
from ticket_agent.protocol.json_strict import dumps
from ticket_agent.protocol.result import build_result
from ticket_agent.protocol.spec import parse_spec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VECTORS = load("former_agent.json")


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_vectors(tmp_path: Path, vector: dict[str, Any]) -> None:
    with opened(write_files(tmp_path / "former", vector["files"])) as fd:
        found = read_state(fd, RealFs())
    takeover = takeover_of(
        found.state, directory="/old", sha256=found.sha256, unix_ms=1_700_000_000_000, boot_id="boot"
    )
    expected = vector["takeover"]
    assert {name: getattr(takeover, name) for name in expected} == expected | {
        "lanes": tuple(expected["lanes"])
    }
    records = records_of(found.state, takeover, mount=mount_of(found.state) or "/host")
    told = [
        {
            "key": record.key,
            "epoch": record.epoch,
            "sequence": record.sequence,
            "state": record.state.value,
            "request": record.request.decode(),
            "outcome": record.result.outcome if record.result is not None else None,
            "path": record.staged.path if record.staged is not None else None,
            "line": record.staged.line if record.staged is not None else None,
        }
        for record in records
    ]
    assert told == vector["records"]
    for record in records:
        assert decode_record(encode_record(record), name=record.name) == record
        assert record.family == "host-ticket/v2"
        assert record.key == base_key(parse_spec(record.request, source="admitted"))
        assert (record.uncertain is not None) == (record.state is State.EXECUTING)
        assert record.plan is None or record.plan.taken_over
    cursor = cursor_of(found.state, takeover)
    assert (cursor.epoch, cursor.mark, cursor.completed_through(2)) == (2, None, vector["completed_through"])


# -- refusals


def made() -> dict[str, Any]:
    """A journal of format 3 with every state, by entry name."""
    entries = [entry(admitted_spec(3 + number), state) for number, state in enumerate(STATES)]
    return journal(entries, through=2)


def at(state: str) -> str:
    number = 3 + STATES.index(state)
    return f"3:t-{number}:k-{number}"


def changed(state: str, /, **members: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        target = document["entries"][at(state)]
        for name, value in members.items():
            if value is ...:
                target.pop(name)
            else:
                target[name] = value

    return change


def changed_in(state: str, part: str, /, **members: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["entries"][at(state)][part] |= members

    return change


def top(**members: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.update(members)


def line(sequence: int, state: str, message: str = "committed") -> str:
    return build_result(admitted_spec(sequence), state=state, message=message, max_line_bytes=2048).decode()


def spaced(text: str) -> str:
    return json.dumps(json.loads(text))


PERSISTED, PUBLISHED, TERMINAL = STATES[2:]
REFUSALS: list[tuple[str, Callable[[dict[str, Any]], None], str]] = [
    ("older schema", top(schema="host-ticket-execution-journal/v1"), "schema"),
    ("newer schema", top(schema="host-ticket-execution-journal/v4"), "schema"),
    ("schema is a number", top(schema=3), "schema"),
    ("unknown member", top(writer_epoch=1), "writer_epoch"),
    ("entries missing", lambda document: document.pop("entries"), "entries"),
    ("entries are a list", top(entries=[]), "entries"),
    ("too many entries", top(entries={str(number): {} for number in range(257)}), "entries"),
    ("fence is text", top(completed_through_admission_sequence="2"), "completed_through_admission_sequence"),
    (
        "fence is negative",
        top(completed_through_admission_sequence=-1),
        "completed_through_admission_sequence",
    ),
    ("fence is true", top(completed_through_admission_sequence=True), "completed_through_admission_sequence"),
    (
        "open at the fence",
        top(completed_through_admission_sequence=3),
        f"entries.{at('prepared')}.state",
    ),
    (
        "entry is no object",
        lambda document: document["entries"].update({at("prepared"): 1}),
        f"entries.{at('prepared')}",
    ),
    ("unknown member of an entry", changed("prepared", extra=1), f"entries.{at('prepared')}.extra"),
    ("key of another", changed("prepared", key="3:t-9:k-9"), f"entries.{at('prepared')}.key"),
    ("key missing", changed("prepared", key=...), f"entries.{at('prepared')}.key"),
    (
        "key of another request",
        changed_in("prepared", "spec", id="t-99"),
        f"entries.{at('prepared')}.key",
    ),
    ("state unknown", changed("prepared", state="running"), f"entries.{at('prepared')}.state"),
    ("state in capitals", changed("prepared", state="Prepared"), f"entries.{at('prepared')}.state"),
    ("state missing", changed("prepared", state=...), f"entries.{at('prepared')}.state"),
    ("spec missing", changed("prepared", spec=...), f"entries.{at('prepared')}.spec"),
    (
        "spec not admitted",
        changed_in("prepared", "spec", admission_sequence=None),
        f"entries.{at('prepared')}.spec.admission_sequence",
    ),
    (
        "spec with a member of later formats",
        changed_in("prepared", "spec", writer_epoch=1),
        f"entries.{at('prepared')}.spec.writer_epoch",
    ),
    (
        "spec with wrong args",
        changed_in("prepared", "spec", args={"ttl_s": "60"}),
        f"entries.{at('prepared')}.spec.args.ttl_s",
    ),
    (
        "result too early",
        changed("executing", provider_result={"outcome": "confirmed", "message": "x", "reconciled": False}),
        f"entries.{at('executing')}.provider_result",
    ),
    ("line too early", changed("executing", result_line="x"), f"entries.{at('executing')}.result_path"),
    (
        "path and line too early",
        changed("executing", result_line="x", result_path="y"),
        f"entries.{at('executing')}.result_path",
    ),
    ("result missing", changed(PERSISTED, provider_result=...), f"entries.{at(PERSISTED)}.provider_result"),
    ("path missing", changed(PUBLISHED, result_path=...), f"entries.{at(PUBLISHED)}.result_path"),
    ("line missing", changed(TERMINAL, result_line=...), f"entries.{at(TERMINAL)}.result_line"),
    ("half staged", changed(PERSISTED, result_line=...), f"entries.{at(PERSISTED)}.result_line"),
    (
        "outcome unknown",
        changed_in(PERSISTED, "provider_result", outcome="succeeded"),
        f"entries.{at(PERSISTED)}.provider_result.outcome",
    ),
    (
        "message empty",
        changed_in(PERSISTED, "provider_result", message=""),
        f"entries.{at(PERSISTED)}.provider_result.message",
    ),
    (
        "message too long",
        changed_in(PERSISTED, "provider_result", message="\u00e9" * 97),
        f"entries.{at(PERSISTED)}.provider_result.message",
    ),
    (
        "message with a control character",
        changed_in(PERSISTED, "provider_result", message="a\u0085b"),
        f"entries.{at(PERSISTED)}.provider_result.message",
    ),
    (
        "reconciled is a number",
        changed_in(PERSISTED, "provider_result", reconciled=0),
        f"entries.{at(PERSISTED)}.provider_result.reconciled",
    ),
    (
        "unknown member of a result",
        changed_in(PERSISTED, "provider_result", evidence={}),
        f"entries.{at(PERSISTED)}.provider_result.evidence",
    ),
    (
        "relative path",
        changed(PUBLISHED, result_path="host/tickets/status"),
        f"entries.{at(PUBLISHED)}.result_path",
    ),
    (
        "path of the other stream",
        changed(PUBLISHED, result_path="/host/tickets/deadletter"),
        f"entries.{at(PUBLISHED)}.result_path",
    ),
    (
        "path with a newline",
        changed(PUBLISHED, result_path="/h\n/tickets/status"),
        f"entries.{at(PUBLISHED)}.result_path",
    ),
    (
        "line of another admission",
        changed(PUBLISHED, result_line=line(9, "succeeded")),
        f"entries.{at(PUBLISHED)}.result_line",
    ),
    (
        "line of another outcome",
        changed(PUBLISHED, result_line=line(6, "failed")),
        f"entries.{at(PUBLISHED)}.result_line",
    ),
    (
        "line that ends nothing",
        changed(PUBLISHED, result_line=line(6, "running")),
        f"entries.{at(PUBLISHED)}.result_line",
    ),
    (
        "line with a wrong digest",
        changed(PUBLISHED, result_line=line(6, "succeeded").replace("committed", "commuted")),
        f"entries.{at(PUBLISHED)}.result_line",
    ),
    (
        "line not canonical",
        changed(PUBLISHED, result_line=spaced(line(6, "succeeded"))),
        f"entries.{at(PUBLISHED)}.result_line",
    ),
]


def test_what_the_refusals_start_from_is_accepted() -> None:
    found = parse_journal(json.dumps(made()).encode())
    assert [operation.state.value for operation in found.operations] == list(STATES)


@pytest.mark.parametrize(
    ("change", "member"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS]
)
def test_a_journal_that_breaks_a_rule_is_refused(
    change: Callable[[dict[str, Any]], None], member: str
) -> None:
    document = made()
    change(document)
    with pytest.raises(ForeignStateError) as caught:
        parse_journal(json.dumps(document).encode())
    assert caught.value.member == member
    assert str(caught.value).startswith(f"member {member} ")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"schema":"host-ticket-execution-journal/v2","schema":"x"}', "schema appears more than once"),
        (b'{"schema":"host-ticket-execution-journal/v2","entries":{"a":1,"a":2}}', "entries.a appears more"),
        (b'{"schema":"host-ticket-execution-journal/v2","entries":{}} x', "not valid JSON"),
        (b" " * 1_048_577, "limit is 1048576"),
        (b'{"schema":"\xff"}', "not UTF-8"),
    ],
)
def test_what_is_no_document_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(ForeignStateError, match=says):
        parse_journal(data)


def test_format_2_has_no_fence() -> None:
    document = made() | {"schema": "host-ticket-execution-journal/v2"}
    with pytest.raises(ForeignStateError) as caught:
        parse_journal(json.dumps(document).encode())
    assert caught.value.member == "completed_through_admission_sequence"


@pytest.mark.parametrize(
    ("document", "cursor"),
    [
        ({}, ForeignCursor()),
        ({"next_spec_index": 3}, ForeignCursor(raw_index=3)),
        (
            {"raw_next_spec_index": 1, "snapshot_next_spec_index": 2, "more": None},
            ForeignCursor(raw_index=1, snapshot_index=2),
        ),
        ({"snapshot_last_admission_sequence": 2**64 - 1}, ForeignCursor(last_sequence=2**64 - 1)),
    ],
)
def test_cursors(document: dict[str, Any], cursor: ForeignCursor) -> None:
    assert parse_cursor(json.dumps(document).encode()) == cursor


@pytest.mark.parametrize(
    "data",
    [
        b'{"raw_next_spec_index":-1}',
        b'{"raw_next_spec_index":1.0}',
        b'{"snapshot_next_spec_index":null}',
        b'{"snapshot_last_admission_sequence":18446744073709551616}',
        b'{"raw_next_spec_index":1,"next_spec_index":1}',
        b"null",
        b'{"a":"' + b"x" * 4096 + b'"}',
    ],
)
def test_cursors_that_are_refused(data: bytes) -> None:
    with pytest.raises(ForeignStateError):
        parse_cursor(data)


@pytest.mark.parametrize("lanes", [0, 65, "2", None])
def test_topologies_that_are_refused(lanes: object) -> None:
    with pytest.raises(ForeignStateError):
        parse_topology(json.dumps({"schema": "host-ticket-execution-lanes/v1", "lanes": lanes}).encode())


PARSERS = (parse_journal, parse_cursor, parse_topology)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.binary(max_size=200), parse=st.sampled_from(PARSERS))
def test_any_bytes_are_read_or_refused(data: bytes, parse: Callable[[bytes], object]) -> None:
    with suppress(ForeignStateError):
        parse(data)


@given(data=st.data())
def test_any_value_at_any_place_is_read_or_refused(data: st.DataObject) -> None:
    document = made()
    target: Any = document
    for _ in range(data.draw(st.integers(0, 3))):
        inner = [name for name, value in target.items() if isinstance(value, dict) and value]
        if not inner:
            break
        target = target[data.draw(st.sampled_from(sorted(inner)))]
    name = data.draw(st.sampled_from(sorted(target)) | st.text(max_size=8))
    target[name] = data.draw(json_values)
    with suppress(ForeignStateError):
        parse_journal(json.dumps(document).encode("utf-8", "surrogatepass"))


@given(document=admitted_documents(), state=st.sampled_from(STATES), staged=st.booleans())
def test_whatever_root_admits_is_taken_over_whole(
    document: dict[str, Any], state: str, *, staged: bool
) -> None:
    spec = parse_spec(dumps(document), source="admitted")
    whole = journal([entry(spec, state, outcome="stale", staged=staged or STATES.index(state) > 2)])
    found = parse_journal(json.dumps(whole, indent=2).encode())
    foreign = ForeignState(lanes=(Lane(journal=found, cursor=ForeignCursor()),))
    takeover = takeover_of(foreign, directory="/old", sha256="0" * 64, unix_ms=1, boot_id="b")
    (record,) = records_of(foreign, takeover, mount="/host")
    assert decode_record(encode_record(record)) == record
    assert record.request == spec.encode()
    if record.staged is not None:
        assert record.staged.path == "/host/tickets/deadletter"
        assert record.staged.line == entry(spec, "terminal", outcome="stale")["result_line"]


@pytest.mark.parametrize("state", STATES[2:])
def test_a_staged_line_is_kept_whatever_the_outcome_would_make_of_it(state: str) -> None:
    """The former agent may have cut the message of a line that did not fit."""
    kept = line(3, "succeeded", "cut")
    whole = journal([entry(admitted_spec(3), state, result_line=kept, result_path="/mnt/h/tickets/status")])
    lane = Lane(journal=parse_journal(json.dumps(whole).encode()), cursor=ForeignCursor())
    foreign = ForeignState(lanes=(lane,))
    takeover = takeover_of(foreign, directory="/old", sha256="0" * 64, unix_ms=1, boot_id="b")
    (record,) = records_of(foreign, takeover, mount="/host")
    assert record.staged is not None
    assert (record.staged.path, record.staged.line) == ("/mnt/h/tickets/status", kept)
    assert record.result is not None
    assert record.result.message == "committed"


def test_two_lanes_cannot_hold_the_same_operation() -> None:
    lane = Lane(journal=parse_journal(json.dumps(made()).encode()), cursor=ForeignCursor())
    with pytest.raises(ForeignStateError, match="two lanes"):
        ForeignState(lanes=(lane, lane))


def test_several_mounts_are_refused() -> None:
    document = copy.deepcopy(made())
    changed(TERMINAL, result_path="/elsewhere/tickets/status")(document)
    lane = Lane(journal=parse_journal(json.dumps(document).encode()), cursor=ForeignCursor())
    with pytest.raises(ForeignStateError, match="several mounts: /elsewhere, /host"):
        mount_of(ForeignState(lanes=(lane,)))


def test_lanes_are_told_by_the_resource() -> None:
    one = admitted_spec(1)
    again = admitted_spec(2, operation_id="lease-1", action="gpu.lease.release", args={})
    assert all(lane_of(one, lanes) == lane_of(again, lanes) for lanes in range(1, 65))
    assert {lane_of(admitted_spec(number), 4) for number in range(1, 40)} == {0, 1, 2, 3}
