from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ticket_lines import ADMITTED, line, tokens

from ticket_agent.protocol import (
    ProtocolError,
    WorkerState,
    WorkerStateError,
    encode_worker_state,
    legacy_telemetry_path,
    newest_worker_state,
    parse_spec,
    parse_worker_state,
    ready_refusal,
    shard_label,
    telemetry_path,
)

SPEC = parse_spec(line(ADMITTED), source="admitted")
READY = WorkerState(
    worker_id="worker-1",
    role="worker-gpu",
    state="ready",
    slot=0,
    lease_epoch=4,
    supervisor_generation=2,
    cap_generation=3,
    ready_sequence=1,
    control_sequence=0,
    receipt_sequence=0,
    completion_sequence=0,
)
V1_LINE = (
    '{"schema":"worker-runtime-state/v1","worker_id":"worker-1","role":"worker-gpu","state":"ready","slot":0,'
    '"lease_epoch":4,"supervisor_generation":2,"cap_generation":3,"ready_sequence":1,"control_sequence":0,'
    '"receipt_sequence":0,"completion_sequence":0}'
)
V2_LINE = (
    '{"schema":"worker-runtime-state/v2","worker_id":"worker-1","role":"worker-gpu","state":"ready",'
    '"identity":[0,4,2,3],"sequence":[1,0,0,0]}'
)


def states(highest: int) -> st.SearchStrategy[WorkerState]:
    number = st.integers(0, highest)
    return st.builds(
        WorkerState,
        worker_id=tokens(32),
        role=st.sampled_from(["worker-gpu", "worker-lora"]),
        state=st.sampled_from(["absent", "queued", "starting", "ready", "closing", "faulted", "terminal"]),
        slot=st.integers(0, 65535),
        lease_epoch=number,
        supervisor_generation=number,
        cap_generation=number,
        ready_sequence=number,
        control_sequence=number,
        receipt_sequence=number,
        completion_sequence=number,
    )


@given(states(2**64 - 1))
def test_version_1_lines_survive(state: WorkerState) -> None:
    assert parse_worker_state(encode_worker_state(state, schema="v1")) == state


@given(states(2**32 - 1))
def test_version_2_lines_survive_and_fit_in_256_bytes(state: WorkerState) -> None:
    text = encode_worker_state(state, schema="v2")
    assert parse_worker_state(text) == state
    assert len(text) < 256


@pytest.mark.parametrize(("schema", "text"), [("v1", V1_LINE), ("v2", V2_LINE)])
def test_lines_to_the_byte(schema: Literal["v1", "v2"], text: str) -> None:
    assert parse_worker_state(text) == READY
    assert parse_worker_state(f" {text}\n") == READY
    assert encode_worker_state(READY, schema=schema) == text


def changed(text: str, **changes: Any) -> str:
    document = json.loads(text) | changes
    return json.dumps(
        {name: value for name, value in document.items() if value is not ...}, separators=(",", ":")
    )


MEMBERS = [pytest.param(text, member) for text in (V1_LINE, V2_LINE) for member in json.loads(text)]


@pytest.mark.parametrize(("text", "member"), MEMBERS)
def test_every_member_is_required_and_typed(text: str, member: str) -> None:
    wrong: list[Any] = [..., None, {}, -1, 2**64, "é", True]
    for value in wrong:
        with pytest.raises(ProtocolError) as refusal:
            parse_worker_state(changed(text, **{member: value}))
        assert refusal.value.member == member


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (changed(V1_LINE, note=1), "member-unknown"),
        (changed(V2_LINE, slot=0), "member-unknown"),
        (changed(V1_LINE, schema="worker-runtime-state/v3"), "schema"),
        (changed(V1_LINE, schema="worker-runtime-state/v2"), "member-unknown"),
        (changed(V1_LINE, slot=65536), "member-range"),
        (changed(V2_LINE, identity=[0, 4, 2]), "member-type"),
        (changed(V2_LINE, identity=[0, 4, 2, 3, 0]), "member-type"),
        (changed(V2_LINE, identity=[0, 4, 2, 2**32]), "member-range"),
        (changed(V2_LINE, sequence=[1, 0, 0, 1.0]), "member-range"),
        (changed(V2_LINE, sequence=[True, 0, 0, 0]), "member-range"),
        (changed(V1_LINE, worker_id="w" * 33), "token"),
        (V1_LINE + V1_LINE, "json-syntax"),
        (V1_LINE[20:], "json-syntax"),
        (V2_LINE.replace('"schema"', '"state":"ready","schema"'), "json-repeated"),
        (V2_LINE.replace("{", "{" + " " * 200, 1), "too-long"),
        ("\ud800", "json-not-utf8"),
        ("[]", "json-not-object"),
        ("", "json-syntax"),
    ],
)
def test_other_lines_are_refused(text: str, code: str) -> None:
    with pytest.raises(ProtocolError) as refusal:
        parse_worker_state(text)
    assert refusal.value.code == code


def encoded(**changes: Any) -> str:
    return encode_worker_state(replace(READY, **changes), schema="v2")


def test_the_newest_line_of_the_worker_decides() -> None:
    lines = [
        encoded(),
        encoded(state="closing"),
        encoded(worker_id="worker-2"),
        '{"n":1}',
        V2_LINE[40:],
        "\ud800",
    ]
    newest = newest_worker_state(lines, "worker-1")
    assert newest == replace(READY, state="closing")
    assert newest_worker_state(lines, "worker-3") is None
    assert newest_worker_state([], "worker-1") is None


def test_only_64_lines_are_looked_at() -> None:
    assert newest_worker_state([encoded(), *["{}"] * 63], "worker-1") == READY
    assert newest_worker_state([encoded(), *["{}"] * 64], "worker-1") is None


def test_exactly_the_admitted_worker_is_ready() -> None:
    assert ready_refusal(READY, SPEC) is None
    assert ready_refusal(replace(READY, control_sequence=9, receipt_sequence=8), SPEC) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": "starting"}, "starting"),
        ({"state": "closing"}, "closing"),
        ({"ready_sequence": 0}, "never published"),
        ({"worker_id": "worker-2"}, "worker_id is worker-2"),
        ({"role": "worker-lora"}, "role is worker-lora"),
        ({"slot": 1}, "slot is 1, admitted was 0"),
        ({"lease_epoch": 5}, "lease_epoch is 5"),
        ({"supervisor_generation": 1}, "supervisor_generation is 1"),
        ({"cap_generation": 4}, "cap_generation is 4"),
    ],
)
def test_any_other_worker_is_not_ready(changes: dict[str, Any], words: str) -> None:
    refusal = ready_refusal(replace(READY, **changes), SPEC)
    assert refusal is not None
    assert words in refusal
    assert "\n" not in refusal


def test_an_invisible_worker_is_not_ready() -> None:
    assert "worker-1" in (ready_refusal(None, SPEC) or "")


def test_shard_bits() -> None:
    assert [shard_label("worker-1", shard_bits=bits) for bits in (8, 4, 1, 0)] == ["13", "01", "00", "00"]
    assert telemetry_path("worker-1", shard_bits=0) == "/shard/00/worker/worker-1/telemetry"
    assert legacy_telemetry_path("worker-1") == "/worker/worker-1/telemetry"


@pytest.mark.parametrize("worker_id", ["", ".", "..", "a/b", "a:b", "a b", "é", "w" * 129, "a\n"])
def test_what_is_no_path_component_names_no_telemetry(worker_id: str) -> None:
    for function in (shard_label, telemetry_path, legacy_telemetry_path):
        with pytest.raises(WorkerStateError) as refusal:
            function(worker_id)
        assert refusal.value.member == "worker_id"


@pytest.mark.parametrize("bits", [-1, 9])
def test_shard_bits_out_of_range(bits: int) -> None:
    with pytest.raises(WorkerStateError):
        shard_label("worker-1", shard_bits=bits)
