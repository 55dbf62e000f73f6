from __future__ import annotations

import json
from dataclasses import replace
from typing import Literal

import pytest
from hive_support import STATUS, admitted, finish, new_hive, raw_grant, result_line

from ticket_agent.hive.reference import DEFAULT, STRICT_A, LabError, Phase, ReferenceHive, RefusalError
from ticket_agent.protocol.shard import telemetry_path
from ticket_agent.protocol.worker_state import newest_worker_state, parse_worker_state, ready_refusal


def sequences(hive: ReferenceHive, worker_id: str) -> list[tuple[str, list[int]]]:
    lines = hive.tail(telemetry_path(worker_id))
    return [(record["state"], record["sequence"]) for record in map(json.loads, lines)]


def test_a_ticket_seen_through_telemetry() -> None:
    hive = new_hive()
    worker = hive.spawn_worker("worker-gpu", ready=False).worker_id
    hive.move_worker(worker, Phase.STARTING)
    hive.ls("/")
    hive.move_worker(worker, Phase.READY)
    assert sequences(hive, worker)[-1] == ("ready", [1, 0, 0, 0])
    hive.submit(raw_grant(hive, worker, "t-1", "lease-1"))
    hive.hold_receipts()
    finish(hive, "t-1")
    assert sequences(hive, worker)[-1] == ("ready", [1, 1, 0, 0])
    assert hive.complete_receipts() == 1
    assert hive.complete_receipts() == 0
    hive.tear_down(worker)
    assert sequences(hive, worker) == [
        ("queued", [0, 0, 0, 0]),
        ("starting", [0, 0, 0, 0]),
        ("ready", [1, 0, 0, 0]),
        ("ready", [1, 1, 0, 0]),
        ("closing", [1, 0, 1, 1]),
        ("terminal", [1, 0, 1, 1]),
    ]


def test_changes_between_sync_points_collapse_and_nothing_changes_without_one() -> None:
    hive = new_hive()
    worker = hive.spawn_worker("worker-gpu").worker_id
    assert sequences(hive, worker) == [("queued", [0, 0, 0, 0]), ("ready", [1, 0, 0, 0])]
    hive.ls("/")
    assert len(sequences(hive, worker)) == 2


def test_by_default_a_worker_answers_at_the_next_sync_point() -> None:
    hive = new_hive()
    worker = hive.spawn_worker("worker-gpu").worker_id
    hive.submit(raw_grant(hive, worker, "t-1", "lease-1"))
    finish(hive, "t-1")
    assert hive.worker(worker).control_sequence == 1
    hive.ls("/shard")
    state = hive.worker(worker)
    assert (state.control_sequence, state.receipt_sequence, state.completion_sequence) == (0, 1, 1)


def test_identities_only_grow() -> None:
    hive = new_hive()
    first = hive.spawn_worker("worker-gpu")
    second = hive.spawn_worker("worker-gpu")
    lora = hive.spawn_worker("worker-lora")
    assert [worker.worker_id for worker in (first, second, lora)] == ["worker-1", "worker-2", "worker-3"]
    assert [worker.slot for worker in (first, second, lora)] == [0, 1, 0]
    assert [worker.supervisor_generation for worker in (first, second, lora)] == [4, 5, 6]
    again = hive.replace_worker("worker-1")
    assert (again.slot, again.lease_epoch, again.cap_generation, again.supervisor_generation) == (0, 2, 2, 7)
    assert (again.ready_sequence, again.receipt_sequence) == (1, 0)
    hive.tear_down("worker-2")
    third = hive.spawn_worker("worker-gpu")
    assert (third.worker_id, third.slot, third.lease_epoch) == ("worker-4", 1, 2)
    terminal = hive.worker("worker-2")
    assert (terminal.state, terminal.slot, terminal.lease_epoch) == ("terminal", 1, 1)


@pytest.mark.parametrize("phase", list(Phase))
def test_phases_only_move_forward(phase: Phase) -> None:
    hive = new_hive()
    hive.spawn_worker("worker-gpu", "w-1", ready=False)
    for step in (Phase.STARTING, Phase.READY, Phase.CLOSING, Phase.FAULTED, Phase.TERMINAL):
        hive.move_worker("w-1", step)
    before = hive.worker("w-1")
    with pytest.raises(LabError):
        hive.move_worker("w-1", phase)
    assert hive.worker("w-1") == before


def test_a_worker_cannot_be_ready_without_starting() -> None:
    hive = new_hive()
    hive.spawn_worker("worker-gpu", "w-1", ready=False)
    with pytest.raises(LabError, match="queued to ready"):
        hive.move_worker("w-1", Phase.READY)


def test_what_the_lab_cannot_do() -> None:
    hive = new_hive()
    hive.spawn_worker("worker-gpu", "w-1")
    with pytest.raises(LabError, match="alive"):
        hive.spawn_worker("worker-gpu", "w-1")
    with pytest.raises(LabError, match="choose another"):
        hive.spawn_worker("worker-gpu", "w_1")
    with pytest.raises(LabError, match="w-9"):
        hive.worker("w-9")
    with pytest.raises(RefusalError, match="invalid-payload"):
        hive.spawn_worker("worker-tpu")


def test_the_first_root_has_one_slot_per_role() -> None:
    hive = new_hive(STRICT_A)
    hive.spawn_worker("worker-gpu")
    with pytest.raises(RefusalError, match="busy"):
        hive.spawn_worker("worker-gpu")
    assert hive.spawn_worker("worker-lora").slot == 0
    hive.tear_down("worker-1")
    assert hive.spawn_worker("worker-gpu").slot == 0


def test_shards_list_published_workers_only() -> None:
    hive = new_hive()
    assert hive.ls("/shard") == []
    hive.spawn_worker("worker-gpu")
    hive.spawn_worker("worker-gpu", "worker-gpu-1")
    hive.spawn_worker("worker-gpu", "hidden", ready=False)
    assert hive.ls("/shard") == ["13", "05"]
    assert hive.ls("/shard/13") == hive.ls("/shard/aa") == ["worker"]
    assert hive.ls("/shard/13/worker") == ["worker-1"]
    assert hive.ls("/shard/aa/worker") == []
    assert hive.ls("/shard/13/worker/worker-1") == hive.ls("/worker/worker-1") == ["telemetry"]
    assert hive.ls("/worker") == ["worker-1", "worker-gpu-1"]
    for path in ("/shard/13/worker/worker-gpu-1", "/shard/5", "/shard/AA", "/worker/hidden"):
        with pytest.raises(RefusalError, match="invalid-path"):
            hive.ls(path)


def test_more_than_64_workers_list_the_newest() -> None:
    hive = new_hive(replace(DEFAULT, slots_per_role=100))
    for _ in range(70):
        hive.spawn_worker("worker-gpu")
    assert hive.ls("/worker") == [f"worker-{number}" for number in range(7, 71)]


def test_telemetry_paths() -> None:
    hive = new_hive()
    hive.spawn_worker("worker-gpu")
    assert telemetry_path("worker-1") == "/shard/13/worker/worker-1/telemetry"
    lines = hive.tail("/shard/13/worker/worker-1/telemetry")
    assert lines == hive.tail("/worker/worker-1/telemetry")
    for path in ("/shard/14/worker/worker-1/telemetry", "/worker/worker-2/telemetry"):
        with pytest.raises(RefusalError, match="invalid-path"):
            hive.tail(path)
    with pytest.raises(RefusalError, match="invalid-path"):
        hive.cat("/worker/worker-1/telemetry")
    newest = new_hive(replace(DEFAULT, telemetry_cat=True))
    newest.spawn_worker("worker-gpu")
    assert newest.cat("/worker/worker-1/telemetry") == newest.tail("/worker/worker-1/telemetry")


@pytest.mark.parametrize("schema", ["v1", "v2"])
def test_the_agent_can_read_ready_after_the_ring_has_wrapped(schema: Literal["v1", "v2"]) -> None:
    hive = new_hive(replace(DEFAULT, worker_state_schema=schema))
    worker = hive.spawn_worker("worker-gpu").worker_id
    for number in range(1, 13):
        hive.submit(raw_grant(hive, worker, f"t-{number}", f"lease-{number}"))
        lines = hive.tail(telemetry_path(worker))
        assert ready_refusal(newest_worker_state(lines, worker), admitted(hive, f"t-{number}")) is None
        finish(hive, f"t-{number}")
    assert sum(len(line) + 1 for line in lines) <= 1024
    assert json.loads(lines[-1])["schema"] == f"worker-runtime-state/{schema}"
    with pytest.raises(json.JSONDecodeError):
        json.loads(lines[0])
    assert parse_worker_state(lines[-1]).ready_sequence == 1


def test_foreign_text_is_added_raw_and_a_joined_line_over_256_bytes_hides_everything() -> None:
    hive = new_hive()
    worker = hive.spawn_worker("worker-gpu").worker_id
    path = telemetry_path(worker)
    assert hive.echo(path, " beat ") == 4
    hive.echo(path, "beat")
    assert hive.tail(path)[-1] == "beatbeat"
    hive.echo(path, "x" * 250)
    with pytest.raises(RefusalError) as refused:
        hive.tail(path)
    assert refused.value.line("TAIL", path) == (
        f"ERR TAIL reason=quota detail=buffer-full path={path} error=buffer full"
    )
    hive.tear_down(worker)
    with pytest.raises(RefusalError, match="denied"):
        hive.echo(path, "beat")


def test_a_worker_torn_down_with_a_control_in_flight_never_answers_it() -> None:
    hive = new_hive()
    worker = hive.spawn_worker("worker-gpu").worker_id
    hive.submit(raw_grant(hive, worker, "t-1", "lease-1"))
    hive.hold_receipts()
    hive.echo(STATUS, result_line(admitted(hive, "t-1")))
    hive.tear_down(worker)
    assert hive.complete_receipts() == 0
    assert hive.worker(worker).receipt_sequence == 0
