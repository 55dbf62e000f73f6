from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hive_support import LEASE_CTL, finish, new_hive, raw_grant, raw_release, raw_renew

from ticket_agent.hive.reference import DEFAULT, Effect, ReferenceHive, RefusalError
from ticket_agent.protocol.lease import request_tag

TAG = request_tag("idem-v2")
OTHER_TAG = "0" * 32


def control(op: str, lease_id: str = "lease-1", **members: object) -> str:
    defaults: dict[str, dict[str, object]] = {
        "grant": {"subject": "worker-1", "resource": "GPU-0", "ttl_s": 120, "priority": 0},
        "renew": {"ttl_s": 60, "priority": 1},
        "renew-bound": {
            "subject": "worker-1",
            "resource": "GPU-0",
            "request": TAG,
            "ttl_s": 60,
            "priority": 1,
        },
        "preempt": {"reason": "host-ticket-release"},
    }
    return json.dumps({"op": op, "id": lease_id, **defaults[op], **members}, separators=(",", ":"))


def by_id(hive: ReferenceHive, lease_id: str = "lease-1") -> list[str]:
    return hive.cat(f"/proc/lease/by-id/{lease_id}")


def test_grant_renew_and_preempt_share_one_counter() -> None:
    hive = new_hive()
    hive.echo(LEASE_CTL, control("grant"))
    line = "id=lease-1 subject=worker-1 resource=GPU-0 ttl_s={} priority={} state=ACTIVE seq={}"
    assert by_id(hive) == [line.format(120, 0, 1)]
    hive.echo(LEASE_CTL, control("renew-bound"))
    assert by_id(hive) == [line.format(60, 1, 2) + f" request={TAG}"]
    hive.echo(LEASE_CTL, control("renew", ttl_s=7, priority=2))
    assert by_id(hive) == [line.format(7, 2, 3) + f" request={TAG}"]
    hive.echo(LEASE_CTL, control("preempt"))
    assert by_id(hive) == []
    assert hive.cat("/proc/lease/preemptions") == [
        "id=lease-1 subject=worker-1 resource=GPU-0 reason=host-ticket-release seq=4"
    ]
    hive.echo(LEASE_CTL, control("grant"))
    assert by_id(hive)[0].endswith("seq=5")


def test_an_exact_bound_renewal_is_no_second_renewal() -> None:
    hive = new_hive()
    hive.echo(LEASE_CTL, control("grant"))
    hive.echo(LEASE_CTL, control("renew-bound"))
    before = (by_id(hive), hive.tail(LEASE_CTL), hive.effects)
    hive.echo(LEASE_CTL, control("renew-bound"))
    assert (by_id(hive), hive.tail(LEASE_CTL), hive.effects) == before
    hive.echo(LEASE_CTL, control("renew-bound", request=OTHER_TAG))
    assert by_id(hive)[0].endswith(f"seq=3 request={OTHER_TAG}")


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(control("grant"), id="grant-active"),
        pytest.param(control("renew", "absent"), id="renew-absent"),
        pytest.param(control("renew-bound", "absent"), id="renew-bound-absent"),
        pytest.param(control("renew-bound", subject="worker-2"), id="renew-bound-other-subject"),
        pytest.param(control("renew-bound", resource="GPU-1"), id="renew-bound-other-resource"),
        pytest.param(control("renew-bound", ttl_s=61), id="same-tag-other-ttl"),
        pytest.param(control("renew-bound", priority=2), id="same-tag-other-priority"),
        pytest.param(control("renew-bound", request="ABC"), id="bad-tag"),
        pytest.param(control("preempt", "absent"), id="preempt-absent"),
        pytest.param(control("preempt", reason="two words"), id="reason-blank"),
        pytest.param(control("preempt", reason="r" * 25), id="reason-long"),
        pytest.param(control("grant", "l" * 33), id="id-long"),
        pytest.param(control("grant", "dotted.id"), id="id-dot"),
        pytest.param(control("grant", "new", ttl_s=0), id="ttl-zero"),
        pytest.param(control("grant", "new", ttl_s="30"), id="ttl-text"),
        pytest.param(control("grant", "new", priority=256), id="priority-high"),
        pytest.param(control("grant", "new", resource=".."), id="resource-dots"),
        pytest.param(control("grant", "new", extra=1), id="unknown-member"),
        pytest.param(control("grant", "new", subject={"a": 1}), id="nested"),
        pytest.param(control("grant", "new").replace('"grant"', '"steal"'), id="unknown-op"),
        pytest.param('{"op":"renew","id":"lease-1","ttl_s":5}', id="renew-without-priority"),
        pytest.param('{"op":"preempt","id":"lease-1","id":"lease-1","reason":"x"}', id="repeated-member"),
        pytest.param("not json", id="no-json"),
        pytest.param("", id="empty"),
        pytest.param(control("preempt") + "\n" + control("preempt"), id="two-lines"),
    ],
)
def test_refused_controls_change_nothing(payload: str) -> None:
    hive = new_hive()
    hive.echo(LEASE_CTL, control("grant"))
    hive.echo(LEASE_CTL, control("renew-bound"))
    before = (by_id(hive), hive.cat("/proc/lease/summary"), hive.tail(LEASE_CTL), hive.effects)
    with pytest.raises(RefusalError) as refused:
        hive.echo(LEASE_CTL, payload)
    assert refused.value.line("ECHO", LEASE_CTL) == (
        f"ERR ECHO reason=policy detail=invalid-payload path={LEASE_CTL} error=invalid payload"
    )
    assert (by_id(hive), hive.cat("/proc/lease/summary"), hive.tail(LEASE_CTL), hive.effects) == before


def test_only_the_queen_controls_leases() -> None:
    hive = new_hive()
    with pytest.raises(RefusalError, match="EPERM"):
        hive.echo(LEASE_CTL, control("grant"), role="worker-gpu")
    assert by_id(hive) == []


def test_preemption_swaps_the_last_lease_into_the_gap() -> None:
    hive = new_hive()
    for lease_id in ("a", "b", "c", "d"):
        hive.echo(LEASE_CTL, control("grant", lease_id))
    hive.echo(LEASE_CTL, control("preempt", "b"))
    assert hive.ls("/proc/lease/by-id") == ["a", "d", "c"]
    hive.echo(LEASE_CTL, control("preempt", "c"))
    assert hive.ls("/proc/lease/by-id") == ["a", "d"]


def test_aggregates_show_whole_lines_within_256_bytes_and_records_are_never_cut() -> None:
    hive = new_hive()
    for number in range(6):
        hive.echo(LEASE_CTL, control("grant", f"lease-{number}", resource="GPU-0"))
    active = hive.cat("/proc/lease/active")
    assert [line.split()[0] for line in active] == ["id=lease-0", "id=lease-1", "id=lease-2"]
    assert sum(len(line) + 1 for line in active) <= 256
    for number in range(6):
        assert len(by_id(hive, f"lease-{number}")) == 1
    for number in range(6):
        hive.echo(LEASE_CTL, control("preempt", f"lease-{number}"))
    preempted = hive.cat("/proc/lease/preemptions")
    assert [line.split()[0] for line in preempted] == ["id=lease-0", "id=lease-1", "id=lease-2"]
    assert hive.cat("/proc/lease/active") == []


def test_the_widest_record_still_fits_its_own_node() -> None:
    hive = new_hive()
    names = {"lease_id": "i" * 32, "subject": "s" * 32, "resource": "r" * 48}
    hive.echo(LEASE_CTL, control("grant", names["lease_id"], subject="s" * 32, resource="r" * 48))
    hive.echo(
        LEASE_CTL,
        control(
            "renew-bound",
            names["lease_id"],
            subject="s" * 32,
            resource="r" * 48,
            ttl_s=4294967295,
            priority=255,
        ),
    )
    assert len(by_id(hive, names["lease_id"])) == len(hive.cat("/proc/lease/active")) == 1


def test_capacities() -> None:
    hive = new_hive(replace(DEFAULT, max_active_leases=2, max_preemptions=2))
    for lease_id in ("a", "b"):
        hive.echo(LEASE_CTL, control("grant", lease_id))
    with pytest.raises(RefusalError) as refused:
        hive.echo(LEASE_CTL, control("grant", "c"))
    assert refused.value.line("ECHO", LEASE_CTL) == (
        f"ERR ECHO reason=quota detail=buffer-full path={LEASE_CTL} error=buffer full"
    )
    hive.echo(LEASE_CTL, control("preempt", "a"))
    hive.echo(LEASE_CTL, control("grant", "c"))
    hive.echo(LEASE_CTL, control("preempt", "b"))
    hive.echo(LEASE_CTL, control("preempt", "c"))
    assert [line.split()[0] for line in hive.cat("/proc/lease/preemptions")] == ["id=b", "id=c"]
    assert hive.cat("/proc/lease/summary") == [
        "active=0 preemptions=3 quotas=0 max_active=2 max_preemptions=2"
    ]


def test_quotas_are_stored_but_not_enforced_and_take_no_number() -> None:
    hive = new_hive()
    quota = '{"op":"quota","subject":"worker-1","resource":"GPU-0","max_active":1,"max_preemptions":1}'
    hive.echo(LEASE_CTL, quota)
    hive.echo(LEASE_CTL, quota)
    for lease_id in ("a", "b"):
        hive.echo(LEASE_CTL, control("grant", lease_id))
    assert hive.cat("/proc/lease/summary") == [
        "active=2 preemptions=0 quotas=1 max_active=256 max_preemptions=256"
    ]
    assert by_id(hive, "a")[0].endswith("seq=1")


def test_no_timer_ends_a_lease() -> None:
    clock_ms = [0]
    hive = new_hive(clock=lambda: clock_ms[0])
    hive.echo(LEASE_CTL, control("grant", ttl_s=1))
    clock_ms[0] = 10**12
    assert len(by_id(hive)) == 1


def test_the_control_log_rolls_whole_lines() -> None:
    hive = new_hive(replace(DEFAULT, lease_ctl_bytes=250))
    for lease_id in ("a", "b", "c", "d"):
        hive.echo(LEASE_CTL, control("grant", lease_id))
    assert hive.tail(LEASE_CTL) == [control("grant", "c"), control("grant", "d")]


def test_an_unknown_or_malformed_record_id() -> None:
    hive = new_hive()
    assert by_id(hive, "absent") == []
    for lease_id in ("dotted.id", "x" * 33):
        with pytest.raises(RefusalError, match="invalid-path"):
            by_id(hive, lease_id)


def test_effects_are_attributed_to_the_admission_that_asked_for_them() -> None:
    hive = new_hive()
    worker = hive.spawn_worker("worker-gpu").worker_id
    hive.submit(raw_grant(hive, worker, "t-1", "lease-1"))
    hive.echo(LEASE_CTL, control("grant", subject=worker))
    finish(hive, "t-1")
    hive.submit(raw_renew(hive, worker, "t-2", "lease-1", key="idem-v2"))
    hive.echo(LEASE_CTL, control("renew-bound", subject=worker))
    finish(hive, "t-2")
    hive.submit(raw_release(hive, worker, "t-3", "lease-1"))
    hive.echo(LEASE_CTL, control("preempt"))
    finish(hive, "t-3")
    hive.echo(LEASE_CTL, control("grant", "stranger", subject=worker))
    assert hive.effects == {
        Effect("grant", "lease-1", 1): 1,
        Effect("renew-bound", "lease-1", 2): 1,
        Effect("preempt", "lease-1", 3): 1,
        Effect("grant", "stranger", None): 1,
    }
    hive.echo(LEASE_CTL, control("grant", subject=worker))
    assert hive.effects[Effect("grant", "lease-1", 1)] == hive.effect_count("grant", "lease-1") == 2
