"""What observation concludes: the decision tables, and the law that it never concludes against the facts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lease_double import DENIED, GPU, LEASE, LEASE_CTL, WORKER, LeaseHive, grant, release, renew

from ticket_agent.gpu.dispatch import Origin
from ticket_agent.gpu.lease import lease_providers
from ticket_agent.gpu.lease_evidence import BeforeImage, LeaseFacts, unseen
from ticket_agent.gpu.lease_verdict import LeaseBinding, grant_verdict, release_verdict, renew_verdict
from ticket_agent.journal.outcome import (
    Committed,
    Outcome,
    Pending,
    Plan,
    Provider,
    Rejected,
    Unknown,
    Unobserved,
)
from ticket_agent.protocol.lease import LeaseRecord, LeaseSummary, PreemptionRecord
from ticket_agent.protocol.namespace import HiveRefusedError, HiveUnreachableError, Refusal, RefusalKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.protocol.spec import HostTicketSpec

TAG = "fb489ba47a1432b9a1a26150cdee94f4"
BY_ID = f"/proc/lease/by-id/{LEASE}"
SUMMARY = "/proc/lease/summary"
PREEMPTIONS = "/proc/lease/preemptions"


class Run:
    """One operation: planned, dispatched with a chosen answer, then observed by this or a later process."""

    def __init__(
        self,
        hive: LeaseHive,
        request: HostTicketSpec,
        *,
        answer: str = "ack",
        single_owner: bool = True,
        epoch: Callable[[], int] | None = None,
    ) -> None:
        self.hive = hive
        self.request = request
        self._options = {"single_owner": single_owner, "epoch": epoch}
        self._provider = self._start("first")
        self.plan = self._provider.plan(request)
        hive.answer = answer
        self.outcome: Outcome = self._provider.execute(self.plan)
        hive.answer = "ack"

    def _start(self, instance: str) -> Provider[HostTicketSpec]:
        providers = lease_providers(self.hive, instance=instance, **self._options)  # type: ignore[arg-type]
        return providers[self.request.action]

    def observe(self) -> Outcome:
        """Observe in the process that dispatched."""
        writes = list(self.hive.writes)
        outcome = self._provider.observe(self.plan)
        assert self.hive.writes == writes, "an observation writes nothing"
        return outcome

    def observe_after_restart(self) -> Outcome:
        """Observe in a new process, which has a session counter of its own."""
        self.hive.reconnect()
        self.hive.session = 0
        return self._start("second").observe(self.plan)


def leased() -> LeaseHive:
    hive = LeaseHive()
    hive.grant()
    return hive


def check(outcome: Outcome, kind: type[Outcome], text: str = "") -> None:
    assert isinstance(outcome, kind), outcome
    assert text in outcome.detail


# -- grant


@pytest.mark.parametrize("shows_nothing", [True, False])
def test_grant_applied_without_an_answer(shows_nothing: bool) -> None:
    run = Run(LeaseHive(shows_nothing=shows_nothing), grant(), answer="lost")
    check(run.outcome, Unknown)
    check(run.observe(), Committed, "observed=active")
    check(run.observe_after_restart(), Committed, "observed=active")


@pytest.mark.parametrize("shows_nothing", [True, False])
def test_grant_dropped_on_the_way_is_not_applied(shows_nothing: bool) -> None:
    run = Run(LeaseHive(shows_nothing=shows_nothing), grant(), answer="drop")
    check(run.observe(), Rejected, "not applied")
    check(run.observe_after_restart(), Rejected, "not applied")


def test_grant_that_may_still_arrive_is_unknown() -> None:
    run = Run(LeaseHive(keep_session=True), grant(), answer="late")
    check(run.observe(), Unknown, "observed=absent")
    run.hive.arrive()
    check(run.observe(), Committed)


def test_grant_behind_a_gateway_is_never_called_not_applied() -> None:
    run = Run(LeaseHive(), grant(), answer="late", single_owner=False)
    check(run.observe(), Unknown)
    check(run.observe_after_restart(), Unknown)
    run.hive.arrive()
    check(run.observe(), Committed)


def test_a_reconnect_between_plan_and_write_sends_nothing() -> None:
    """The new session may be that of a rebooted hive; it must not get what its earlier life was meant."""
    hive = LeaseHive(keep_session=True)
    provider = lease_providers(hive, instance="first")["gpu.lease.grant"]
    plan = provider.plan(grant())
    hive.reconnect()
    check(provider.execute(plan), Rejected, "nothing was sent")
    assert hive.writes == []
    assert hive.leases == []


def test_a_plan_of_this_process_without_a_known_write_proves_nothing() -> None:
    hive = LeaseHive()
    provider = lease_providers(hive, instance="first")["gpu.lease.grant"]
    plan = provider.plan(grant())
    hive.reconnect()
    check(provider.observe(plan), Unknown)


def test_grant_then_preempted_counts_as_granted() -> None:
    run = Run(LeaseHive(), grant(), answer="lost")
    run.hive.preempt()
    check(run.observe(), Committed, "observed=preempted")


def test_grant_then_preempted_then_granted_to_another_counts_as_granted() -> None:
    run = Run(LeaseHive(), grant(), answer="lost")
    run.hive.preempt()
    run.hive.grant(subject="worker-gpu-2")
    check(run.observe(), Committed, "observed=preempted")


def test_grant_of_an_id_that_another_binding_holds_is_rejected() -> None:
    run = Run(LeaseHive(), grant(), answer="drop")
    run.hive.grant(subject="worker-gpu-2")
    check(run.observe(), Rejected, "observed=wrong-binding")


def test_a_preemption_from_before_the_plan_is_no_grant() -> None:
    hive = LeaseHive()
    hive.grant()
    hive.preempt()
    run = Run(hive, grant(), answer="drop")
    check(run.observe(), Rejected, "not applied")


def test_an_old_preemption_that_the_window_reveals_later_is_no_grant() -> None:
    hive = LeaseHive(capacity=6)
    for number in range(5):
        hive.grant(f"old-{number}")
        hive.preempt(f"old-{number}")
    hive.grant()
    hive.preempt()
    assert not any("id=lease-1 " in line for line in hive.window())
    run = Run(hive, grant(), answer="drop")
    for number in range(5):
        hive.grant(f"new-{number}")
        hive.preempt(f"new-{number}")
    assert any("id=lease-1 " in line for line in hive.window())
    check(run.observe(), Unknown, "observed=absent")


def test_a_new_preemption_is_recognised_in_a_ring_that_has_turned_over() -> None:
    hive = LeaseHive(capacity=2)
    for number in range(5):
        hive.grant(f"old-{number}")
        hive.preempt(f"old-{number}")
    run = Run(hive, grant(), answer="lost")
    hive.preempt()
    check(run.observe(), Committed, "observed=preempted")


def test_grant_is_unknown_when_somebody_preempted_out_of_sight() -> None:
    hive = LeaseHive()
    for number in range(5):
        hive.grant(f"old-{number}")
        hive.preempt(f"old-{number}")
    run = Run(hive, grant(), answer="lost")
    hive.preempt()
    check(run.observe(), Unknown)


@pytest.mark.parametrize("node", [SUMMARY, PREEMPTIONS])
def test_grant_without_counters_or_window_is_unknown_when_absent(node: str) -> None:
    hive = LeaseHive()
    hive.grant("other")
    hive.preempt("other")
    hive.broken[node] = HiveRefusedError("CAT", node, DENIED)
    applied = Run(hive, grant(), answer="lost")
    hive.preempt()
    check(applied.observe(), Unknown)


def test_a_window_that_is_not_in_order_tells_nothing_new() -> None:
    hive = LeaseHive()
    run = Run(hive, grant(), answer="lost")
    hive.preempt()
    hive.grant("other")
    hive.preempt("other")
    hive.shown[PREEMPTIONS] = list(reversed(hive.window()))
    check(run.observe(), Unknown)


class RestlessHive(LeaseHive):
    """Another client grants and preempts between our readings of one observation."""

    restless = False

    def read(self, path: str) -> list[str]:
        lines = super().read(path)
        if self.restless and path == SUMMARY:
            self.grant("churn")
            self.preempt("churn")
        return lines


def test_counters_that_move_while_the_window_is_read_are_not_used() -> None:
    hive = RestlessHive(capacity=1)
    hive.grant()
    hive.preempt()
    run = Run(hive, grant(), answer="drop")
    # The old record would count as new by the later counter: the ring has turned over in between.
    hive.restless = True
    hive.shown[PREEMPTIONS] = hive.window()
    check(run.observe(), Unknown)


def test_without_counters_an_empty_window_tells_new_from_old() -> None:
    hive = LeaseHive()
    hive.broken[SUMMARY] = HiveRefusedError("CAT", SUMMARY, DENIED)
    run = Run(hive, grant(), answer="lost")
    hive.preempt()
    check(run.observe(), Committed, "observed=preempted")


def test_without_counters_absence_is_unknown() -> None:
    hive = LeaseHive()
    hive.broken[SUMMARY] = HiveRefusedError("CAT", SUMMARY, DENIED)
    check(Run(hive, grant(), answer="drop").observe(), Unknown)


def test_an_acknowledged_grant_is_not_called_not_applied() -> None:
    hive = LeaseHive()
    hive.shown[BY_ID] = []
    run = Run(hive, grant())
    check(run.outcome, Pending)
    hive.reconnect()
    check(run.observe(), Unknown)


# -- renew


def test_renewal_applied_without_an_answer() -> None:
    run = Run(leased(), renew(), answer="lost")
    check(run.observe(), Committed, "request=matched")
    check(run.observe_after_restart(), Committed, "request=matched")


def test_renewal_dropped_on_the_way_is_not_applied() -> None:
    run = Run(leased(), renew(), answer="drop")
    check(run.observe(), Rejected, "not applied")
    check(run.observe_after_restart(), Rejected, "not applied")


def test_renewal_that_may_still_arrive_is_unknown() -> None:
    hive = leased()
    hive.keep_session = True
    run = Run(hive, renew(), answer="late")
    check(run.observe(), Unknown)
    hive.arrive()
    check(run.observe(), Committed)


@pytest.mark.parametrize("answer", ["lost", "drop"])
def test_a_later_renewal_hides_this_one(answer: str) -> None:
    run = Run(leased(), renew(), answer=answer)
    run.hive.renew()
    check(run.observe(), Unknown, "request=other")


@pytest.mark.parametrize("answer", ["lost", "drop"])
def test_renewal_of_a_lease_that_is_gone_is_unknown(answer: str) -> None:
    run = Run(leased(), renew(), answer=answer)
    run.hive.preempt()
    check(run.observe(), Unknown, "gone")


def test_renewal_of_a_lease_that_another_binding_holds_is_rejected() -> None:
    run = Run(leased(), renew(), answer="drop")
    run.hive.preempt()
    run.hive.grant(resource="GPU-1")
    check(run.observe(), Rejected, "observed=wrong-binding")


def test_renewal_under_another_key_has_another_tag() -> None:
    run = Run(leased(), renew(idempotency_key="idem-other"), answer="drop")
    run.hive.renew(request=TAG)
    check(run.observe(), Unknown, "request=other")


# -- release


def test_release_applied_without_an_answer() -> None:
    run = Run(leased(), release(), answer="lost")
    check(run.observe(), Committed, "observed=preempted")
    check(run.observe_after_restart(), Committed, "observed=preempted")


def test_release_dropped_on_the_way_is_not_applied() -> None:
    run = Run(leased(), release(), answer="drop")
    check(run.observe(), Rejected, "not applied")
    check(run.observe_after_restart(), Rejected, "not applied")


def test_release_that_may_still_arrive_is_unknown() -> None:
    hive = leased()
    hive.keep_session = True
    run = Run(hive, release(), answer="late")
    check(run.observe(), Unknown)
    hive.arrive()
    check(run.observe(), Committed)


def test_an_older_preemption_of_the_id_is_no_release() -> None:
    hive = leased()
    hive.preempt()
    hive.grant()
    run = Run(hive, release(), answer="drop")
    check(run.observe(), Rejected, "not applied")


def test_a_release_hidden_by_the_window_is_unknown_without_its_acknowledgement() -> None:
    hive = LeaseHive()
    for number in range(4):
        hive.grant(f"old-{number}")
        hive.preempt(f"old-{number}")
    hive.grant()
    run = Run(hive, release(), answer="lost")
    check(run.observe(), Unknown, "gone, but not provably by this ticket")


def test_an_acknowledgement_is_known_only_to_the_process_that_saw_it() -> None:
    hive = LeaseHive()
    for number in range(4):
        hive.grant(f"old-{number}")
        hive.preempt(f"old-{number}")
    hive.grant()
    run = Run(hive, release())
    check(run.observe(), Committed, "acknowledged")
    check(run.observe_after_restart(), Unknown, "gone, but not provably by this ticket")


def test_release_of_a_lease_that_was_only_renewed_is_not_applied() -> None:
    run = Run(leased(), release(), answer="drop")
    run.hive.renew()
    check(run.observe(), Rejected, "not applied")


def test_release_of_a_renewed_lease_is_unknown_once_anything_was_preempted() -> None:
    run = Run(leased(), release(), answer="drop")
    run.hive.renew()
    run.hive.grant("other")
    run.hive.preempt("other")
    check(run.observe(), Unknown, "observed=active")


def test_release_is_committed_although_the_id_is_granted_again() -> None:
    run = Run(leased(), release(), answer="lost")
    run.hive.grant()
    check(run.observe(), Committed, "observed=preempted")


# -- every action


ALL = [(LeaseHive, grant()), (leased, renew()), (leased, release())]


@pytest.mark.parametrize(("hive", "request_"), ALL)
@pytest.mark.parametrize(
    "lines",
    [
        ["id=other subject=worker-gpu-1 resource=GPU-0 ttl_s=1 priority=0 state=ACTIVE seq=1"],
        ["id=lease-1 subject=worker-gpu-1 resource=GPU-0 ttl_s=1 priority=0 state=ACTIVE seq=1"] * 2,
        ["id=lease-1"],
    ],
    ids=["other-id", "two", "malformed"],
)
def test_a_malformed_lease_node_is_unknown(
    hive: Callable[[], LeaseHive], request_: HostTicketSpec, lines: list[str]
) -> None:
    run = Run(hive(), request_, answer="lost")
    run.hive.shown[BY_ID] = lines
    check(run.observe(), Unknown, "by-id")


@pytest.mark.parametrize(("hive", "request_"), ALL)
def test_a_hive_that_cannot_be_read_is_unknown(
    hive: Callable[[], LeaseHive], request_: HostTicketSpec
) -> None:
    run = Run(hive(), request_, answer="lost")
    run.hive.broken[BY_ID] = HiveUnreachableError("no route")
    check(run.observe(), Unknown, "no route")


@pytest.mark.parametrize("answer", ["lost", "drop"])
@pytest.mark.parametrize(("hive", "request_"), ALL)
def test_after_a_reboot_absence_proves_nothing(
    hive: Callable[[], LeaseHive], request_: HostTicketSpec, answer: str
) -> None:
    life = [1]
    run = Run(hive(), request_, answer=answer, epoch=lambda: life[0])
    assert run.plan.before["epoch"] == 1
    run.hive.reboot()
    life[0] = 2
    check(run.observe(), Unknown)
    check(run.observe_after_restart(), Unknown)


def test_after_a_reboot_a_preemption_is_another_lives() -> None:
    life = [1]
    for world, request in ((LeaseHive(), grant()), (leased(), release())):
        run = Run(world, request, answer="drop", epoch=lambda: life[0])
        world.reboot()
        life[0] += 1
        for _ in range(3):
            world.grant()
            world.preempt()
        check(run.observe(), Unknown)


def test_after_a_reboot_a_lease_of_the_same_binding_still_counts_as_granted() -> None:
    life = [1]
    run = Run(LeaseHive(), grant(), answer="drop", epoch=lambda: life[0])
    run.hive.reboot()
    life[0] = 2
    run.hive.grant()
    check(run.observe(), Committed)


def test_after_a_reboot_an_unchanged_lease_proves_nothing() -> None:
    for request in (renew(), release()):
        life = [1]
        run = Run(leased(), request, answer="drop", epoch=lambda life=life: life[0])  # type: ignore[misc]
        life[0] = 2
        check(run.observe(), Unknown)


# -- the law

BINDING = LeaseBinding(action="gpu.lease.x", id=LEASE, subject=WORKER, resource=GPU)
numbers = st.integers(min_value=1, max_value=12)
leases = st.builds(
    LeaseRecord,
    id=st.just(LEASE),
    subject=st.sampled_from([WORKER, "worker-gpu-2"]),
    resource=st.sampled_from([GPU, "GPU-1"]),
    ttl_s=st.integers(1, 2),
    priority=st.integers(0, 1),
    state=st.just("ACTIVE"),
    seq=numbers,
    request=st.sampled_from([None, TAG, "0" * 32]),
)
ended = st.builds(
    PreemptionRecord,
    id=st.sampled_from([LEASE, "other"]),
    subject=st.sampled_from([WORKER, "worker-gpu-2"]),
    resource=st.sampled_from([GPU, "GPU-1"]),
    reason=st.just("r"),
    seq=numbers,
)
summaries = st.builds(
    LeaseSummary,
    active=st.integers(0, 3),
    preemptions=st.integers(0, 6),
    quotas=st.just(0),
    max_active=st.just(256),
    max_preemptions=st.integers(1, 4),
)
facts = st.builds(
    LeaseFacts,
    by_id=st.none() | leases,
    preemptions=st.lists(ended, max_size=3).map(tuple),
    summary=st.none() | summaries,
    writer_dead=st.booleans(),
    acknowledged=st.booleans(),
    same_epoch=st.booleans(),
)
befores = st.builds(
    BeforeImage,
    origin=st.just(Origin(instance="i", session=1, epoch=None)),
    by_id=leases.map(lambda record: replace(record, subject=WORKER, resource=GPU)),
    preemptions_total=st.none() | st.integers(0, 6),
    window_empty=st.booleans(),
)


def not_applied(outcome: Outcome) -> bool:
    return isinstance(outcome, Rejected) and "not applied" in outcome.detail


@settings(deadline=None)
@given(before=befores, now=facts)
def test_no_verdict_contradicts_the_facts(before: BeforeImage, now: LeaseFacts) -> None:
    absent = replace(before, by_id=None)
    granted = grant_verdict(BINDING, absent, now)
    renewed = renew_verdict(BINDING, before, now, request=TAG)
    released = release_verdict(BINDING, before, now)
    ours = [record for record in now.preemptions if BINDING.holds(record)]
    held = now.by_id is not None and BINDING.holds(now.by_id)

    for outcome in (granted, renewed, released):
        if not_applied(outcome):
            assert now.writer_dead
            assert now.same_epoch
            assert not now.acknowledged
        assert not isinstance(outcome, Pending)

    if isinstance(granted, Committed):
        assert held or (now.same_epoch and ours)
    if not_applied(granted):
        assert now.by_id is None
        assert now.summary is not None
        assert now.summary.preemptions == absent.preemptions_total
    if isinstance(renewed, Committed):
        assert held
        assert now.by_id is not None
        assert now.by_id.request == TAG
    if not_applied(renewed):
        assert now.by_id == before.by_id
    if isinstance(released, Committed):
        assert now.same_epoch
        assert before.by_id is not None
        assert any(record.seq > before.by_id.seq for record in ours) or (now.acknowledged and not held)
    if not_applied(released):
        assert held


EVENTS = st.lists(
    st.sampled_from(["grant", "grant-other", "preempt", "renew", "churn", "reconnect", "restart"]), max_size=8
)


def _happen(hive: LeaseHive, event: str) -> None:
    try:
        match event:
            case "grant":
                hive.grant()
            case "grant-other":
                hive.grant(subject="worker-gpu-2")
            case "preempt":
                hive.preempt()
            case "churn":
                hive.grant("churn")
                hive.preempt("churn")
            case "reconnect":
                hive.reconnect()
            case "renew" if hive.leases:
                hive.renew()
    except ValueError:
        pass


@settings(deadline=None)
@given(
    history=EVENTS,
    later=EVENTS,
    answer=st.sampled_from(["lost", "drop"]),
    action=st.sampled_from(["grant", "renew", "release"]),
    capacity=st.integers(1, 5),
    counted=st.booleans(),
)
def test_observation_never_denies_a_write_that_landed_nor_makes_one_up(
    *, history: list[str], later: list[str], answer: str, action: str, capacity: int, counted: bool
) -> None:
    hive = LeaseHive(capacity=capacity)
    for event in history:
        _happen(hive, event)
    held = [record for record in hive.leases if record.id == LEASE]
    if action == "grant" and held:
        hive.preempt()
    if action != "grant" and not (held and held[0].subject == WORKER):
        if held:
            hive.preempt()
        hive.grant()
    if not counted:
        hive.broken[SUMMARY] = HiveRefusedError("CAT", SUMMARY, DENIED)
    request = {"grant": grant, "renew": renew, "release": release}[action]()
    run = Run(hive, request, answer=answer)
    others = 0
    for event in later:
        before = hive.seq
        _happen(hive, event)
        others += hive.seq - before
    outcome = run.observe_after_restart() if "restart" in later else run.observe()
    if answer == "lost":
        assert not not_applied(outcome)
    if answer == "drop" and others == 0:
        # Nobody else acted, so a commitment would be an invention.
        assert not isinstance(outcome, Committed)
    if answer == "drop" and action == "grant" and "grant" not in later:
        assert not isinstance(outcome, Committed)


def test_the_plan_is_all_that_a_later_process_needs() -> None:
    run = Run(LeaseHive(), grant(), answer="lost")
    assert isinstance(run.plan, Plan)
    assert run.plan.intent["path"] == LEASE_CTL
    check(run.observe_after_restart(), Committed)


@pytest.mark.parametrize("kind", RefusalKind)
def test_only_a_refusal_that_passes_leaves_an_observation_open(kind: RefusalKind) -> None:
    error = HiveRefusedError("CAT", "/proc/lease/summary", Refusal(kind=kind, text="ERR CAT"))
    passes = kind in {RefusalKind.BUSY, RefusalKind.LIMIT}
    assert isinstance(unseen("gpu.lease.grant", error), Unobserved) == passes
