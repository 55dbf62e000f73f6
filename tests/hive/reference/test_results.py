from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hive_support import DEADLETTER, STATUS, admitted, finish, new_hive, raw_grant, result_line

from ticket_agent.hive.reference import DEFAULT, STRICT_A, ReferenceHive, RefusalError
from ticket_agent.protocol.result import build_result

SNAPSHOTS = {STATUS: f"{STATUS}.snapshot", DEADLETTER: f"{DEADLETTER}.snapshot"}


def refusal(hive: ReferenceHive, line: str, path: str = STATUS) -> str:
    with pytest.raises(RefusalError) as refused:
        hive.echo(path, line)
    answer = refused.value.line("ECHO", path)
    assert answer.startswith(
        f"ERR ECHO reason={refused.value.reason} detail={refused.value.detail} path={path}"
    )
    return refused.value.detail


def logs(hive: ReferenceHive) -> dict[str, list[str]]:
    return {path: hive.cat(path) for path in (*SNAPSHOTS, *SNAPSHOTS.values())}


def one_ticket(hive: ReferenceHive) -> str:
    """Admit t-1 for a READY Worker; return the Worker's id."""
    worker = hive.spawn_worker("worker-gpu").worker_id
    hive.submit(raw_grant(hive, worker, "t-1", "lease-1", ttl_s=30))
    return worker


@pytest.mark.parametrize(
    ("state", "outcome"),
    [("succeeded", "confirmed"), ("failed", "rejected"), ("expired", "rejected")],
)
def test_terminal_results_become_receipts(state: str, outcome: str) -> None:
    hive = new_hive()
    one_ticket(hive)
    line = finish(hive, "t-1", state)
    path = STATUS if state == "succeeded" else DEADLETTER
    assert hive.cat(path) == hive.cat(SNAPSHOTS[path]) == [line]
    assert [view.outcome for view in hive.admissions()] == [outcome]
    assert hive.worker("worker-1").control_sequence == 1
    assert hive.terminal_lines(("t-1", "key-t-1")) == [line]


def test_the_same_terminal_result_is_acknowledged_without_an_append_wherever_it_is_sent() -> None:
    hive = new_hive()
    one_ticket(hive)
    line = finish(hive, "t-1")
    before = logs(hive)
    for path in (STATUS, DEADLETTER):
        hive.echo(path, line)
    assert logs(hive) == before
    assert hive.terminal_lines(("t-1", "key-t-1")) == [line]


def test_nothing_but_the_same_result_is_taken_after_a_terminal_one() -> None:
    hive = new_hive()
    one_ticket(hive)
    finish(hive, "t-1")
    spec = admitted(hive, "t-1")
    before = logs(hive)
    for state in ("queued", "claimed", "running", "failed", "expired"):
        assert refusal(hive, result_line(spec, state)) == "invalid-payload"
    assert refusal(hive, result_line(spec, "succeeded", "other words")) == "invalid-payload"
    assert logs(hive) == before


def test_intermediate_results_need_no_order_and_may_repeat_and_stand_in_either_file() -> None:
    hive = new_hive()
    one_ticket(hive)
    spec = admitted(hive, "t-1")
    running, claimed = result_line(spec, "running", None), result_line(spec, "claimed", None)
    for line in (running, claimed, claimed):
        hive.echo(STATUS, line)
    hive.echo(DEADLETTER, running)
    assert hive.cat(STATUS) == [running, claimed, claimed]
    assert hive.cat(DEADLETTER) == [running]
    assert hive.terminal_lines(("t-1", "key-t-1")) == []
    hive.echo(DEADLETTER, result_line(spec, "succeeded"))
    assert hive.admissions()[0].outcome == "confirmed"


def redigested(line: str, **changes: Any) -> str:
    """The line with changed members and a digest that fits them."""
    members = {**json.loads(line), **changes}
    del members["result_digest"]
    kept = {name: value for name, value in members.items() if value is not None}
    body = json.dumps(kept, separators=(",", ":"), ensure_ascii=False)
    return f'{body[:-1]},"result_digest":"{hashlib.sha256(body.encode()).hexdigest()}"}}'


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "t-2"},
        {"idempotency_key": "other"},
        {"action": "gpu.lease.renew"},
        {"operation_id": "lease-2"},
        {"subject_ref": "GPU-1"},
        {"receipt_worker_id": "worker-2"},
        {"receipt_worker_role": "worker-lora"},
        {"receipt_supervisor_generation": 99},
        {"receipt_cap_generation": 99},
        {"resolved_worker_slot": 1},
        {"resolved_lease_epoch": 2},
        {"admission_sequence": 2},
        {"admission_sequence": None},
        {"receipt_mode": "none"},
        {"receipt_mode": None},
        {"state": "done"},
        {"message": ""},
        {"message": "x" * 193},
        {"message": "two\nlines"},
        {"schema": "host-ticket-result/v3"},
        {"target": "x"},
    ],
    ids=str,
)
def test_results_that_do_not_echo_their_admission_are_refused(changes: dict[str, Any]) -> None:
    hive = new_hive()
    one_ticket(hive)
    line = result_line(admitted(hive, "t-1"))
    assert redigested(line) == line
    before = logs(hive)
    assert refusal(hive, redigested(line, **changes)) == "invalid-payload"
    assert logs(hive) == before
    assert hive.admissions()[0].outcome is None
    assert hive.worker("worker-1").control_sequence == 0


def test_a_wrong_digest_is_refused() -> None:
    hive = new_hive()
    one_ticket(hive)
    line = result_line(admitted(hive, "t-1"))
    assert refusal(hive, line.replace('"message":"done"', '"message":"Done"')) == "invalid-payload"
    digest = json.loads(line)["result_digest"]
    assert refusal(hive, line.replace(digest, digest.upper())) == "invalid-payload"
    hive.echo(STATUS, line)


def test_results_of_unknown_tickets_are_refused() -> None:
    hive = new_hive()
    one_ticket(hive)
    line = result_line(admitted(hive, "t-1"))
    hive.reboot()
    one = hive.cat(STATUS)
    assert refusal(hive, line) == "invalid-payload"
    assert hive.cat(STATUS) == one == []


@pytest.mark.parametrize("change", ["tear_down", "replace_worker"])
def test_a_result_is_stale_when_its_worker_is_gone(change: str) -> None:
    hive = new_hive()
    worker = one_ticket(hive)
    getattr(hive, change)(worker)
    line = finish(hive, "t-1")
    assert hive.admissions()[0].outcome == "stale"
    assert hive.cat(STATUS) == [line]
    assert hive.worker(worker).control_sequence == 0
    hive.echo(STATUS, line)
    assert hive.cat(STATUS) == [line]


def test_a_result_waits_for_the_control_in_flight() -> None:
    hive = new_hive(replace(DEFAULT, exclusive_workers=False))
    worker = one_ticket(hive)
    hive.submit(raw_grant(hive, worker, "t-2", "lease-2"))
    hive.hold_receipts()
    finish(hive, "t-1")
    before = logs(hive)
    line = result_line(admitted(hive, "t-2"))
    assert refusal(hive, line) == "busy"
    assert logs(hive) == before
    hive.complete_receipts()
    hive.echo(STATUS, line)
    assert hive.worker(worker).control_sequence == 2


def test_the_first_root_loses_the_earlier_of_two_results_published_out_of_order() -> None:
    hive = new_hive(STRICT_A)
    worker = one_ticket(hive)
    hive.submit(raw_grant(hive, worker, "t-2", "lease-2"))
    finish(hive, "t-2")
    line = result_line(admitted(hive, "t-1"))
    for _ in range(2):
        assert refusal(hive, line) == "invalid-payload"
        hive.ls("/")
    hive.replace_worker(worker)
    hive.echo(STATUS, line)
    assert [view.outcome for view in hive.admissions()] == ["stale", "confirmed"]


def test_full_logs_refuse_a_result_before_any_side_effect() -> None:
    hive = new_hive(replace(DEFAULT, log_frames=3))
    one_ticket(hive)
    line = result_line(admitted(hive, "t-1"), message="x" * 192)
    assert len(line) > 3 * 176
    assert refusal(hive, line) == "buffer-full"
    assert hive.worker("worker-1").control_sequence == 0
    assert hive.admissions()[0].outcome is None


def test_a_result_for_a_retired_admission_is_refused() -> None:
    hive = new_hive(replace(DEFAULT, window=1))
    worker = one_ticket(hive)
    line = finish(hive, "t-1")
    hive.submit(raw_grant(hive, worker, "t-2", "lease-2"))
    assert refusal(hive, line) == "invalid-payload"


def v1_result(**changes: Any) -> str:
    members = {
        "schema": "host-ticket-result/v1",
        "id": "v-1",
        "idempotency_key": "key-v-1",
        "action": "systemd.restart",
        "state": "succeeded",
        "message": "ok",
        **changes,
    }
    return json.dumps({name: value for name, value in members.items() if value is not None})


def test_version_1_results_are_stored_as_sent_for_any_ticket_and_repeatedly() -> None:
    hive = new_hive()
    hive.echo(STATUS, f"{v1_result()}\n{v1_result(state='claimed', message=None)}")
    hive.echo(STATUS, v1_result())
    assert hive.cat(STATUS) == hive.cat(SNAPSHOTS[STATUS])
    assert len(hive.cat(STATUS)) == 3
    assert hive.terminal_lines(("v-1", "key-v-1")) == [v1_result(), v1_result()]


@pytest.mark.parametrize(
    "changes",
    [
        {"message": "  "},
        {"state": "done"},
        {"action": "gpu.lease.grant"},
        {"action": "rm.rf"},
        {"receipt_mode": "worker"},
        {"result_digest": "0" * 64},
        {"surprise": 1},
    ],
    ids=str,
)
def test_version_1_results_the_root_refuses(changes: dict[str, Any]) -> None:
    hive = new_hive()
    assert refusal(hive, v1_result() + "\n" + v1_result(**changes)) == "invalid-payload"
    assert hive.cat(STATUS) == []


def test_a_raw_spec_line_is_no_result() -> None:
    hive = new_hive()
    worker = hive.spawn_worker("worker-gpu")
    assert refusal(hive, raw_grant(hive, worker, "t-1", "lease-1")) == "invalid-payload"


def test_results_are_stored_in_canonical_order() -> None:
    hive = new_hive()
    one_ticket(hive)
    line = build_result(
        admitted(hive, "t-1"), state="succeeded", message="done", max_line_bytes=2048
    ).decode()
    hive.echo(STATUS, json.dumps(dict(reversed(json.loads(line).items()))))
    assert hive.cat(STATUS) == [line]
