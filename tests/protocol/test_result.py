from __future__ import annotations

import hashlib
import json
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ticket_lines import (
    ADMITTED,
    FEDERATED,
    RAW,
    STATES,
    V1,
    admitted_documents,
    json_values,
    line,
    outcome,
    tokens,
    v1_documents,
)

from ticket_agent.protocol import (
    HostTicketResult,
    HostTicketSpec,
    ProtocolError,
    ResultError,
    build_result,
    parse_result,
    parse_spec,
    prepare_message,
    stream_of_state,
)
from ticket_agent.protocol.result import V1_MAX_LINE_BYTES

WIRE_ORDER = [
    "schema",
    "id",
    "idempotency_key",
    "action",
    "state",
    "message",
    "source_hive",
    "target_hive",
    "relay_hop",
    "relay_correlation_id",
    "receipt_mode",
    "operation_id",
    "subject_ref",
    "receipt_worker_role",
    "receipt_worker_id",
    "receipt_supervisor_generation",
    "receipt_cap_generation",
    "resolved_worker_slot",
    "resolved_lease_epoch",
    "admission_sequence",
    "result_digest",
]

messages = st.none() | st.text(max_size=300) | st.text('\\"\x00\x85 é🙂', max_size=300)


def admitted(**changes: Any) -> HostTicketSpec:
    return parse_spec(line(ADMITTED | changes), source="admitted")


def v1(**changes: Any) -> HostTicketSpec:
    return parse_spec(line(V1 | changes), source="raw")


def build(
    spec: HostTicketSpec, message: str | None = "done", state: str = "succeeded", limit: int = 2048
) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        build_result(spec, state=state, message=message, max_line_bytes=limit)
    )
    return document


@given(admitted_documents(), st.sampled_from(STATES), messages)
def test_whatever_is_built_is_parsed_back(document: dict[str, Any], state: str, message: str | None) -> None:
    spec = parse_spec(line(document), source="admitted")
    built = build_result(spec, state=state, message=message, max_line_bytes=2048)
    result = parse_result(built)
    assert result.encode() == built
    assert len(built) <= 1467
    assert result.echoes(spec)
    assert (result.version, result.state, result.key) == (2, state, spec.key)
    body = json.loads(built)
    digest = body.pop("result_digest")
    assert hashlib.sha256(line(body)).hexdigest() == digest


@given(v1_documents(), st.sampled_from(STATES), messages)
def test_version_1_results_fit_the_old_consoles(
    document: dict[str, Any], state: str, message: str | None
) -> None:
    spec = parse_spec(line(document), source="raw", max_line_bytes=1 << 16)
    built = outcome(lambda: build_result(spec, state=state, message=message, max_line_bytes=2048))
    if isinstance(built, ProtocolError):
        bare = {
            "schema": "host-ticket-result/v1",
            **{n: document[n] for n in ("id", "idempotency_key", "action")},
        }
        bare |= {"state": state} | ({"receipt_mode": "none"} if "receipt_mode" in document else {})
        assert len(line(bare)) > V1_MAX_LINE_BYTES
        assert built.code == "result-too-long"
        return
    result = parse_result(built)
    assert len(built) <= V1_MAX_LINE_BYTES
    assert result.encode() == built
    assert result.echoes(spec)
    assert result.receipt_mode == spec.receipt_mode


@given(st.sampled_from([name for name in WIRE_ORDER if name != "result_digest"]), json_values | tokens())
def test_the_digest_guards_every_member(member: str, value: object) -> None:
    document = build(admitted())
    if document.get(member) == value:
        return
    with pytest.raises(ProtocolError):
        parse_result(line(document | {member: value}), max_line_bytes=1 << 16)


@given(st.integers(0, 63), st.sampled_from("0123456789abcdef"))
def test_every_digit_of_the_digest_counts(index: int, digit: str) -> None:
    document = build(admitted())
    digest = document["result_digest"]
    if digest[index] != digit:
        forged = digest[:index] + digit + digest[index + 1 :]
        with pytest.raises(ResultError) as refusal:
            parse_result(line(document | {"result_digest": forged}))
        assert refusal.value.code == "result-digest"


@given(st.binary(max_size=600))
def test_arbitrary_bytes_are_refused_politely(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_result(data)


@given(st.data())
def test_mutated_lines_are_parsed_or_refused_politely(data: st.DataObject) -> None:
    documents = [build(admitted()), build(v1()), {**build(v1()), "state": "queued"}]
    base = bytearray(line(data.draw(st.sampled_from(documents))))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(base)))
        end = data.draw(st.integers(start, min(start + 8, len(base))))
        base[start:end] = data.draw(
            st.binary(max_size=8) | st.sampled_from([b"{" * 300, b"9" * 400, b"\\ud800"])
        )
    result = outcome(lambda: parse_result(bytes(base)))
    if isinstance(result, ProtocolError):
        assert str(result).isprintable()
    else:
        assert parse_result(result.encode()) == result


def test_members_in_another_order_match_the_canonical_digest() -> None:
    built = build_result(admitted(), state="failed", message="no", max_line_bytes=2048)
    backwards = dict(reversed(list(json.loads(built).items())))
    assert parse_result(line(backwards)).encode() == built


def test_the_fields_are_those_of_the_wire_in_order() -> None:
    assert [field.name for field in fields(HostTicketResult)] == WIRE_ORDER
    assert list(build(admitted())) == [name for name in WIRE_ORDER if name in build(admitted())]


@pytest.mark.parametrize(
    "member", ["message", "source_hive", "target_hive", "relay_hop", "relay_correlation_id"]
)
def test_null_is_absent(member: str) -> None:
    built = build_result(admitted(), state="failed", message=None, max_line_bytes=2048)
    assert parse_result(line(json.loads(built) | {member: None})).encode() == built


@pytest.mark.parametrize(
    ("state", "stream", "terminal"),
    [
        ("queued", "status", False),
        ("claimed", "status", False),
        ("running", "status", False),
        ("succeeded", "status", True),
        ("failed", "deadletter", True),
        ("expired", "deadletter", True),
    ],
)
def test_states(state: str, stream: str, terminal: bool) -> None:
    assert stream_of_state(state) == stream
    for spec in (admitted(), v1()):
        assert parse_result(line(build(spec, state=state))).terminal is terminal


@pytest.mark.parametrize("state", ["", "done", "Succeeded", "succeeded "])
def test_unknown_states(state: str) -> None:
    with pytest.raises(ResultError):
        stream_of_state(state)
    with pytest.raises(ResultError) as refusal:
        build_result(admitted(), state=state, message=None, max_line_bytes=2048)
    assert refusal.value.member == "state"


def test_a_request_without_admission_has_nobody_to_answer_for_it() -> None:
    with pytest.raises(ResultError) as refusal:
        build_result(parse_spec(line(RAW), source="raw"), state="failed", message=None, max_line_bytes=2048)
    assert (refusal.value.code, refusal.value.member) == ("result-not-admitted", "admission_sequence")


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "ticket-2"},
        {"idempotency_key": "key-2"},
        {"action": "gpu.lease.renew"},
        {"operation_id": "lease-2"},
        {"subject_ref": "GPU-1"},
        {"receipt_worker_id": "worker-2"},
        {"receipt_supervisor_generation": 9},
        {"receipt_cap_generation": 9},
        {"resolved_worker_slot": 1},
        {"resolved_lease_epoch": 9},
        {"admission_sequence": 9},
    ],
)
def test_a_result_echoes_only_its_own_request(changes: dict[str, Any]) -> None:
    result = parse_result(line(build(admitted())))
    assert result.echoes(admitted())
    assert not result.echoes(admitted(**changes))


def test_version_1_and_2_never_answer_each_other() -> None:
    result = parse_result(line(build(v1(action="gpu.lease.grant"))))
    assert not result.echoes(admitted())
    assert not parse_result(line(build(admitted()))).echoes(v1(action="gpu.lease.grant"))


@pytest.mark.parametrize(
    ("given_text", "prepared"),
    [
        (None, None),
        ("", None),
        (" \t\n\u00a0\u3000\u0085", None),
        ("ok", "ok"),
        ("  two\nlines\r\n", "two lines"),
        ("a\tb\x00c\x7fd\x80e\x9ff", "a b c d e f"),
        ("\0", " "),
        ("\x1c", " "),
        ("\0a\0", " a "),
        ("\ud800", "\ufffd"),
        ("\u2028x\u200b", "x\u200b"),
    ],
)
def test_messages_are_one_line(given_text: str | None, prepared: str | None) -> None:
    assert prepare_message(given_text) == prepared
    for spec in (admitted(), v1()):
        assert build(spec, given_text).get("message") == prepared


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("m" * 192, "m" * 192),
        ("m" * 193, "m" * 192),
        ("é" * 96, "é" * 96),
        ("é" * 97, "é" * 96),
        ("m" + "é" * 96, "m" + "é" * 95),
        ("🙂" * 49, "🙂" * 48),
        ("m" * 190 + "   tail", "m" * 190),
        ("\0" * 300, None),
    ],
)
def test_version_2_messages_are_cut_to_192_bytes(message: str, kept: str | None) -> None:
    assert build(admitted(), message).get("message") == kept


def bound(**document: Any) -> int:
    return len(line(document))


def test_the_ladder_of_version_2() -> None:
    spec, message = admitted(), "é" * 60
    full = build(spec, message)
    cut = build(spec, message, limit=bound(**full) - 1)
    assert cut["message"] == "é" * 48
    none = build(spec, message, limit=bound(**cut) - 1)
    assert "message" not in none
    assert build(spec, message, limit=bound(**none)) == none
    for document in (full, cut, none):
        assert parse_result(line(document)).echoes(spec)
    with pytest.raises(ResultError, match=f"max_line_bytes is {bound(**none) - 1}"):
        build(spec, message, limit=bound(**none) - 1)


def test_a_thousand_emoji_do_not_fit_in_64_bytes() -> None:
    for spec in (admitted(), v1()):
        with pytest.raises(ResultError) as refusal:
            build(spec, "🙂" * 1000, limit=64)
        assert refusal.value.code == "result-too-long"


def test_the_ladder_of_version_1_cuts_messages() -> None:
    spec = v1(id="t", idempotency_key="k", action="a.b")
    full = build(spec, "m" * 100)
    assert full["message"] == "m" * 100
    cut = build(spec, "m" * 100, limit=bound(**full) - 1)
    assert cut["message"] == "m" * 96
    silent = build(spec, "m" * 100, limit=bound(**cut) - 1)
    assert "message" not in silent


def test_the_ladder_of_version_1_drops_the_federation() -> None:
    spec = parse_spec(line(FEDERATED | {"id": "t", "relay_correlation_id": "c"}), source="raw")
    full = build(spec, "ok")
    assert full["relay_correlation_id"] == "c"
    rungs = [full]
    while "source_hive" in rungs[-1]:
        rungs.append(build(spec, "ok", limit=bound(**rungs[-1]) - 1))
    dropped = [set(above) - set(below) for above, below in pairwise(rungs)]
    assert dropped == [{"relay_correlation_id"}, {"message"}, {"source_hive", "target_hive", "relay_hop"}]
    assert list(rungs[-1]) == ["schema", "id", "idempotency_key", "action", "state"]
    for document in rungs:
        assert parse_result(line(document)).echoes(spec)
    with pytest.raises(ResultError):
        build(spec, "ok", limit=bound(**rungs[-1]) - 1)


def test_version_1_is_bounded_by_224_bytes_and_version_2_by_2048() -> None:
    assert bound(**build(v1(), "m" * 400, limit=10_000)) <= 224
    assert bound(**build(admitted(), "\\" * 400, limit=10_000)) <= 2048


def test_version_1_results_carry_no_digest() -> None:
    document = build(v1(receipt_mode="none"))
    assert document["receipt_mode"] == "none"
    assert "result_digest" not in document


def test_a_result_is_checked_however_it_is_made() -> None:
    result = parse_result(line(build(admitted())))
    with pytest.raises(ResultError):
        replace(result, state="failed")
