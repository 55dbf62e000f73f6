"""Every entry of the conformance vectors, and proof that none is left aside silently."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from vector_files import TICKETS, load

from ticket_agent.protocol import (
    ProtocolError,
    SpecError,
    build_result,
    correlation_digest,
    current_path,
    decode_lines,
    encode_current,
    encode_line,
    newest_worker_state,
    parse_args,
    parse_current,
    parse_result,
    parse_spec,
    parse_worker_state,
    ready_refusal,
    request_tag,
    shard_label,
    single_line,
    telemetry_path,
    truncate_utf8,
)

if TYPE_CHECKING:
    from ticket_agent.protocol import HostTicketSpec

UNUSED = {
    "lane_gpu_lease_1": "numbers a fixed set of threads; here one thread orders by resource name",
    "relay_legacy_wal": "write-ahead log of the federation relay, which this agent does not run",
}
RESULTS = (
    "result_v2_representative_506",
    "result_v2_maximal_1467",
    "lib_fixture_claimed",
    "lib_fixture_running",
    "lib_fixture_succeeded",
    "lib_fixture_expired",
)
COMPACTIONS = ("v1_compaction_claimed", "v1_compaction_running", "v1_compaction_succeeded")
TESTED = {
    *RESULTS,
    *COMPACTIONS,
    "result_v2_tamper_state",
    "spec_v2_maximal_raw_1422",
    "spec_v2_maximal_admitted_1537",
    "lib_fixture_lines",
    "shard_label_worker_1",
    "current_record",
    "lease_request_tag",
    "c1_representative_506",
    "c1_emoji_300",
    "c1_test_shapes",
    "relay_payload_compact",
    "text_bounds",
    "v1_specs",
    "v2_claim_fixture",
    "peft_release_args",
}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def admitted(document: dict[str, Any]) -> HostTicketSpec:
    return parse_spec(json.dumps(document).encode(), source="admitted")


def test_every_vector_is_tested_or_named_as_unused() -> None:
    assert set(TICKETS) == TESTED | set(UNUSED)
    assert not TESTED & set(UNUSED)


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_built_to_the_byte(name: str) -> None:
    vector = TICKETS[name]
    spec = admitted(vector["input_admitted_spec"])
    line = build_result(spec, state=vector["state"], message=vector["message"], max_line_bytes=2048)
    result = parse_result(line)
    assert len(line) == vector["line_len"]
    assert result.result_digest == vector["result_digest"]
    assert line == vector.get("line", line.decode()).encode()
    assert sha256(line) == vector.get("line_sha256", sha256(line))
    assert result.echoes(spec)
    assert result.encode() == line


def test_the_digest_is_over_the_line_without_its_last_member() -> None:
    vector = TICKETS["result_v2_representative_506"]
    hashed = vector["hashed_bytes"].encode()
    assert len(hashed) == vector["hashed_len"] == 423
    assert sha256(hashed) == "730b822b8b3497f4ac21e3aaddf3d5f89411b95ddc05083268725dad2fb620b0"
    assert vector["line"] == vector["hashed_bytes"][:-1] + f',"result_digest":"{sha256(hashed)}"}}'


def test_a_tampered_result_is_refused() -> None:
    with pytest.raises(ProtocolError) as refusal:
        parse_result(TICKETS["result_v2_tamper_state"]["line"].encode())
    assert refusal.value.code == "result-digest"


@pytest.mark.parametrize(
    ("name", "source"), [("spec_v2_maximal_raw_1422", "raw"), ("spec_v2_maximal_admitted_1537", "admitted")]
)
def test_maximal_requests(name: str, source: Any) -> None:
    vector = TICKETS[name]
    spec = parse_spec(json.dumps(vector["spec"]).encode(), source=source)
    assert len(spec.encode()) == vector["line_len"]
    assert sha256(spec.encode()) == vector["line_sha256"]


def test_the_fixture_lines_raw_admitted_and_ready() -> None:
    vector = TICKETS["lib_fixture_lines"]
    raw = parse_spec(vector["raw_line"].encode(), source="raw")
    snapshot = parse_spec(vector["admitted_line"].encode(), source="admitted")
    assert raw.encode().decode() == vector["raw_line"]
    assert len(raw.encode()) == vector["raw_len"] == 321
    assert snapshot.encode().decode() == vector["admitted_line"]
    assert len(snapshot.encode()) == vector["admitted_len"] == 394
    assert raw.admit(slot=0, lease_epoch=4, admission_sequence=5) == snapshot
    assert snapshot.journal_key == vector["journal_key"]
    state = newest_worker_state([vector["telemetry_line"]], "gpu-worker-1")
    assert ready_refusal(state, snapshot) is None


def test_root_stores_the_fixture_under_these_digests() -> None:
    # Root side, admission: the same lines with the Worker worker-gpu-1.
    vector = TICKETS["result_v2_representative_506"]
    snapshot = admitted(vector["input_admitted_spec"])
    raw = replace(snapshot, resolved_worker_slot=None, resolved_lease_epoch=None, admission_sequence=None)
    assert sha256(raw.encode()) == "778582e5cbccf9a7dcae7c967eab1a3deb24a6bca3dc6419200dd2ef45ead7dc"
    assert sha256(snapshot.encode()) == "fbf06af0ccff5383684515b0b433f9b68ccfb68c8052ba3a20686c54aea65896"


def test_shards() -> None:
    vector = TICKETS["shard_label_worker_1"]
    assert shard_label(vector["worker_id"]) == vector["sha256_first_byte"]
    assert telemetry_path(vector["worker_id"]) == vector["telemetry_path"]
    assert shard_label("worker-gpu-1") == "05"


def test_current_record() -> None:
    vector = TICKETS["current_record"]
    assert current_path("ticket-v2", "idem-v2") == vector["path"]
    assert vector["path"].endswith(correlation_digest("ticket-v2", "idem-v2"))
    current = parse_current(vector["line"])
    assert encode_current(current) == vector["line"]
    identity = (current.slot, current.lease_epoch, current.supervisor_generation, current.cap_generation)
    assert identity == (0, 4, 2, 3)
    assert (current.state, current.ready_sequence, current.admission) == ("pending", 1, 5)


def test_lease_request_tag() -> None:
    vector = TICKETS["lease_request_tag"]
    assert request_tag(vector["idempotency_key"]) == vector["tag"]


def test_c1_of_the_representative_result() -> None:
    # The vector fills frames to the arithmetic maximum of 178 payload bytes. Emitters fill 176,
    # decoders take both.
    vector = TICKETS["c1_representative_506"]
    assert [len(frame) for frame in vector["chunks"]] == vector["wire_lens"] == [256, 256, 228]
    assert decode_lines(vector["chunks"]) == [vector["line"]]
    frames = encode_line(vector["line"])
    assert [len(frame) for frame in frames] == [254, 254, 232]
    assert decode_lines(frames) == [vector["line"]]


def test_c1_of_four_byte_characters() -> None:
    vector = TICKETS["c1_emoji_300"]
    text = vector["json"]
    assert len(text.encode()) == vector["json_bytes"]
    frames = encode_line(text)
    assert sum(len(frame.encode()) for frame in frames) == vector["json_bytes"] + 78 * len(frames)
    assert max(len(frame.encode()) for frame in frames) <= 254
    assert all(frame.split(":")[3] == vector["sha256"] for frame in frames)
    assert decode_lines(frames) == [text]


def test_c1_shapes() -> None:
    accepted, *refused = TICKETS["c1_test_shapes"]["cases"]
    frames = _frames("x" * 500, accepted["chunk"])
    assert accepted["ok"]
    assert len(frames) == accepted["groups"]
    assert decode_lines(frames, max_record_bytes=2048) == ["x" * 500]
    broken = [
        frames[:-1],
        [frames[0], frames[2], frames[1], *frames[3:]],
        [frames[0], frames[1], frames[1], *frames[2:]],
        [frames[0], frames[1][:13] + "0" * 64 + frames[1][77:], *frames[2:]],
        _frames("x" * 2049, 96),
        [frames[0][:3] + "000A" + frames[0][7:], *_frames("x" * 300, 96)[1:]],
    ]
    assert len(broken) == len(refused)
    for lines, case in zip(broken, refused, strict=True):
        assert not case["ok"]
        with pytest.raises(ProtocolError):
            decode_lines(lines, max_record_bytes=2048)


def _frames(text: str, chunk: int) -> list[str]:
    parts = [text[start : start + chunk] for start in range(0, len(text), chunk)]
    digest = sha256(text.encode())
    return [f"C1:{number:04x}:{len(parts):04x}:{digest}:{part}" for number, part in enumerate(parts)]


@pytest.mark.parametrize("name", COMPACTIONS)
def test_v1_results_are_compacted(name: str) -> None:
    # "step" in these vectors counts the rungs from 0; what counts is the line.
    vector = TICKETS[name]
    spec = parse_spec(json.dumps(vector["spec"]).encode(), source="raw")
    line = build_result(spec, state=vector["state"], message=vector["message"], max_line_bytes=2048)
    assert line.decode() == vector["line"]
    assert len(line) == vector["line_len"] <= vector["limit"] < vector["uncompacted_len"]
    assert parse_result(line).encode() == line


def test_a_relayed_request_is_compact() -> None:
    vector = TICKETS["relay_payload_compact"]
    spec = parse_spec(json.dumps(vector["input"]).encode(), source="raw")
    assert spec.relay_hop is not None
    payload = replace(spec, relay_hop=spec.relay_hop + 1).encode()
    assert payload.decode() == vector["output"]
    assert len(payload) == vector["output_len"]


def test_text_bounds() -> None:
    vector = TICKETS["text_bounds"]
    for text, max_bytes, expected in vector["truncate_utf8"]:
        assert truncate_utf8(text, max_bytes) == expected
    for text, max_bytes, expected in vector["bounded_single_line"]:
        assert single_line(text, max_bytes) == expected


def test_v1_requests() -> None:
    vector = TICKETS["v1_specs"]
    for line in vector["accept"]:
        assert json.loads(parse_spec(line.encode(), source="raw").encode()) == json.loads(line)
    for line in vector["refuse"]:
        with pytest.raises(SpecError):
            parse_spec(line.encode(), source="raw")
    running, succeeded = (parse_result(line.encode()) for line in vector["terminal_status"])
    assert not running.terminal
    assert succeeded.terminal


def test_v2_requests() -> None:
    vector = TICKETS["v2_claim_fixture"]
    assert not parse_spec(vector["raw_ok"].encode(), source="raw").admitted
    assert parse_spec(vector["admitted_ok"].encode(), source="admitted").admitted
    for line in vector["refuse_as_raw"]:
        with pytest.raises(SpecError):
            parse_spec(line.encode(), source="raw")


def test_release_arguments() -> None:
    vector = TICKETS["peft_release_args"]
    for args in (*vector["accept"], *vector["accept_per_struct"]):
        assert parse_args("peft.release", args).model_dump(exclude_defaults=True) == args
    for args in vector["refuse"]:
        with pytest.raises(SpecError):
            parse_args("peft.release", args)


def test_a_worker_line_of_the_fixture_is_version_1() -> None:
    state = parse_worker_state(TICKETS["lib_fixture_lines"]["telemetry_line"])
    assert (state.worker_id, state.state, state.slot, state.lease_epoch) == ("gpu-worker-1", "ready", 0, 4)


@pytest.mark.parametrize("entry", load("refusals.json"), ids=lambda entry: entry["name"])
def test_refusals(entry: dict[str, Any]) -> None:
    data = bytes.fromhex(entry["line_hex"]) if "line_hex" in entry else entry["line"].encode("utf-8")
    limit = entry.get("max_line_bytes", 2048)
    with pytest.raises(ProtocolError) as refusal:
        _parse(entry["kind"], data, limit)
    error = refusal.value
    assert (error.code, error.member) == (entry["code"], entry["member"])
    assert "\n" not in str(error)
    assert (entry["member"] or "") in str(error)
    assert entry["code"] != "line-too-long" or str(limit) in str(error)


def _parse(kind: Any, data: bytes, limit: int) -> None:
    if kind == "result":
        parse_result(data, max_line_bytes=limit)
    else:
        parse_spec(data, source=kind, max_line_bytes=limit)
