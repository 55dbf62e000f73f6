"""The version-1 lease actions: arguments, lines, and how little an observation may conclude."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from lease_double import DENIED, LEASE_CTL, QUEEN_CTL, LeaseHive, ticket_v1

from ticket_agent.gpu.compat import compat_lease_providers
from ticket_agent.journal.outcome import Committed, Outcome, Plan, PlanRefusedError, Rejected, Unknown
from ticket_agent.protocol.namespace import HiveRefusedError, HiveUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.protocol.spec import HostTicketSpec

GRANT, RENEW, RELEASE = "gpu.lease.grant", "gpu.lease.renew", "gpu.lease.release"
LOG = "/gpu/GPU-0/lease"


def v1_grant(**args: object) -> HostTicketSpec:
    return ticket_v1(GRANT, args={"gpu_id": "GPU-0", **args})


def v1_renew(**args: object) -> HostTicketSpec:
    return ticket_v1(RENEW, args={"lease_id": "lease-1", "priority": 1, **args})


def v1_release(**args: object) -> HostTicketSpec:
    return ticket_v1(RELEASE, args={"gpu_id": "GPU-0", **args})


class Run:
    """One operation on a hive, observed by its own process or by a later one."""

    def __init__(
        self,
        hive: LeaseHive,
        request: HostTicketSpec,
        *,
        answer: str = "ack",
        epoch: Callable[[], int] | None = None,
    ) -> None:
        self.hive = hive
        self.request = request
        self.epoch = epoch
        self._provider = compat_lease_providers(hive, instance="first", epoch=epoch)[request.action]
        plan = self._provider.plan(request)
        self.plan = Plan(
            before=json.loads(json.dumps(dict(plan.before))), intent=json.loads(json.dumps(dict(plan.intent)))
        )
        hive.answer = answer
        self.outcome: Outcome = self._provider.execute(self.plan)
        hive.answer = "ack"

    def observe(self) -> Outcome:
        writes = list(self.hive.writes)
        outcome = self._provider.observe(self.plan)
        assert self.hive.writes == writes
        return outcome

    def observe_after_restart(self) -> Outcome:
        self.hive.reconnect()
        self.hive.session = 0
        later = compat_lease_providers(self.hive, instance="second", epoch=self.epoch)
        return later[self.request.action].observe(self.plan)


def reserved() -> LeaseHive:
    hive = LeaseHive()
    hive.apply(QUEEN_CTL, '{"spawn":"gpu","lease":{"gpu_id":"GPU-0","mem_mb":1,"streams":1,"ttl_s":1}}')
    return hive


def leased() -> LeaseHive:
    hive = LeaseHive()
    hive.grant()
    return hive


def check(outcome: Outcome, kind: type[Outcome], text: str = "") -> None:
    assert isinstance(outcome, kind), outcome
    assert text in outcome.detail


# -- lines

SPAWN = '{"spawn":"gpu","lease":{"gpu_id":"GPU-0","mem_mb":4096,"streams":1,"ttl_s":120'


@pytest.mark.parametrize(
    ("request_", "path", "line"),
    [
        (v1_grant(), QUEEN_CTL, SPAWN + "}}"),
        (v1_grant(gpu_id=" GPU-0 ", priority=0), QUEEN_CTL, SPAWN + ',"priority":0}}'),
        (v1_grant(budget_ttl_s=5), QUEEN_CTL, SPAWN + '},"budget":{"ttl_s":5}}'),
        (v1_grant(budget_ops=6, budget_ttl_s=5), QUEEN_CTL, SPAWN + '},"budget":{"ttl_s":5,"ops":6}}'),
        (ticket_v1(GRANT, target="/gpu/GPU-0/lease"), QUEEN_CTL, SPAWN + "}}"),
        (v1_renew(), LEASE_CTL, '{"id":"lease-1","op":"renew","priority":1,"ttl_s":120}'),
        (
            ticket_v1(RENEW, args={"priority": 0, "ttl_s": 9}),
            LEASE_CTL,
            '{"id":"ticket-v1","op":"renew","priority":0,"ttl_s":9}',
        ),
        (v1_release(worker_id="worker-7"), QUEEN_CTL, '{"kill":"worker-7"}'),
    ],
)
def test_the_plan_fixes_the_exact_line(request_: HostTicketSpec, path: str, line: str) -> None:
    hive = LeaseHive()
    plan = compat_lease_providers(hive)[request_.action].plan(request_)
    assert (plan.intent["path"], plan.intent["line"]) == (path, line)
    assert hive.writes == []


def test_args_win_over_the_target() -> None:
    request = ticket_v1(GRANT, target="/gpu/GPU-1/lease", args={"gpu_id": "GPU-0"})
    assert compat_lease_providers(LeaseHive())[GRANT].lane(request) == "gpu-v1/GPU-0"


def test_a_renewal_shares_the_lane_of_its_lease() -> None:
    assert compat_lease_providers(LeaseHive())[RENEW].lane(v1_renew()) == "gpu-lease/lease-1"


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (ticket_v1(GRANT), "args.gpu_id or a target"),
        (ticket_v1(GRANT, target="/host/x"), "args.gpu_id or a target"),
        (ticket_v1(GRANT, target="/gpu/"), "args.gpu_id or a target"),
        (v1_grant(gpu_id="  "), "args.gpu_id or a target"),
        (v1_grant(gpu_id=7), "args.gpu_id must be a string"),
        (v1_grant(gpu_id="a/b"), "resource"),
        (v1_grant(gpu_id=".."), "resource"),
        (v1_grant(gpu_id="bridge"), "not a GPU"),
        (ticket_v1(GRANT, args=["GPU-0"]), "args as an object"),
        (v1_grant(mem_mb=0), "args.mem_mb must be in 1..=4294967295"),
        (v1_grant(mem_mb=2**32), "args.mem_mb must be in 1..=4294967295"),
        (v1_grant(mem_mb="1"), "args.mem_mb must be an unsigned integer"),
        (v1_grant(mem_mb=True), "args.mem_mb must be an unsigned integer"),
        (v1_grant(mem_mb=1.5), "args.mem_mb must be an unsigned integer"),
        (v1_grant(streams=0), "args.streams must be in 1..=255"),
        (v1_grant(streams=256), "args.streams must be in 1..=255"),
        (v1_grant(ttl_s=0), "args.ttl_s must be in 1..="),
        (v1_grant(priority=256), "args.priority must be in 0..=255"),
        (v1_grant(priority=-1), "args.priority must be in 0..=255"),
        (v1_grant(budget_ops=0), "args.budget_ops must be in 1..="),
        (ticket_v1(RENEW, args={"lease_id": "lease-1"}), "needs args.priority"),
        (v1_renew(ttl_s=0), "args.ttl_s must be in 1..="),
        (v1_renew(lease_id="a.b"), "id"),
        (ticket_v1(RENEW, id="a.b", args={"priority": 0}), "id"),
        (v1_release(worker_id="a b"), "subject"),
        (v1_release(), "no active reservation"),
    ],
)
def test_bad_arguments_are_refused_in_clear_words(request_: HostTicketSpec, words: str) -> None:
    hive = LeaseHive()
    provider = compat_lease_providers(hive)[request_.action]
    assert provider.lane(request_).startswith("gpu-v1")
    with pytest.raises(PlanRefusedError) as refused:
        provider.plan(request_)
    assert words in str(refused.value)
    assert str(refused.value).isprintable()
    assert hive.writes == []


# -- execution


def test_a_grant_is_verified_in_the_reservation_log() -> None:
    run = Run(LeaseHive(), v1_grant(mem_mb=8))
    check(run.outcome, Committed)
    assert run.outcome.detail == "gpu lease grant gpu_id=GPU-0 mem_mb=8 streams=1 ttl_s=120 status=verified"
    assert [path for path, _ in run.hive.writes] == [QUEEN_CTL]


@pytest.mark.parametrize("error", [HiveUnreachableError("reset"), HiveRefusedError("TAIL", LOG, DENIED)])
def test_an_acknowledged_grant_that_cannot_be_verified_is_queued(error: Exception) -> None:
    hive = LeaseHive()
    provider = compat_lease_providers(hive)[GRANT]
    plan = provider.plan(v1_grant())
    hive.broken[LOG] = error  # type: ignore[assignment]
    check(provider.execute(plan), Committed, "status=queued")


def test_a_renewal_is_queued() -> None:
    run = Run(leased(), v1_renew(ttl_s=9))
    check(run.outcome, Committed)
    assert run.outcome.detail == "gpu lease renew id=lease-1 ttl_s=9 queued"
    assert run.hive.leases[0].ttl_s == 9


def test_a_release_kills_the_newest_worker_that_still_holds_the_gpu() -> None:
    hive = reserved()
    for _ in range(2):
        hive.apply(QUEEN_CTL, '{"spawn":"gpu","lease":{"gpu_id":"GPU-0","mem_mb":1,"streams":1,"ttl_s":1}}')
    hive.apply(QUEEN_CTL, '{"kill":"worker-3"}')
    hive.reservations["GPU-0"].append('{"broken')
    run = Run(hive, v1_release())
    assert run.hive.writes == [(QUEEN_CTL, '{"kill":"worker-2"}')]
    check(run.outcome, Committed)
    assert run.outcome.detail == "gpu lease release gpu_id=GPU-0 worker_id=worker-2 status=released"


def test_a_release_whose_end_is_not_logged_is_queued() -> None:
    run = Run(LeaseHive(), v1_release(worker_id="worker-9"))
    check(run.outcome, Committed, "status=queued")


@pytest.mark.parametrize(
    ("hive", "request_"), [(LeaseHive, v1_grant()), (leased, v1_renew()), (reserved, v1_release())]
)
def test_answers_become_outcomes(hive: Callable[[], LeaseHive], request_: HostTicketSpec) -> None:
    check(Run(hive(), request_, answer="refuse").outcome, Rejected, "refused by the hive")
    check(Run(hive(), request_, answer="lost").outcome, Unknown, "answer was lost")
    down = Run(hive(), request_, answer="down")
    check(down.outcome, Rejected, "nothing was sent")
    assert down.hive.writes == []


def test_a_plan_for_another_path_is_never_written() -> None:
    hive = LeaseHive()
    provider = compat_lease_providers(hive)[GRANT]
    plan = provider.plan(v1_grant())
    with pytest.raises(Exception, match="path"):
        provider.execute(Plan(before=plan.before, intent={**plan.intent, "path": "/host/tickets/spec"}))
    assert hive.writes == []


# -- observation

CASES = [(reserved, v1_grant()), (leased, v1_renew()), (reserved, v1_release())]


@pytest.mark.parametrize(("hive", "request_"), CASES)
def test_an_effect_cannot_be_tied_to_a_ticket(
    hive: Callable[[], LeaseHive], request_: HostTicketSpec
) -> None:
    run = Run(hive(), request_, answer="lost")
    check(run.observe(), Unknown)
    check(run.observe_after_restart(), Unknown)


@pytest.mark.parametrize(("hive", "request_"), CASES)
def test_an_unchanged_log_and_a_dead_connection_prove_that_nothing_happened(
    hive: Callable[[], LeaseHive], request_: HostTicketSpec
) -> None:
    run = Run(hive(), request_, answer="drop")
    check(run.observe(), Rejected, "not applied")
    check(run.observe_after_restart(), Rejected, "not applied")


@pytest.mark.parametrize(("hive", "request_"), CASES)
def test_what_may_still_arrive_is_unknown(hive: Callable[[], LeaseHive], request_: HostTicketSpec) -> None:
    world = hive()
    world.keep_session = True
    run = Run(world, request_, answer="late")
    check(run.observe(), Unknown)


@pytest.mark.parametrize(("hive", "request_"), CASES)
def test_a_log_that_cannot_be_read_is_unknown(
    hive: Callable[[], LeaseHive], request_: HostTicketSpec
) -> None:
    run = Run(hive(), request_, answer="drop")
    for path in (LOG, "/proc/lease/by-id/lease-1"):
        run.hive.broken[path] = HiveUnreachableError("no route")
    check(run.observe(), Unknown, "no route")


def test_an_acknowledged_effect_that_is_not_shown_is_unknown() -> None:
    hive = reserved()
    before = list(hive.reservations["GPU-0"])
    run = Run(hive, v1_grant())
    hive.reservations["GPU-0"] = before
    hive.reconnect()
    check(run.observe(), Unknown)


def test_an_empty_log_is_unchanged_only_within_a_known_life_of_the_hive() -> None:
    check(Run(LeaseHive(), v1_grant(), answer="drop").observe(), Unknown)
    check(Run(LeaseHive(), v1_grant(), answer="drop", epoch=lambda: 1).observe(), Rejected, "not applied")


def test_a_reboot_makes_it_unknown() -> None:
    life = [1]
    run = Run(LeaseHive(), v1_grant(), answer="lost", epoch=lambda: life[0])
    run.hive.reboot()
    life[0] = 2
    check(run.observe(), Unknown)


def test_the_kill_of_a_worker_without_a_reservation_leaves_no_trace_to_miss() -> None:
    run = Run(reserved(), v1_release(worker_id="worker-9"), answer="drop")
    check(run.observe(), Unknown)


def test_a_gpu_that_is_gone_proves_nothing() -> None:
    run = Run(reserved(), v1_grant(), answer="drop")
    run.hive.gpus.clear()
    check(run.observe(), Unknown)
