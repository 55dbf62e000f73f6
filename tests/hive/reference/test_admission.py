from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hive_support import (
    DEADLETTER,
    SNAPSHOT,
    SPEC,
    ManualClock,
    admitted,
    finish,
    new_hive,
    raw_grant,
    raw_ticket,
)

from ticket_agent.hive.reference import DEFAULT, STRICT_A, Phase, ReferenceHive, RefusalError
from ticket_agent.protocol.current import correlation_digest, current_path, parse_current
from ticket_agent.protocol.spec import parse_spec

INVALID = f"ERR ECHO reason=policy detail=invalid-payload path={SPEC} error=invalid payload"
BUSY = f"ERR ECHO reason=busy detail=busy path={SPEC} error=busy"
FULL = f"ERR ECHO reason=quota detail=buffer-full path={SPEC} error=buffer full"
EPERM = "ERR ECHO reason=policy detail=denied path={} error=EPERM"
NO_PATH = "ERR ECHO reason=policy detail=invalid-path path={} error=invalid path"


def refusal(hive: ReferenceHive, line: str, path: str = SPEC, role: str = "queen") -> str:
    with pytest.raises(RefusalError) as refused:
        hive.echo(path, line, role=role)
    return refused.value.line("ECHO", path)


def untouched(hive: ReferenceHive) -> tuple[object, ...]:
    return (hive.cat(SPEC), hive.cat(SNAPSHOT), hive.admissions(), hive.appended(SPEC))


def test_an_admission_appends_the_canonical_request_and_its_resolution() -> None:
    hive = new_hive()
    worker = hive.spawn_worker("worker-gpu")
    line = raw_grant(hive, worker, "t-1", "lease-1", priority=1, ttl_s=30, expires=99)
    members = json.loads(line)
    scrambled = json.dumps(dict(reversed(members.items())), indent=None)
    hive.submit(f"  {scrambled}  ")
    canonical = line.replace('"args":{"priority":1,"ttl_s":30}', '"args":{"priority":1,"ttl_s":30}')
    assert hive.cat(SPEC) == [canonical]
    tail = ',"resolved_worker_slot":0,"resolved_lease_epoch":1,"admission_sequence":1}'
    assert hive.cat(SNAPSHOT) == [canonical[:-1] + tail]
    assert hive.tail(SNAPSHOT) == hive.cat(SNAPSHOT)
    assert parse_spec(hive.cat(SNAPSHOT)[0].encode(), source="admitted").admitted


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/host/tickets/spec.snapshot", EPERM),
        ("/host/tickets/status.snapshot", EPERM),
        ("/host/systemd/status", EPERM),
        ("/host/tickets/retention", NO_PATH),
        ("/host/tickets/current/" + "0" * 64, NO_PATH),
        ("/host/tickets/admission/1", NO_PATH),
        ("/host/tickets/other", NO_PATH),
        ("/host/tickets/spec/x", NO_PATH),
        ("/host/systemd/restart", NO_PATH),
        ("/host", NO_PATH),
        ("/host/tickets", NO_PATH),
    ],
)
def test_paths_that_take_no_appends(path: str, answer: str) -> None:
    hive = new_hive()
    assert refusal(hive, "{}", path) == answer.format(path)


def test_the_role_is_checked_before_everything_but_the_path() -> None:
    hive = new_hive()
    hive.set_lifecycle("OFFLINE")
    for path in (SPEC, SNAPSHOT, DEADLETTER):
        assert refusal(hive, "", path, role="worker-gpu") == EPERM.format(path)
    assert refusal(hive, "", "/host/tickets/none", role="worker-gpu") == NO_PATH.format("/host/tickets/none")


def changed(**changes: Any) -> Any:
    return pytest.param(changes, id=",".join(f"{name}={value}"[:40] for name, value in changes.items()))


@pytest.mark.parametrize(
    "changes",
    [
        changed(schema="host-ticket/v3"),
        changed(schema=2),
        changed(schema=None),
        changed(id="-dash"),
        changed(id="a" * 129),
        changed(id=" a "),
        changed(action="gpu.lease.preempt"),
        changed(action="systemd.start"),
        changed(args=None),
        changed(args=[]),
        changed(args={"ttl_s": "30"}),
        changed(args={"ttl_s": 0}),
        changed(args={"mem_mb": 1}),
        changed(expires_unix_ms=0),
        changed(receipt_mode="none"),
        changed(receipt_mode=None),
        changed(operation_id=None),
        changed(subject_ref="GPU-9"),
        changed(subject_ref="bridge"),
        changed(receipt_worker_role="worker-lora"),
        changed(receipt_worker_id="worker-9"),
        changed(receipt_worker_id="w" * 33),
        changed(receipt_supervisor_generation=1),
        changed(receipt_cap_generation=2),
        changed(receipt_cap_generation=0),
        changed(target="/gpu/GPU-0/lease"),
        changed(source_hive="hive-a", target_hive="hive-b"),
        changed(resolved_worker_slot=0),
        changed(resolved_lease_epoch=1),
        changed(admission_sequence=1),
        changed(writer_epoch=1),
    ],
)
def test_requests_the_root_does_not_admit(changes: dict[str, Any]) -> None:
    hive = new_hive()
    worker = hive.spawn_worker("worker-gpu")
    before = untouched(hive)
    assert refusal(hive, raw_grant(hive, worker, "t-1", "lease-1", changes=changes)) == INVALID
    assert untouched(hive) == before
    hive.submit(raw_grant(hive, worker, "t-1", "lease-1"))


def test_members_the_root_does_not_know_are_refused_even_as_null() -> None:
    hive = new_hive()
    worker = hive.spawn_worker("worker-gpu")
    line = raw_grant(hive, worker, "t-1", "lease-1")
    assert refusal(hive, line[:-1] + ',"target":null}') == INVALID
    hive.submit(line[:-1] + ',"expires_unix_ms":null}')
    assert hive.cat(SPEC) == [line]


@pytest.mark.parametrize("payload", ["", "   ", "{", "[]", "nonsense", '{"schema":"x"}', '{"id":"t"}'])
def test_payloads_that_are_no_ticket(payload: str) -> None:
    assert refusal(new_hive(), payload) == INVALID


def test_a_version_2_line_must_be_alone() -> None:
    hive = new_hive()
    worker = hive.spawn_worker("worker-gpu")
    lines = [raw_grant(hive, worker, f"t-{number}", f"lease-{number}") for number in (1, 2)]
    assert refusal(hive, "\n".join(lines)) == INVALID
    assert refusal(hive, lines[0] + "\n" + v1_line("t-3")) == INVALID
    hive.submit(lines[0] + "\n\n")


def test_a_line_over_the_bound_is_refused() -> None:
    hive = new_hive(replace(DEFAULT, max_line_bytes=300))
    worker = hive.spawn_worker("worker-gpu")
    line = raw_grant(hive, worker, "t-1", "lease-1")
    assert len(line) > 300
    assert refusal(hive, line) == INVALID


def test_each_check_in_its_order() -> None:
    """One hive in which everything is wrong at once; each repair uncovers the next check."""
    clock = ManualClock()
    hive = new_hive(replace(DEFAULT, window=2), clock=clock)
    first = hive.spawn_worker("worker-gpu")
    second = hive.spawn_worker("worker-gpu")
    hive.submit(raw_grant(hive, first, "t-1", "lease-1"))
    hive.submit(raw_grant(hive, second, "t-2", "lease-2"))
    unready = hive.spawn_worker("worker-gpu", "w-3", ready=False)
    line = raw_grant(hive, unready, "t-3", "lease-3")

    hive.withdraw_inventory()
    # Inventory before dedupe: even an exact resend is refused.
    assert refusal(hive, raw_grant(hive, first, "t-1", "lease-1")) == INVALID
    assert refusal(hive, line) == INVALID
    hive.publish_inventory(["GPU-0"])
    # Dedupe before the window: the exact resend is acknowledged, a changed one refused.
    before = untouched(hive)
    hive.submit(raw_grant(hive, first, "t-1", "lease-1"))
    assert untouched(hive) == before
    assert refusal(hive, raw_grant(hive, first, "t-1", "lease-1", ttl_s=1)) == INVALID
    # The window is full of open admissions, before any look at the Worker.
    assert (
        refusal(hive, raw_grant(hive, "worker-1", "t-3", "x", changes={"receipt_worker_id": "nobody"}))
        == BUSY
    )
    assert refusal(hive, line) == BUSY
    finish(hive, "t-2")
    # An unknown Worker comes before exclusivity, exclusivity before readiness.
    assert (
        refusal(hive, raw_grant(hive, first, "t-3", "x", changes={"receipt_worker_id": "nobody"})) == INVALID
    )
    hive.tear_down(first.worker_id)
    assert refusal(hive, raw_grant(hive, first, "t-4", "lease-4")) == BUSY
    assert refusal(hive, line) == INVALID
    hive.move_worker("w-3", Phase.STARTING)
    hive.move_worker("w-3", Phase.READY)
    hive.submit(line)
    assert [view.key[0] for view in hive.admissions()] == ["t-1", "t-2", "t-3"]


def test_a_request_that_no_log_can_hold_takes_no_number_and_retires_nobody() -> None:
    hive = new_hive(replace(DEFAULT, window=1, log_bytes=520))
    worker = hive.spawn_worker("worker-gpu")
    first = raw_grant(hive, worker, "t-1", "lease-1")
    hive.submit(first)
    finish(hive, "t-1", message=None)
    long = raw_grant(hive, worker, "t" * 128, "lease-2", key="k" * 128)
    before = untouched(hive)
    assert refusal(hive, long) == FULL
    assert untouched(hive) == before
    hive.submit(first)
    assert untouched(hive) == before
    hive.submit(raw_grant(hive, worker, "t-3", "lease-3"))
    assert [(view.sequence, view.retired) for view in hive.admissions()] == [(1, True), (2, False)]


def test_an_exact_resend_is_acknowledged_without_any_effect_even_when_terminal() -> None:
    hive = new_hive()
    worker = hive.spawn_worker("worker-gpu")
    line = raw_grant(hive, worker, "t-1", "lease-1", ttl_s=30)
    hive.submit(line)
    finish(hive, "t-1")
    before = untouched(hive)
    hive.tear_down(worker.worker_id)
    hive.submit(json.dumps(json.loads(line), indent=None))
    assert untouched(hive) == before


def test_another_key_is_another_ticket() -> None:
    hive = new_hive()
    for number, (ticket_id, key) in enumerate([("a", "k"), ("a", "l"), ("b", "k")], start=1):
        worker = hive.spawn_worker("worker-gpu")
        hive.submit(raw_grant(hive, worker, ticket_id, f"lease-{number}", key=key))
    assert [view.key for view in hive.admissions()] == [("a", "k"), ("a", "l"), ("b", "k")]


def test_one_open_admission_per_worker() -> None:
    hive = new_hive()
    worker = hive.spawn_worker("worker-gpu")
    other = hive.spawn_worker("worker-gpu")
    hive.submit(raw_grant(hive, worker, "t-1", "lease-1"))
    assert refusal(hive, raw_grant(hive, worker, "t-2", "lease-2")) == BUSY
    hive.submit(raw_grant(hive, other, "t-3", "lease-3"))
    hive.hold_receipts()
    finish(hive, "t-1")
    # The control is still in flight.
    assert refusal(hive, raw_grant(hive, worker, "t-2", "lease-2")) == BUSY
    hive.complete_receipts()
    hive.submit(raw_grant(hive, worker, "t-2", "lease-2"))
    assert [view.sequence for view in hive.admissions()] == [1, 2, 3]


def test_an_open_admission_of_a_replaced_worker_does_not_block_the_new_one() -> None:
    hive = new_hive()
    worker = hive.spawn_worker("worker-gpu")
    hive.submit(raw_grant(hive, worker, "t-1", "lease-1"))
    again = hive.replace_worker(worker.worker_id)
    assert refusal(hive, raw_grant(hive, worker, "t-2", "lease-2")) == INVALID
    hive.submit(raw_grant(hive, again, "t-2", "lease-2"))
    assert admitted(hive, "t-2").resolved_lease_epoch == 2


def test_the_oldest_terminal_admission_is_retired_and_may_come_again() -> None:
    hive = new_hive(replace(DEFAULT, window=3))
    workers = [hive.spawn_worker("worker-gpu") for _ in range(4)]
    lines = [raw_grant(hive, worker, f"t-{n}", f"lease-{n}") for n, worker in enumerate(workers)]
    for line in lines[:3]:
        hive.submit(line)
    finish(hive, "t-2")
    finish(hive, "t-1")
    hive.submit(lines[3])
    assert [(view.key[0], view.retired) for view in hive.admissions()] == [
        ("t-0", False),
        ("t-1", True),
        ("t-2", False),
        ("t-3", False),
    ]
    with pytest.raises(RefusalError, match="invalid-path"):
        hive.cat(current_path("t-1", "key-t-1"))
    hive.submit(lines[1])
    assert [view.key[0] for view in hive.admissions()] == ["t-0", "t-1", "t-2", "t-3", "t-1"]


def test_the_full_window_of_the_first_root_stays_full() -> None:
    hive = new_hive(replace(STRICT_A, window=2))
    worker = hive.spawn_worker("worker-gpu")
    for number in (1, 2):
        hive.submit(raw_grant(hive, worker, f"t-{number}", f"lease-{number}"))
        finish(hive, f"t-{number}")
    assert refusal(hive, raw_grant(hive, worker, "t-3", "lease-3")) == BUSY


def test_the_first_root_has_no_exclusivity_and_jumps_over_numbers() -> None:
    hive = new_hive(STRICT_A)
    gpu = hive.spawn_worker("worker-gpu")
    lora = hive.spawn_worker("worker-lora")
    for number in range(1, 4):
        hive.submit(raw_grant(hive, gpu, f"t-{number}", f"lease-{number}"))
    assert [view.sequence for view in hive.admissions()] == [1, 2, 3]
    finish(hive, "t-3")
    hive.submit(raw_ticket(lora, "peft.activate", ticket_id="t-4", operation_id="op-4", subject="model-1"))
    assert admitted(hive, "t-4").admission_sequence == 4


def test_numbers_of_the_first_root_exceed_the_workers_last_control() -> None:
    hive = new_hive(replace(DEFAULT, dense_sequence=False))
    worker = hive.spawn_worker("worker-gpu")
    hive._root.workers.get(worker.worker_id).last_control = 7  # type: ignore[union-attr]
    hive.submit(raw_grant(hive, worker, "t-1", "lease-1"))
    other = hive.spawn_worker("worker-gpu")
    hive.submit(raw_grant(hive, other, "t-2", "lease-2"))
    assert [view.sequence for view in hive.admissions()] == [8, 9]


def test_the_logs_of_the_first_root_fill_up_for_ever() -> None:
    hive = new_hive(STRICT_A)
    worker = hive.spawn_worker("worker-gpu")
    for number in range(1, 22):
        hive.submit(raw_grant(hive, worker, f"t-{number:02}", f"lease-{number:02}", ttl_s=30))
    assert len(hive.cat(SNAPSHOT)[0]) > 352
    line = raw_grant(hive, worker, "t-22", "lease-22", ttl_s=30)
    assert refusal(hive, line) == refusal(hive, line) == FULL
    assert len(hive.cat(SNAPSHOT)) == 21
    assert hive.admissions()[-1].sequence == 21


def test_the_gpu_inventory_lapses() -> None:
    clock = ManualClock()
    hive = new_hive(clock=clock)
    worker = hive.spawn_worker("worker-gpu")
    hive.publish_inventory(["GPU-5"], ttl_ms=15000)
    assert refusal(hive, raw_grant(hive, worker, "t-1", "lease-1", "GPU-0")) == INVALID
    clock.advance(14999)
    line = raw_grant(hive, worker, "t-1", "lease-1", "GPU-5")
    hive.submit(line)
    clock.advance(1)
    assert refusal(hive, line) == INVALID
    assert hive.cat("/gpu/bridge/status") == ["state=unavailable reason=expired"]


def test_peft_subjects_are_not_checked_and_maximal_lines_fit() -> None:
    hive = new_hive()
    worker = hive.spawn_worker("worker-lora", "w" * 32)
    args = {
        "adapter_ref": "a" * 128,
        "job_id": "j" * 128,
        **dict.fromkeys(("adapter_sha256", "lora_sha256", "metrics_sha256"), "0" * 64),
    }
    for number in range(10):
        line = raw_ticket(
            worker,
            "peft.import",
            ticket_id=f"{number}" * 128,
            operation_id="o" * 128,
            subject="s" * 128,
            args=args,
            key="k" * 128,
            expires=2**64 - 1,
        )
        hive.submit(line)
        finish(hive, f"{number}" * 128)
    assert [line[34] for line in hive.cat(SNAPSHOT)] == list("3456789")
    assert len(hive.wire("CAT", SNAPSHOT)) == 63


def test_current_follows_a_ticket() -> None:
    hive = new_hive()
    worker = hive.spawn_worker("worker-gpu")
    hive.submit(raw_grant(hive, worker, "t-1", "lease-1"))
    path = current_path("t-1", "key-t-1")

    def seen() -> tuple[str, str, tuple[int, int, int, int]]:
        record = parse_current(hive.cat(path, role="worker-gpu")[0])
        assert (record.worker, record.role, record.admission) == (worker.worker_id, "worker-gpu", 1)
        assert (record.slot, record.lease_epoch) == (worker.slot, worker.lease_epoch)
        counters = (
            record.ready_sequence,
            record.control_sequence,
            record.receipt_sequence,
            record.completion_sequence,
        )
        return record.state, record.lifecycle, counters

    assert seen() == ("pending", "ready", (1, 0, 0, 0))
    hive.hold_receipts()
    finish(hive, "t-1")
    # Confirmed as soon as the control was submitted, before the Worker completed it.
    assert seen() == ("confirmed", "ready", (1, 1, 0, 0))
    hive.complete_receipts()
    assert seen() == ("confirmed", "ready", (1, 0, 1, 1))
    hive.tear_down(worker.worker_id)
    assert seen() == ("confirmed", "terminal", (1, 0, 1, 1))
    hive.replace_worker(worker.worker_id)
    assert seen() == ("confirmed", "absent", (0, 0, 0, 0))


@pytest.mark.parametrize("name", [correlation_digest("a", "b"), "0" * 63, "G" * 64, "A" * 64])
def test_unknown_current_records(name: str) -> None:
    with pytest.raises(RefusalError, match="invalid-path"):
        new_hive().cat(f"/host/tickets/current/{name}")


def test_admissions_can_be_fetched_again_where_the_root_offers_it() -> None:
    hive = new_hive(replace(DEFAULT, admission_refetch=True))
    worker = hive.spawn_worker("worker-gpu")
    hive.submit(raw_grant(hive, worker, "t-1", "lease-1"))
    line = hive.cat(SNAPSHOT)
    hive.slide(SNAPSHOT, 1)
    assert hive.cat(SNAPSHOT) == []
    assert hive.cat("/host/tickets/admission/1") == line
    assert hive.wire("CAT", "/host/tickets/admission/1")[0].startswith("C1:0000:")
    with pytest.raises(RefusalError, match="EPERM"):
        hive.cat("/host/tickets/admission/1", role="worker-gpu")
    for number in ("01", "+1", "2", "x", "1" * 21):
        with pytest.raises(RefusalError, match="invalid-path"):
            hive.cat(f"/host/tickets/admission/{number}")
    with pytest.raises(RefusalError, match="invalid-path"):
        new_hive().cat("/host/tickets/admission/1")


def v1_line(ticket_id: str, action: str = "systemd.restart", **changes: Any) -> str:
    members = {
        "schema": "host-ticket/v1",
        "id": ticket_id,
        "idempotency_key": f"key-{ticket_id}",
        "action": action,
        "target": "/host/systemd/ssh.service/restart",
        **changes,
    }
    return json.dumps({name: value for name, value in members.items() if value is not None})


def test_version_1_lines_are_stored_as_sent_and_only_in_spec() -> None:
    hive = new_hive()
    hive.submit(f" {v1_line('t-1')} \n\n{v1_line('t-2')}")
    assert hive.cat(SPEC) == [v1_line("t-1"), v1_line("t-2")]
    assert hive.cat(SNAPSHOT) == []
    hive.submit(v1_line("t-1"))
    assert hive.appended(SPEC) == 3
    assert hive.admissions() == []


@pytest.mark.parametrize(
    "changes",
    [
        changed(action="gpu.lease.grant"),
        changed(action="peft.import"),
        changed(action="rm.rf"),
        changed(target="  "),
        changed(expires_unix_ms=0),
        changed(receipt_mode="worker"),
        changed(operation_id="op"),
        changed(source_hive="hive-a"),
        changed(source_hive="hive-a", target_hive="hive-b", relay_hop=33),
        changed(surprise=1),
    ],
)
def test_version_1_lines_the_root_refuses_take_the_whole_payload_with_them(changes: dict[str, Any]) -> None:
    hive = new_hive()
    line = v1_line("t-1", **{"action": "systemd.restart", **changes})
    assert refusal(hive, v1_line("t-0") + "\n" + line) == INVALID
    assert hive.cat(SPEC) == []


def test_a_root_from_before_receipts_takes_version_1_leases() -> None:
    hive = new_hive(replace(DEFAULT, accept_v1_lease_actions=True))
    line = v1_line("t-1", "gpu.lease.grant", target="/gpu/GPU-0/lease", args={"mem_mb": 1})
    hive.submit(line)
    assert hive.cat(SPEC) == [line]
