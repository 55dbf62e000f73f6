from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_support import BOOT_ID, KEY, PLAN, REQUEST, RESULT, STAGED, VERSION

from ticket_agent.journal.envelope import Kind, encode_json, seal
from ticket_agent.journal.errors import RecordError
from ticket_agent.journal.outcome import JsonValue, Plan
from ticket_agent.journal.record import (
    HistoryEntry,
    ProviderResult,
    Record,
    RecordEncoder,
    StagedResult,
    Uncertainty,
    bounded_evidence,
    decode_record,
    encode_record,
)
from ticket_agent.journal.transitions import State
from ticket_agent.journal.values import MAX_RECORD_BYTES, key_digest, parse_record_name, record_name

PATHS = [
    (State.PREPARED,),
    (State.PREPARED, State.EXECUTING),
    (State.PREPARED, State.PERSISTED),
    (State.PREPARED, State.EXECUTING, State.PERSISTED),
    (State.PREPARED, State.PERSISTED, State.PUBLISHED),
    (State.PREPARED, State.EXECUTING, State.PERSISTED, State.PUBLISHED),
    (State.PREPARED, State.PERSISTED, State.TERMINAL),
    (State.PREPARED, State.EXECUTING, State.PERSISTED, State.TERMINAL),
    (State.PREPARED, State.PERSISTED, State.PUBLISHED, State.TERMINAL),
    (State.PREPARED, State.EXECUTING, State.PERSISTED, State.PUBLISHED, State.TERMINAL),
]


def history(*states: State) -> tuple[HistoryEntry, ...]:
    return tuple(HistoryEntry(state=state, unix_ms=5, boot_id=BOOT_ID, agent=VERSION) for state in states)


def record_of(path: tuple[State, ...], **changes: Any) -> Record:
    persisted = State.PERSISTED in path
    members: dict[str, Any] = {
        "key": KEY,
        "family": "ticket-v2",
        "epoch": 1,
        "sequence": 7,
        "request": REQUEST,
        "state": path[-1],
        "history": history(*path),
        "plan": PLAN if State.EXECUTING in path else None,
        "result": RESULT if persisted else None,
        "staged": STAGED if persisted else None,
        "withdrawn": "gone" if path[-1] is State.TERMINAL and State.PUBLISHED not in path else None,
    }
    return Record(**(members | changes))


TERMINAL = record_of(PATHS[-1])

lines = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=16)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
json_values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(texts, json_values, max_size=4)


@st.composite
def records(draw: st.DrawFn) -> Record:
    path = draw(st.sampled_from(PATHS))
    entries = tuple(
        HistoryEntry(
            state=state,
            unix_ms=draw(st.integers(0, 2**63 - 1)),
            boot_id=draw(lines),
            agent=draw(lines),
        )
        for state in path
    )
    persisted = State.PERSISTED in path
    executing = State.EXECUTING in path
    return record_of(
        path,
        key=draw(lines),
        family=draw(lines),
        epoch=draw(st.integers(1, 2**64 - 1)),
        sequence=draw(st.integers(1, 2**64 - 1)),
        request=draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)).encode(),
        history=entries,
        plan=Plan(before=draw(json_objects), intent=draw(json_objects)) if executing else None,
        uncertain=draw(st.none() | st.builds(Uncertainty, since_unix_ms=st.integers(0, 9), detail=lines))
        if executing
        else None,
        result=ProviderResult(
            outcome=draw(st.sampled_from(["confirmed", "rejected", "stale"])),
            message=draw(lines),
            reconciled=draw(st.booleans()),
            evidence=draw(json_objects),
        )
        if persisted
        else None,
        staged=StagedResult(path="/" + draw(lines), line=draw(lines)) if persisted else None,
    )


@given(records())
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    data = encode_record(record)
    assert decode_record(data, name=record.name) == record
    assert encode_record(decode_record(data)) == data
    assert seal(Kind.RECORD, json.loads(data.partition(b"\n")[2])) == data


@given(records(), records(), st.booleans())
def test_what_was_encoded_before_never_shows_in_another_record(
    first: Record, second: Record, same_request: bool
) -> None:
    """The parts that an encoder keeps are used for what they were made from and nothing else."""
    changes: dict[str, Any] = {"key": first.key}
    if same_request:
        changes["request"] = first.request
    encoder = RecordEncoder()
    assert encoder.encode(first) == encode_record(first)
    assert encoder.encode(replace(second, **changes)) == encode_record(replace(second, **changes))
    assert encoder.encode(first) == encode_record(first)


@given(st.data(), records())
def test_an_encoder_follows_an_operation_through_its_life(data: st.DataObject, last: Record) -> None:
    encoder = RecordEncoder()
    for count in range(1, len(last.history) + 1):
        history = last.history[:count]
        passed = {entry.state for entry in history}
        record = replace(
            last,
            state=history[-1].state,
            history=history,
            plan=last.plan if State.EXECUTING in passed else None,
            uncertain=last.uncertain if State.EXECUTING in passed and data.draw(st.booleans()) else None,
            result=last.result if State.PERSISTED in passed else None,
            staged=last.staged if State.PERSISTED in passed else None,
            withdrawn=last.withdrawn if count == len(last.history) else None,
        )
        assert encoder.encode(record) == encode_record(record)
    assert not encoder._parts or not last.terminal


def test_what_does_not_change_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an operation with a large plan would pay for it at each of its five steps."""
    encoded: list[object] = []

    def counting(value: object) -> str:
        encoded.append(value)
        return encode_json(value)

    monkeypatch.setattr("ticket_agent.journal.record_text.encode_json", counting)
    encoder = RecordEncoder()
    executing = record_of((State.PREPARED, State.EXECUTING))
    request = executing.request.decode()
    for _ in range(3):
        encoder.encode(executing)
    assert encoded.count(request) == 1
    assert sum(isinstance(value, dict) for value in encoded) == 1


@given(records())
def test_a_record_that_moves_keeps_what_it_has(record: Record) -> None:
    assert record.moved(record.state, record.history, withdrawn=record.withdrawn) == record


@pytest.mark.parametrize("path", [PATHS[0], PATHS[-1]], ids=["prepared", "terminal"])
def test_every_single_flipped_bit_is_noticed(path: tuple[State, ...]) -> None:
    data = encode_record(record_of(path))
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises(RecordError):
                decode_record(bytes(flipped))


@given(st.binary(max_size=200))
def test_whatever_the_bytes_only_a_record_error_is_raised(data: bytes) -> None:
    with pytest.raises(RecordError):
        decode_record(data)


@given(records(), st.data())
@settings(max_examples=50)
def test_every_cut_is_noticed_with_its_place(record: Record, data: st.DataObject) -> None:
    whole = encode_record(record)
    length = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(RecordError) as caught:
        decode_record(whole[:length])
    assert caught.value.offset <= length


def sealed(body: bytes, *, version: str = "v1", kind: str = "journal") -> bytes:
    head = f"ticket-agent-{kind}/{version} sha256={sha256(body).hexdigest()} bytes={len(body)}\n"
    return head.encode() + body


GOOD = encode_record(TERMINAL)
BODY_AT = GOOD.index(b"\n") + 1
BODY = GOOD[BODY_AT:]

DAMAGE = {
    "empty": (b"", "empty", 0),
    "zeros": (bytes(5_000), "5000 NUL bytes", 0),
    "header cut": (GOOD[:30], "ends inside its header", 30),
    "body cut": (GOOD[:-9], "torn: the header announces", len(GOOD) - 9),
    "only header": (GOOD[:BODY_AT], "torn", BODY_AT),
    "tail zeros": (GOOD[:-100] + bytes(100), "last 100 bytes are NUL", len(GOOD) - 100),
    "body zeros": (GOOD[:BODY_AT] + bytes(len(BODY)), "NUL", BODY_AT),
    "changed": (GOOD.replace(b"committed", b"Committed"), "digest", BODY_AT),
    "more": (GOOD + b"x", "1 bytes follow", len(GOOD)),
    "next version": (sealed(BODY, version="v2"), "format v2", 0),
    "another kind": (sealed(BODY, kind="cursor"), "not that of a ticket-agent journal file", 13),
    "foreign": (b"#!/bin/sh\necho\n" * 20, "not that of a ticket-agent journal file", 0),
    "uppercase digest": (GOOD[:40].upper() + GOOD[40:], "header", 0),
    "no JSON": (sealed(b"{nonsense}\n"), "not JSON", BODY_AT - len(str(len(BODY))) + 2 + 1),
    "no object": (sealed(b"[]\n"), "not an object", BODY_AT - len(str(len(BODY))) + 1),
    "two newlines": (sealed(b"{}\n\n"), "exactly one newline", BODY_AT - len(str(len(BODY))) + 1 + 2),
    "no UTF-8": (sealed(b'{"\xff":1}\n'), "UTF-8", BODY_AT - len(str(len(BODY))) + 1 + 2),
    "deep": (sealed(b"[" * 9_000 + b"]" * 9_000 + b"\n"), "nested", BODY_AT - len(str(len(BODY))) + 5),
    "long number": (sealed(b'{"a":' + b"9" * 5_000 + b"}\n"), "too long", BODY_AT),
    "too long": (b"x" * (MAX_RECORD_BYTES + 1), "longer than 65536", MAX_RECORD_BYTES),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named_with_its_place(case: str) -> None:
    data, reason, offset = DAMAGE[case]
    with pytest.raises(RecordError, match=reason) as caught:
        decode_record(data)
    assert caught.value.offset == offset
    assert "\n" not in str(caught.value)


def changed(**changes: Any) -> bytes:
    members = json.loads(BODY)
    members.update(changes)
    return sealed(
        json.dumps({name: value for name, value in members.items() if value != "ABSENT"}).encode() + b"\n"
    )


FULL = json.loads(BODY)
SHAPES: dict[str, dict[str, Any]] = {
    "unknown member": {"extra": 1},
    "missing request": {"request": "ABSENT"},
    "missing history": {"history": "ABSENT"},
    "missing plan": {"plan": "ABSENT"},
    "missing result": {"result": "ABSENT"},
    "missing staged": {"staged": "ABSENT"},
    "withdrawn though published": {"withdrawn": "gone"},
    "null plan": {"plan": None},
    "unknown state": {"state": "done"},
    "state behind history": {"state": "result-published"},
    "state is no string": {"state": 3},
    "epoch zero": {"epoch": 0},
    "epoch true": {"epoch": True},
    "sequence zero": {"sequence": 0},
    "sequence too large": {"sequence": 2**64},
    "sequence as text": {"sequence": "7"},
    "sequence as float": {"sequence": 7.0},
    "empty key": {"key": ""},
    "key with control": {"key": "a\u0085b"},
    "key too long": {"key": "k" * 513},
    "key is a list": {"key": []},
    "request is no string": {"request": {}},
    "request empty": {"request": ""},
    "request too long": {"request": "x" * 8_193},
    "request with surrogate": {"request": "\ud800"},
    "history is no list": {"history": {}},
    "history empty": {"history": []},
    "history backwards": {"history": FULL["history"][::-1]},
    "history skips": {"history": FULL["history"][::2]},
    "history repeats": {"history": FULL["history"][:2] + FULL["history"][1:]},
    "history begins late": {"history": FULL["history"][1:]},
    "entry without boot id": {"history": [{"state": "prepared", "unix_ms": 1, "agent": "1"}]},
    "entry of another type": {"history": ["prepared"]},
    "time before 1970": {"history": [FULL["history"][0] | {"unix_ms": -1}, *FULL["history"][1:]]},
    "plan with unknown member": {"plan": {"before": {}, "intent": {}, "x": 1}},
    "plan is a list": {"plan": {"before": [], "intent": {}}},
    "plan with a float": {"plan": {"before": {"a": 1.5}, "intent": {}}},
    "plan too large": {"plan": {"before": {"a": "x" * 16_384}, "intent": {}}},
    "plan too deep": {"plan": {"before": {"a": json.loads("[" * 40 + "]" * 40)}, "intent": {}}},
    "outcome unknown": {"result": FULL["result"] | {"outcome": "maybe"}},
    "outcome is a list": {"result": FULL["result"] | {"outcome": []}},
    "message empty": {"result": FULL["result"] | {"message": ""}},
    "message too long": {"result": FULL["result"] | {"message": "é" * 97}},
    "message with newline": {"result": FULL["result"] | {"message": "a\nb"}},
    "reconciled is a number": {"result": FULL["result"] | {"reconciled": 1}},
    "evidence too large": {"result": FULL["result"] | {"evidence": {"a": "x" * 16_384}}},
    "evidence is null": {"result": FULL["result"] | {"evidence": None}},
    "staged path relative": {"staged": {"path": "status", "line": "x"}},
    "staged line too long": {"staged": {"path": "/s", "line": "x" * 2_049}},
    "staged line with newline": {"staged": {"path": "/s", "line": "x\n"}},
    "uncertain without detail": {"uncertain": {"since_unix_ms": 1}},
    "uncertain detail too long": {"uncertain": {"since_unix_ms": 1, "detail": "x" * 193}},
}


@pytest.mark.parametrize("case", SHAPES)
def test_a_right_digest_does_not_excuse_a_wrong_body(case: str) -> None:
    with pytest.raises(RecordError) as caught:
        decode_record(changed(**SHAPES[case]))
    assert caught.value.offset > 100
    assert "\n" not in str(caught.value)


def test_the_unchanged_body_is_accepted() -> None:
    assert decode_record(changed()) == TERMINAL


def test_a_repeated_member_is_refused() -> None:
    body = BODY.replace(b'"epoch":1,', b'"epoch":1,"epoch":1,')
    assert body != BODY
    with pytest.raises(RecordError, match="repeats a member"):
        decode_record(sealed(body))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: "-".join(state.name for state in path))
def test_what_belongs_to_a_state_must_be_there_and_nothing_else(path: tuple[State, ...]) -> None:
    executing, persisted = State.EXECUTING in path, State.PERSISTED in path
    with pytest.raises(RecordError, match="plan"):
        record_of(path, plan=None if executing else PLAN)
    with pytest.raises(RecordError, match="result"):
        record_of(path, result=None if persisted else RESULT)
    with pytest.raises(RecordError, match="result"):
        record_of(path, staged=None if persisted else STAGED)
    withdrawn = path[-1] is State.TERMINAL and State.PUBLISHED not in path
    with pytest.raises(RecordError, match="withdrawn"):
        record_of(path, withdrawn=None if withdrawn else "gone")
    if not executing:
        with pytest.raises(RecordError, match="uncertain"):
            record_of(path, uncertain=Uncertainty(since_unix_ms=1, detail="x"))


def test_the_name_must_agree_with_sequence_and_key() -> None:
    assert decode_record(GOOD, name=TERMINAL.name) == TERMINAL
    for name in (record_name(8, KEY), record_name(7, KEY + "x"), "7.rec"):
        with pytest.raises(RecordError, match="name should be"):
            decode_record(GOOD, name=name)


def test_names_are_twenty_digits_and_sixteen_hex() -> None:
    name = record_name(2**64 - 1, KEY)
    assert name == f"18446744073709551615-{sha256(KEY.encode()).hexdigest()[:16]}.rec"
    assert parse_record_name(name) == (2**64 - 1, key_digest(KEY))
    for wrong in ("1-00.rec", name + "x", name.upper(), f".{name}", ""):
        assert parse_record_name(wrong) is None


@pytest.mark.parametrize(
    "value",
    [
        1.5,
        (1, 2),
        {1: 2},
        {"a": {2: 3}},
        b"x",
        {"a"},
        float("nan"),
        "\ud800",
        json.loads("[" * 33 + "]" * 33),
        10**5_000,
    ],
    ids=lambda value: str(type(value).__name__),
)
def test_what_json_would_not_bring_back_is_refused(value: Any) -> None:
    executing = record_of(PATHS[1], plan=Plan(before={"a": value}, intent={}))
    with pytest.raises(RecordError):
        encode_record(executing)
    dropped = bounded_evidence({"a": value})
    assert list(dropped) == ["evidence_dropped"]
    encode_record(replace(TERMINAL, result=replace(RESULT, evidence=dropped)))


def test_evidence_that_is_too_large_is_replaced_by_a_note() -> None:
    assert bounded_evidence({"a": 1}) == {"a": 1}
    assert "16384" in str(bounded_evidence({"a": "x" * 16_384})["evidence_dropped"])


def test_a_request_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(RecordError, match="UTF-8"):
        encode_record(record_of(PATHS[0], request=b"\xff"))


def test_what_is_dispatched_leaves_room_for_the_largest_outcome() -> None:
    largest = Plan(before={"a": "x" * 16_000}, intent={})
    executing = record_of(PATHS[1], request=b'"' * 8_192, plan=largest)
    encode_record(executing)
    noted = replace(executing, uncertain=Uncertainty(since_unix_ms=2**62, detail='"' * 192))
    encode_record(noted)
    result = ProviderResult(outcome="stale", message='"' * 192, evidence={"a": "x" * 16_376})
    settled = replace(
        noted,
        state=State.TERMINAL,
        history=tuple(
            HistoryEntry(state=state, unix_ms=2**63 - 1, boot_id='"' * 64, agent='"' * 64)
            for state in PATHS[7]
        ),
        result=result,
        staged=StagedResult(path="/" + '"' * 255, line='"' * 2_048),
        withdrawn='"' * 192,
    )
    assert len(encode_record(settled)) <= MAX_RECORD_BYTES
    with pytest.raises(RecordError, match="at most"):
        encode_record(record_of(PATHS[1], request=b"\x01" * 8_192, plan=PLAN))
