from __future__ import annotations

import json
import threading

import pytest
from hive_support import LEASE_CTL, SNAPSHOT, SPEC, STATUS, finish, new_hive, raw_grant

from ticket_agent.hive.reference import Effect, LabError, RefusalError
from ticket_agent.protocol.retention import parse_retention

SPAWN = (
    '{"spawn":"gpu","lease":{"gpu_id":"GPU-0","mem_mb":4096,"streams":1,"ttl_s":120},"budget":{"ttl_s":9}}'
)


def test_a_reboot_forgets_everything_but_what_the_lab_counts() -> None:
    hive = new_hive()
    worker = hive.spawn_worker("worker-gpu")
    hive.submit(raw_grant(hive, worker, "t-1", "lease-1"))
    hive.echo(
        LEASE_CTL,
        '{"op":"grant","id":"lease-1","subject":"worker-1","resource":"GPU-0","ttl_s":9,"priority":0}',
    )
    line = finish(hive, "t-1")
    hive.echo("/queen/ctl", SPAWN)
    hive.echo("/queen/lifecycle/ctl", "cordon")

    hive.reboot()

    assert hive.boots == 2
    assert hive.cat("/proc/lifecycle/state") == ["state=ONLINE"]
    assert hive.cat(SPEC) == hive.cat(SNAPSHOT) == hive.cat(STATUS) == []
    assert hive.admissions() == []
    assert hive.cat("/proc/lease/by-id/lease-1") == hive.ls("/worker") == hive.cat("/gpu/GPU-0/lease") == []
    assert all(record.next == 0 for record in parse_retention(hive.cat("/host/tickets/retention")).values())
    assert hive.ls("/gpu")[-2:] == ["GPU-0", "GPU-1"]
    assert hive.terminal_lines(("t-1", "key-t-1")) == [line]
    assert hive.effect_count("grant", "lease-1") == 1
    assert hive.appended(SNAPSHOT) == 1

    again = hive.spawn_worker("worker-gpu")
    assert again == worker
    hive.submit(raw_grant(hive, again, "t-2", "lease-2"))
    assert [view.sequence for view in hive.admissions()] == [1]


def test_version_1_spawns_reserve_and_kills_release() -> None:
    hive = new_hive()
    hive.echo("/queen/ctl", SPAWN)
    assert hive.worker("worker-1").role == "worker-gpu"
    active = hive.cat("/gpu/GPU-0/lease")
    assert active == hive.tail("/gpu/GPU-0/lease")
    assert json.loads(active[0]) == {
        "schema": "gpu-lease/v1",
        "state": "ACTIVE",
        "gpu_id": "GPU-0",
        "worker_id": "worker-1",
        "mem_mb": 4096,
        "streams": 1,
        "ttl_s": 120,
        "priority": 0,
    }
    hive.echo("/queen/ctl", '{"kill":"worker-1"}')
    assert hive.worker("worker-1").state == "terminal"
    assert json.loads(hive.cat("/gpu/GPU-0/lease")[-1])["state"] == "RELEASED"
    assert hive.effects == {Effect("spawn", "GPU-0", None): 1, Effect("kill", "worker-1", None): 1}
    hive.echo("/queen/ctl", '{"spawn":"heartbeat","ticks":100,"budget":{"ttl_s":120,"ops":500}}')
    assert hive.worker("worker-2").role == "worker-heartbeat"
    assert hive.effect_count("spawn", "worker-heartbeat") == 1


@pytest.mark.parametrize(
    "payload",
    [
        "not-json",
        '{"spawn":"bogus"}',
        "{}",
        '{"kill":"worker-9"}',
        '{"kill":1}',
        '{"kill":"worker-1","spawn":"gpu"}',
        SPAWN.replace("GPU-0", "GPU-9"),
        SPAWN.replace("4096", "0"),
        SPAWN.replace("4096", "4294967296"),
        SPAWN.replace('"streams":1', '"streams":256'),
        SPAWN.replace('"streams":1', '"streams":true'),
        SPAWN.replace(',"ttl_s":120', ""),
        SPAWN.replace('"mem_mb"', '"mem"'),
        SPAWN.replace('"ttl_s":9', '"ttl_s":0'),
        SPAWN.replace('{"ttl_s":9}', "[]"),
        '{"spawn":"gpu"}',
        '{"spawn":"heartbeat","ticks":0}',
        '{"spawn":"heartbeat","lease":{}}',
    ],
)
def test_queen_controls_that_are_refused(payload: str) -> None:
    hive = new_hive()
    with pytest.raises(RefusalError) as refused:
        hive.echo("/queen/ctl", payload)
    assert refused.value.line("ECHO", "/queen/ctl") == (
        "ERR ECHO reason=policy detail=invalid-payload path=/queen/ctl error=invalid payload"
    )
    assert hive.ls("/worker") == []
    assert not hive.effects


def test_only_the_queen_spawns() -> None:
    hive = new_hive()
    for path, payload in (("/queen/ctl", SPAWN), ("/queen/lifecycle/ctl", "cordon")):
        with pytest.raises(RefusalError, match="EPERM"):
            hive.echo(path, payload, role="worker-gpu")
    assert not hive.effects


@pytest.mark.parametrize(
    "path", ["/", "/host/tickets", "/proc/boot", "/worker/w-1/telemetry", "/queen/lease"]
)
def test_nodes_that_take_no_appends(path: str) -> None:
    with pytest.raises(RefusalError, match="invalid-path"):
        new_hive().echo(path, "x")


def test_the_log_takes_text() -> None:
    hive = new_hive()
    hive.spawn_worker("worker-gpu")
    assert hive.echo("/log/queen.log", "  hello  ") == 5
    expected = ["WORKER_TASK_READY worker=worker-1 role=worker-gpu", "hello"]
    assert hive.tail("/log/queen.log") == hive.cat("/kmesg") == expected


def test_text_that_no_console_could_carry_is_refused() -> None:
    with pytest.raises(RefusalError, match="invalid-payload"):
        new_hive().echo(SPEC, '{"schema":"\ud800"}')


def test_lab_mistakes() -> None:
    hive = new_hive()
    with pytest.raises(LabError, match="names no ticket log"):
        hive.slide("/host/tickets/retention", 1)
    with pytest.raises(LabError, match="no ticket 't-1'"):
        hive.admission_of("t-1")
    with pytest.raises(ValueError, match="SLEEPING"):
        hive.set_lifecycle("SLEEPING")


def test_concurrent_submissions_are_numbered_without_gaps() -> None:
    hive = new_hive()
    workers = [hive.spawn_worker("worker-gpu") for _ in range(8)]
    barrier = threading.Barrier(8)

    def submit(number: int) -> None:
        barrier.wait(timeout=20)
        for turn in range(10):
            ticket = f"t-{number}-{turn}"
            hive.submit(raw_grant(hive, workers[number], ticket, f"l-{number}-{turn}"))
            finish(hive, ticket)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [view.sequence for view in hive.admissions()] == list(range(1, 81))
    assert {view.outcome for view in hive.admissions()} == {"confirmed"}
