"""Planning and executing the version-2 lease actions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from lease_double import (
    DENIED,
    GPU,
    INVALID,
    LEASE,
    LEASE_CTL,
    WORKER,
    LeaseHive,
    grant,
    release,
    renew,
    ticket,
)

from ticket_agent.gpu.lease import lease_providers
from ticket_agent.journal.outcome import (
    MAX_DETAIL_BYTES,
    Committed,
    Pending,
    Plan,
    PlanRefusedError,
    Provider,
    Rejected,
    Unknown,
)
from ticket_agent.protocol.namespace import (
    HiveRefusedError,
    HiveUnreachableError,
    HiveViolationError,
    Refusal,
    RefusalKind,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.protocol.spec import HostTicketSpec

TAG = "fb489ba47a1432b9a1a26150cdee94f4"
ACTIONS = ("gpu.lease.grant", "gpu.lease.renew", "gpu.lease.release")
BY_ID = f"/proc/lease/by-id/{LEASE}"
GRANT_LINE = (
    '{"id":"lease-1","op":"grant","priority":7,"resource":"GPU-0","subject":"worker-gpu-1","ttl_s":30}'
)
RENEW_LINE = (
    '{"id":"lease-1","op":"renew-bound","priority":0,"request":"' + TAG + '",'
    '"resource":"GPU-0","subject":"worker-gpu-1","ttl_s":120}'
)
RELEASE_LINE = '{"id":"lease-1","op":"preempt","reason":"host-ticket-release"}'


def provider(hive: LeaseHive, request: HostTicketSpec) -> Provider[HostTicketSpec]:
    return lease_providers(hive, instance="this-process")[request.action]


def planned(hive: LeaseHive, request: HostTicketSpec) -> Plan:
    return provider(hive, request).plan(request)


def journaled(plan: Plan) -> Plan:
    """The plan as it comes back from a journal."""
    return Plan(
        before=json.loads(json.dumps(dict(plan.before))), intent=json.loads(json.dumps(dict(plan.intent)))
    )


def leased() -> LeaseHive:
    hive = LeaseHive()
    hive.grant()
    return hive


# -- plans


def test_there_is_one_provider_for_each_action_and_one_lane_for_each_lease() -> None:
    providers = lease_providers(LeaseHive())
    assert tuple(providers) == ACTIONS
    assert {providers[action].lane(ticket(action)) for action in ACTIONS} == {"gpu-lease/lease-1"}


def test_processes_draw_different_instances() -> None:
    plans = [lease_providers(LeaseHive())["gpu.lease.grant"].plan(grant()) for _ in range(2)]
    assert plans[0].before["instance"] != plans[1].before["instance"]


@pytest.mark.parametrize(
    ("hive", "request_", "line"),
    [
        (LeaseHive(), grant(args={"ttl_s": 30, "priority": 7}), GRANT_LINE),
        (leased(), renew(), RENEW_LINE),
        (leased(), release(), RELEASE_LINE),
    ],
)
def test_the_plan_fixes_the_exact_line_and_writes_nothing(
    hive: LeaseHive, request_: HostTicketSpec, line: str
) -> None:
    plan = planned(hive, request_)
    assert (plan.intent["path"], plan.intent["line"]) == (LEASE_CTL, line)
    assert hive.writes == []
    assert planned(hive, request_).intent == plan.intent


def test_a_grant_plan_keeps_what_was_there_before() -> None:
    hive = LeaseHive()
    hive.grant()
    old = hive.preempt()
    hive.grant("elsewhere")
    hive.preempt("elsewhere")
    assert planned(hive, grant()).before == {
        "instance": "this-process",
        "session": 1,
        "epoch": None,
        "by_id": None,
        "preemptions_total": 2,
        "preemptions_empty": False,
        "preemptions": [old.encode()],
    }


def test_a_release_plan_keeps_the_lease_it_ends() -> None:
    hive = leased()
    before = planned(hive, release()).before
    assert before["by_id"] == hive.leases[0].encode()
    assert before["preemptions_total"] == 0


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    "members",
    [
        {"operation_id": "a" * 33},
        {"operation_id": "lease.1"},
        {"operation_id": "lease:1"},
        {"operation_id": "subject"},
        {"operation_id": "op"},
        {"receipt_worker_id": "worker.1"},
        {"receipt_worker_id": "worker:1"},
        {"subject_ref": "G" * 49},
        {"subject_ref": ".."},
    ],
)
def test_names_that_the_root_would_refuse_cost_no_io(action: str, members: dict[str, object]) -> None:
    hive = leased()
    request = ticket(action, **members)
    with pytest.raises(PlanRefusedError) as refused:
        planned(hive, request)
    assert str(refused.value).isprintable()
    assert action in str(refused.value)
    assert (hive.reads, hive.writes, hive.session) == ([], [], 0)


@pytest.mark.parametrize("reason", ["not a token", "a" * 25, "reason"])
def test_a_reason_that_the_root_would_refuse_costs_no_io(reason: str) -> None:
    hive = leased()
    with pytest.raises(PlanRefusedError, match="reason"):
        planned(hive, release(args={"reason": reason}))
    assert hive.reads == []


@pytest.mark.parametrize("gpu", ["GPU-9", "bridge", "models", "telemetry"])
def test_a_grant_needs_a_gpu_of_the_inventory(gpu: str) -> None:
    hive = LeaseHive()
    with pytest.raises(PlanRefusedError, match=f"GPU id {gpu} is absent from the /gpu inventory"):
        planned(hive, grant(subject_ref=gpu))


@pytest.mark.parametrize("shows_nothing", [True, False])
def test_a_grant_needs_a_free_id(shows_nothing: bool) -> None:
    hive = LeaseHive(shows_nothing=shows_nothing)
    planned(hive, grant())
    hive.grant()
    with pytest.raises(PlanRefusedError, match="already active"):
        planned(hive, grant())


@pytest.mark.parametrize("request_", [renew(), release()])
def test_renewal_and_release_need_the_tickets_own_lease(request_: HostTicketSpec) -> None:
    hive = LeaseHive()
    with pytest.raises(PlanRefusedError, match="is not active"):
        planned(hive, request_)
    hive.grant(subject="worker-gpu-2")
    with pytest.raises(PlanRefusedError, match="not pinned to Worker worker-gpu-1 and GPU GPU-0"):
        planned(hive, request_)


@pytest.mark.parametrize("request_", [renew(), release()])
def test_a_lapsed_inventory_stops_neither_renewal_nor_release(request_: HostTicketSpec) -> None:
    hive = leased()
    hive.gpus = ["bridge", "models", "telemetry"]
    plan = planned(hive, request_)
    assert isinstance(provider(hive, request_).execute(plan), Committed)


def test_a_renewal_repeated_under_one_key_with_other_terms_is_refused() -> None:
    hive = leased()
    hive.renew(request=TAG, ttl_s=9)
    with pytest.raises(PlanRefusedError, match="other terms"):
        planned(hive, renew(args={"ttl_s": 10}))
    assert isinstance(provider(hive, renew()).execute(planned(hive, renew(args={"ttl_s": 9}))), Committed)


@pytest.mark.parametrize("request_", [grant(), renew(), release()])
def test_an_unreachable_hive_is_no_refusal(request_: HostTicketSpec) -> None:
    hive = leased()
    hive.broken[BY_ID] = HiveUnreachableError("no route")
    with pytest.raises(HiveUnreachableError):
        planned(hive, request_)
    hive.broken[BY_ID] = HiveRefusedError("CAT", BY_ID, DENIED)
    with pytest.raises(HiveRefusedError):
        planned(hive, request_)


@pytest.mark.parametrize(
    "lines",
    [
        ["id=lease-2 subject=worker-gpu-1 resource=GPU-0 ttl_s=1 priority=0 state=ACTIVE seq=1"],
        ["id=lease-1 subject=worker-gpu-1 resource=GPU-0 ttl_s=1 priority=0 state=ACTIVE seq=1"] * 2,
        ["nonsense"],
    ],
    ids=["other-id", "two", "malformed"],
)
def test_a_malformed_lease_node_is_no_refusal(lines: list[str]) -> None:
    hive = leased()
    hive.shown[BY_ID] = lines
    for request in (grant(), renew(), release()):
        with pytest.raises(HiveViolationError, match="by-id"):
            planned(hive, request)


@pytest.mark.parametrize("node", ["summary", "preemptions"])
def test_a_hive_that_shows_no_preemptions_can_still_be_used(node: str) -> None:
    hive = LeaseHive()
    path = f"/proc/lease/{node}"
    hive.broken[path] = HiveRefusedError("CAT", path, DENIED)
    for request in (grant(), release()):
        outcome = provider(hive, request).execute(planned(hive, request))
        assert isinstance(outcome, Committed), outcome


# -- execution


@pytest.mark.parametrize(
    ("hive", "request_", "detail"),
    [
        (LeaseHive, grant(), "gpu.lease.grant operation_id=lease-1 observed=active"),
        (leased, renew(), f"gpu.lease.renew operation_id=lease-1 observed=active request={TAG}"),
        (leased, release(), "gpu.lease.release operation_id=lease-1 observed=preempted"),
    ],
)
def test_an_acknowledged_write_is_one_line_to_the_lease_control(
    hive: Callable[[], LeaseHive], request_: HostTicketSpec, detail: str
) -> None:
    world = hive()
    action = provider(world, request_)
    plan = journaled(action.plan(request_))
    outcome = action.execute(plan)
    assert isinstance(outcome, Committed)
    assert outcome.detail == detail
    assert world.writes == [(LEASE_CTL, plan.intent["line"])]


def test_a_renewal_is_not_read_back() -> None:
    hive = leased()
    plan = planned(hive, renew())
    hive.reads.clear()
    provider(hive, renew()).execute(plan)
    assert hive.reads == []


@pytest.mark.parametrize(("hive", "request_"), [(LeaseHive, grant()), (leased, renew()), (leased, release())])
def test_a_refusal_is_definite(hive: Callable[[], LeaseHive], request_: HostTicketSpec) -> None:
    world = hive()
    plan = planned(world, request_)
    world.answer = "refuse"
    outcome = provider(world, request_).execute(plan)
    assert isinstance(outcome, Rejected)
    assert INVALID.text in outcome.detail
    assert len(world.writes) == 1


def test_a_long_refusal_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    hive = LeaseHive()
    plan = planned(hive, grant())
    monkeypatch.setattr("lease_double.INVALID", Refusal(kind=RefusalKind.OTHER, text="\x1b[31mé" * 400))
    hive.answer = "refuse"
    outcome = provider(hive, grant()).execute(plan)
    assert isinstance(outcome, Rejected)
    assert len(outcome.detail) <= MAX_DETAIL_BYTES
    assert outcome.detail.isprintable()


@pytest.mark.parametrize("answer", ["lost", "drop", "late"])
@pytest.mark.parametrize(("hive", "request_"), [(LeaseHive, grant()), (leased, renew()), (leased, release())])
def test_a_lost_answer_is_unknown_and_not_repeated(
    hive: Callable[[], LeaseHive], request_: HostTicketSpec, answer: str
) -> None:
    world = hive()
    plan = planned(world, request_)
    world.answer = answer
    world.reads.clear()
    outcome = provider(world, request_).execute(plan)
    assert isinstance(outcome, Unknown)
    assert len(world.writes) == 1
    assert world.reads == []


@pytest.mark.parametrize(("hive", "request_"), [(LeaseHive, grant()), (leased, renew()), (leased, release())])
def test_what_was_never_sent_was_not_applied(hive: Callable[[], LeaseHive], request_: HostTicketSpec) -> None:
    world = hive()
    plan = planned(world, request_)
    world.answer = "down"
    outcome = provider(world, request_).execute(plan)
    assert isinstance(outcome, Rejected)
    assert "nothing was sent" in outcome.detail
    assert world.writes == []


def test_an_acknowledged_grant_without_a_record_is_pending() -> None:
    hive = LeaseHive()
    plan = planned(hive, grant())
    hive.shown[BY_ID] = []
    assert isinstance(provider(hive, grant()).execute(plan), Pending)
    assert len(hive.writes) == 1


@pytest.mark.parametrize(("hive", "request_"), [(LeaseHive, grant()), (leased, release())])
def test_a_failed_reading_after_the_acknowledgement_is_pending(
    hive: Callable[[], LeaseHive], request_: HostTicketSpec
) -> None:
    world = hive()
    plan = planned(world, request_)
    world.broken[BY_ID] = HiveUnreachableError("reset")
    outcome = provider(world, request_).execute(plan)
    assert isinstance(outcome, Pending)
    world.broken.clear()
    assert isinstance(provider(world, request_).observe(plan), Committed)


def test_an_acknowledged_grant_that_shows_another_binding_is_not_rejected_at_once() -> None:
    hive = LeaseHive()
    plan = planned(hive, grant())
    hive.shown[BY_ID] = [
        "id=lease-1 subject=worker-gpu-2 resource=GPU-0 ttl_s=1 priority=0 state=ACTIVE seq=9"
    ]
    assert isinstance(provider(hive, grant()).execute(plan), Pending)


def test_an_acknowledged_release_is_committed_even_where_its_record_is_hidden() -> None:
    hive = LeaseHive()
    for number in range(4):
        hive.grant(f"old-{number}")
        hive.preempt(f"old-{number}")
    hive.grant()
    plan = planned(hive, release())
    outcome = provider(hive, release()).execute(plan)
    assert not any("lease-1" in line for line in hive.window())
    assert isinstance(outcome, Committed)
    assert "acknowledged" in outcome.detail


def test_an_acknowledged_release_that_is_still_shown_is_pending() -> None:
    hive = leased()
    plan = planned(hive, release())
    hive.shown[BY_ID] = [hive.leases[0].encode()]
    hive.shown["/proc/lease/preemptions"] = []
    assert isinstance(provider(hive, release()).execute(plan), Pending)


@pytest.mark.parametrize(
    "damage",
    [{"path": "/queen/ctl"}, {"line": None}, {"id": 5}, {"subject": None}],
    ids=["path", "line", "id", "subject"],
)
def test_a_plan_that_is_not_ours_is_never_written(damage: dict[str, str | int | None]) -> None:
    hive = LeaseHive()
    action = provider(hive, grant())
    plan = action.plan(grant())
    damaged = Plan(before=plan.before, intent={**plan.intent, **damage})
    with pytest.raises(Exception, match="the plan's"):
        action.execute(damaged)
    assert hive.writes == []
    assert isinstance(action.observe(damaged), Unknown)


@pytest.mark.parametrize("member", ["instance", "session", "epoch", "by_id", "preemptions_total"])
def test_a_before_image_that_lacks_a_member_stops_the_write_and_is_unknown(member: str) -> None:
    hive = LeaseHive()
    action = provider(hive, grant())
    plan = action.plan(grant())
    damaged = Plan(before={k: v for k, v in plan.before.items() if k != member}, intent=plan.intent)
    with pytest.raises(Exception, match=f"the plan's {member}"):
        action.execute(damaged)
    assert hive.writes == []
    assert isinstance(action.observe(damaged), Unknown)


def test_the_ticket_fixture_is_the_one_of_the_constants() -> None:
    assert (grant().operation_id, grant().receipt_worker_id, grant().subject_ref) == (LEASE, WORKER, GPU)
