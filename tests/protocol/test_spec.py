from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields, replace
from functools import partial
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from ticket_lines import (
    ADMISSION,
    ADMITTED,
    FEDERATED,
    RAW,
    V1,
    admitted_documents,
    line,
    outcome,
    raw_documents,
    v1_documents,
)

from ticket_agent.protocol import (
    RECEIPT_ACTIONS,
    ROLE_OF_ACTION,
    EmptyArgs,
    HostTicketSpec,
    LeaseReleaseArgs,
    LeaseTermArgs,
    PeftImportArgs,
    PeftReleaseArgs,
    ProtocolError,
    SpecError,
    parse_args,
    parse_spec,
)

SOURCES: tuple[Literal["raw", "admitted"], ...] = ("raw", "admitted")
WIRE_ORDER = [
    "schema",
    "id",
    "idempotency_key",
    "action",
    "target",
    "args",
    "expires_unix_ms",
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
]


def shuffled(document: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(document.items(), reverse=True))


@given(raw_documents())
def test_raw_requests_survive_in_canonical_form(document: dict[str, Any]) -> None:
    spec = parse_spec(line(shuffled(document)), source="raw")
    assert json.loads(spec.encode()) == document
    assert list(json.loads(spec.encode())) == [name for name in WIRE_ORDER if name in document]
    assert parse_spec(spec.encode(), source="raw") == spec
    assert len(spec.encode()) <= 1422
    assert not spec.admitted


@given(admitted_documents())
def test_admitted_requests_survive_in_canonical_form(document: dict[str, Any]) -> None:
    spec = parse_spec(b" \t" + line(shuffled(document)) + b"\r\n", source="admitted")
    assert json.loads(spec.encode()) == document
    assert parse_spec(spec.encode(), source="admitted") == spec
    assert len(spec.encode()) <= 1537
    assert spec.admitted
    with pytest.raises(SpecError):
        parse_spec(line(document), source="raw")


@given(v1_documents())
def test_v1_requests_survive_in_canonical_form(document: dict[str, Any]) -> None:
    spec = parse_spec(line(shuffled(document)), source="raw", max_line_bytes=1 << 16)
    assert json.loads(spec.encode()) == document
    assert parse_spec(spec.encode(), source="raw", max_line_bytes=1 << 16) == spec
    assert spec.version == 1


@given(st.binary(max_size=600), st.sampled_from(SOURCES))
def test_arbitrary_bytes_are_refused_politely(data: bytes, source: Literal["raw", "admitted"]) -> None:
    with pytest.raises(ProtocolError):
        parse_spec(data, source=source)


@given(st.data())
def test_mutated_lines_are_parsed_or_refused_politely(data: st.DataObject) -> None:
    base = bytearray(line(data.draw(st.sampled_from([RAW, ADMITTED, V1, FEDERATED]))))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(base)))
        end = data.draw(st.integers(start, min(start + 8, len(base))))
        base[start:end] = data.draw(
            st.binary(max_size=8) | st.sampled_from([b"[" * 300, b"9" * 400, b"\\ud800", b"null"])
        )
    for source in SOURCES:
        spec = outcome(partial(parse_spec, bytes(base), source=source))
        if isinstance(spec, ProtocolError):
            assert str(spec).isprintable()
        else:
            assert parse_spec(spec.encode(), source=source) == spec


@given(
    st.sampled_from(WIRE_ORDER),
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists),
)
def test_any_value_in_any_member_is_parsed_or_refused_politely(member: str, value: object) -> None:
    for document in (RAW, ADMITTED, V1):
        data = json.dumps(document | {member: value}).encode()
        for source in SOURCES:
            spec = outcome(partial(parse_spec, data, source=source))
            if isinstance(spec, ProtocolError):
                assert spec.member is None or spec.member in str(spec)
            else:
                assert parse_spec(spec.encode(), source=source) == spec


@given(
    st.dictionaries(
        st.text(max_size=20) | st.sampled_from(["self", "__dataclass_self__", "cls"]),
        st.integers(),
        min_size=1,
        max_size=5,  # a longer line would be refused for its length
    )
)
def test_unknown_members_are_named(extra: dict[str, int]) -> None:
    foreign = [name for name in extra if name not in WIRE_ORDER]
    if foreign:
        with pytest.raises(ProtocolError) as refusal:
            parse_spec(json.dumps(dict.fromkeys(foreign, 1) | RAW).encode(), source="raw")
        assert refusal.value.code == "member-unknown"


def test_the_fields_are_those_of_the_wire_in_order() -> None:
    assert [field.name for field in fields(HostTicketSpec)] == WIRE_ORDER


@pytest.mark.parametrize("member", [name for name in WIRE_ORDER if name not in RAW])
def test_null_is_absent_for_optional_members(member: str) -> None:
    assert parse_spec(line(RAW | {member: None}), source="raw") == parse_spec(line(RAW), source="raw")


@pytest.mark.parametrize("member", WIRE_ORDER[4:])
def test_null_is_absent_in_version_1_too(member: str) -> None:
    spec = parse_spec(line(V1 | {member: None}), source="raw")
    assert spec.encode() == line(V1)


def test_federation_members_of_version_1() -> None:
    spec = parse_spec(line(FEDERATED), source="raw")
    assert spec.encode() == line(FEDERATED)
    assert (spec.source_hive, spec.target_hive, spec.relay_hop) == ("hive-a", "hive-b", 2)


@pytest.mark.parametrize("args", [{}, {"x": 0.5}, [1, "a"], "text", 7, True, {"deep": {"b": 1, "a": [None]}}])
def test_v1_arguments_are_free(args: object) -> None:
    spec = parse_spec(line(V1 | {"args": args}), source="raw")
    assert spec.args == args


def test_argument_members_are_written_sorted_by_name() -> None:
    spec = parse_spec(line(RAW | {"args": {"ttl_s": 30, "priority": 1}}), source="raw")
    assert b'"args":{"priority":1,"ttl_s":30}' in spec.encode()


def test_the_limit_counts_the_line_without_blanks_around_it() -> None:
    data = line(RAW)
    spec = parse_spec(b"  " + data + b"\n", source="raw", max_line_bytes=len(data))
    assert spec.encode() == data
    with pytest.raises(SpecError, match=f"max_line_bytes is {len(data) - 1}"):
        parse_spec(data, source="raw", max_line_bytes=len(data) - 1)


def test_text_instead_of_bytes_is_refused() -> None:
    with pytest.raises(ProtocolError, match="must be bytes, not str"):
        parse_spec("{}", source="raw")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["a", "A-b_c.d:e", ".", "..", "_", ":", "0", "x" * 128])
def test_tokens_that_are_taken(value: str) -> None:
    assert parse_spec(line(RAW | {"id": value}), source="raw").id == value


def test_keys() -> None:
    spec = parse_spec(line(RAW), source="raw")
    assert spec.key == ("ticket-1", "key-1")
    assert spec.journal_key == "8:ticket-1:key-1"


@pytest.mark.parametrize("slot", [0, 1, 65535])
def test_slot_zero_is_a_slot(slot: int) -> None:
    spec = parse_spec(line(ADMITTED | {"resolved_worker_slot": slot}), source="admitted")
    assert spec.resolved_worker_slot == slot
    assert f'"resolved_worker_slot":{slot}'.encode() in spec.encode()


def test_admitting_adds_exactly_the_members_of_root() -> None:
    raw = parse_spec(line(RAW), source="raw")
    admitted = raw.admit(slot=0, lease_epoch=4, admission_sequence=5)
    assert admitted.encode() == line(ADMITTED)
    assert json.loads(admitted.encode()) == json.loads(raw.encode()) | ADMISSION


def test_a_version_1_request_cannot_be_admitted() -> None:
    with pytest.raises(SpecError):
        parse_spec(line(V1), source="raw").admit(slot=0, lease_epoch=1, admission_sequence=1)


def test_values_are_frozen_and_checked_however_they_are_made() -> None:
    spec = parse_spec(line(ADMITTED), source="admitted")
    with pytest.raises(FrozenInstanceError):
        spec.id = "other"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        replace(spec, resolved_lease_epoch=0)
    with pytest.raises(SpecError):
        replace(spec, receipt_worker_role="worker-lora")


def test_every_receipt_action_has_a_role_and_arguments() -> None:
    assert set(RECEIPT_ACTIONS) == set(ROLE_OF_ACTION)
    assert len(RECEIPT_ACTIONS) == 8
    for action in RECEIPT_ACTIONS:
        with pytest.raises(SpecError) as refusal:
            parse_args(action, {"no-such-argument": 1})
        assert refusal.value.code in {"args-unknown", "args-missing"}


@pytest.mark.parametrize(
    ("action", "args", "expected"),
    [
        ("gpu.lease.grant", {}, LeaseTermArgs(ttl_s=120, priority=0)),
        (
            "gpu.lease.renew",
            {"ttl_s": 2**32 - 1, "priority": 255},
            LeaseTermArgs(ttl_s=2**32 - 1, priority=255),
        ),
        ("gpu.lease.release", {}, LeaseReleaseArgs(reason="host-ticket-release")),
        ("gpu.lease.release", {"reason": "é" * 64}, LeaseReleaseArgs(reason="é" * 64)),
        ("peft.export", {}, EmptyArgs()),
        ("peft.activate", {}, EmptyArgs()),
        ("peft.rollback", {}, EmptyArgs()),
        ("peft.import", {"adapter_ref": "a", "job_id": "j"}, PeftImportArgs(adapter_ref="a", job_id="j")),
        ("peft.release", {"request_sha256": "a" * 64}, PeftReleaseArgs(request_sha256="a" * 64)),
        (
            "peft.release",
            {"request_sha256": "a" * 64, "recovery_only": True},
            PeftReleaseArgs(request_sha256="a" * 64, recovery_only=True),
        ),
    ],
)
def test_arguments_with_defaults(action: str, args: dict[str, Any], expected: object) -> None:
    assert parse_args(action, args) == expected
    role = ROLE_OF_ACTION[action]
    spec = parse_spec(line(RAW | {"action": action, "args": args, "receipt_worker_role": role}), source="raw")
    assert spec.action_args() == expected
    assert spec.args == args


def test_a_version_1_action_has_no_checked_arguments() -> None:
    with pytest.raises(SpecError) as refusal:
        parse_spec(line(V1), source="raw").action_args()
    assert refusal.value.code == "action"
