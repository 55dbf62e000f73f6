"""A lease action that another program dispatched: committed by its own evidence, or unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lease_double import GPU, LEASE, WORKER, LeaseHive, grant, release, renew

from ticket_agent.gpu.lease import lease_providers, taken_over_plan
from ticket_agent.gpu.lease_evidence import BeforeImage, LeaseFacts
from ticket_agent.gpu.lease_verdict import LeaseBinding, Sought, taken_over_verdict
from ticket_agent.journal.outcome import Committed, Plan, PlanRefusedError, Unknown
from ticket_agent.protocol.lease import LeaseRecord, LeaseSummary, PreemptionRecord

if TYPE_CHECKING:
    from ticket_agent.protocol.spec import HostTicketSpec

TAG = "fb489ba47a1432b9a1a26150cdee94f4"
OTHER = "0" * 32
BINDING = LeaseBinding(action="gpu.lease.grant", id=LEASE, subject=WORKER, resource=GPU)
GRANT = Sought(terms=(60, 0))
RENEW = Sought(request=TAG)
RELEASE = Sought(reason="done")


def active(**changes: object) -> LeaseRecord:
    members = {"id": LEASE, "subject": WORKER, "resource": GPU, "ttl_s": 60, "priority": 0, "seq": 5}
    return LeaseRecord(**members | changes)  # type: ignore[arg-type]


def preempted(**changes: object) -> PreemptionRecord:
    members = {"id": LEASE, "subject": WORKER, "resource": GPU, "reason": "done", "seq": 6}
    return PreemptionRecord(**members | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sought", "by_id", "window", "kind"),
    [
        pytest.param(GRANT, active(), (), Committed, id="grant-active"),
        pytest.param(GRANT, active(ttl_s=61), (), Unknown, id="grant-other-ttl"),
        pytest.param(GRANT, active(priority=1), (), Unknown, id="grant-other-priority"),
        pytest.param(GRANT, active(request=TAG), (), Unknown, id="grant-renewed-since"),
        pytest.param(GRANT, active(subject="worker-9"), (), Unknown, id="grant-other-worker"),
        pytest.param(GRANT, active(resource="GPU-9"), (), Unknown, id="grant-other-gpu"),
        pytest.param(GRANT, None, (), Unknown, id="grant-absent"),
        pytest.param(GRANT, None, (preempted(),), Unknown, id="grant-preempted"),
        pytest.param(RENEW, active(request=TAG), (), Committed, id="renew-tagged"),
        pytest.param(RENEW, active(request=OTHER), (), Unknown, id="renew-other-tag"),
        pytest.param(RENEW, active(), (), Unknown, id="renew-no-tag"),
        pytest.param(RENEW, active(request=TAG, subject="worker-9"), (), Unknown, id="renew-other-worker"),
        pytest.param(RENEW, None, (), Unknown, id="renew-absent"),
        pytest.param(RELEASE, None, (preempted(),), Committed, id="release-preempted"),
        pytest.param(RELEASE, active(), (preempted(),), Unknown, id="release-active-again"),
        pytest.param(RELEASE, None, (preempted(reason="other"),), Unknown, id="release-other-reason"),
        pytest.param(RELEASE, None, (preempted(subject="worker-9"),), Unknown, id="release-other-worker"),
        pytest.param(RELEASE, None, (preempted(id="lease-9"),), Unknown, id="release-other-lease"),
        pytest.param(RELEASE, None, (), Unknown, id="release-gone"),
        pytest.param(RELEASE, active(), (), Unknown, id="release-active"),
    ],
)
def test_verdicts(
    sought: Sought, by_id: LeaseRecord | None, window: tuple[PreemptionRecord, ...], kind: type
) -> None:
    facts = LeaseFacts(by_id=by_id, preemptions=window, writer_dead=True)
    outcome = taken_over_verdict(BINDING, sought, facts)
    assert type(outcome) is kind, outcome
    # After a reboot the same sight is somebody else's.
    later = LeaseFacts(by_id=by_id, preemptions=window, writer_dead=True, same_epoch=False)
    assert type(taken_over_verdict(BINDING, sought, later)) is Unknown


@given(
    sought=st.sampled_from([GRANT, RENEW, RELEASE]),
    by_id=st.sampled_from([None, active(), active(ttl_s=1), active(subject="w"), active(request=TAG)]),
    window=st.lists(st.sampled_from([preempted(), preempted(reason="x"), preempted(id="y")]), max_size=3),
    dead=st.booleans(),
    acknowledged=st.booleans(),
    same_epoch=st.booleans(),
)
def test_nothing_is_ever_said_not_to_have_happened(
    sought: Sought,
    by_id: LeaseRecord | None,
    window: list[PreemptionRecord],
    *,
    dead: bool,
    acknowledged: bool,
    same_epoch: bool,
) -> None:
    summary = LeaseSummary(active=0, preemptions=len(window), quotas=0, max_active=8, max_preemptions=8)
    facts = LeaseFacts(
        by_id=by_id,
        preemptions=tuple(window),
        summary=summary,
        writer_dead=dead,
        acknowledged=acknowledged,
        same_epoch=same_epoch,
    )
    assert isinstance(taken_over_verdict(BINDING, sought, facts), Committed | Unknown)


def plan_for(request: HostTicketSpec) -> Plan:
    plan = taken_over_plan(request, source="host-ticket-agent at /old", epoch=2)
    assert plan.taken_over
    assert BeforeImage.from_json(plan.before).to_json() == plan.before
    return plan


@pytest.mark.parametrize("request_of", [grant, renew, release])
def test_a_plan_is_observed_and_never_executed(request_of: object) -> None:
    assert callable(request_of)
    hive = LeaseHive()
    if request_of is not grant:
        hive.grant()
    request = request_of()
    provider = lease_providers(hive, instance="later", epoch=lambda: 2)[request.action]
    plan = plan_for(request)
    assert isinstance(provider.observe(plan), Unknown)
    assert isinstance(provider.execute(plan), Unknown)
    assert not hive.writes
    # Its intent is the line that the action would have written.
    assert plan.intent == provider.plan(request).intent


def test_a_grant_that_is_there_is_committed() -> None:
    hive = LeaseHive()
    request = grant()
    first = lease_providers(hive, instance="first", epoch=lambda: 2)[request.action]
    assert isinstance(first.execute(first.plan(request)), Committed)
    later = lease_providers(hive, instance="later", epoch=lambda: 2)[request.action]
    assert isinstance(later.observe(plan_for(request)), Committed)
    rebooted = lease_providers(hive, instance="later", epoch=lambda: 3)[request.action]
    assert isinstance(rebooted.observe(plan_for(request)), Unknown)


def test_a_request_without_a_lease_line_has_no_such_plan() -> None:
    with pytest.raises(PlanRefusedError, match="cannot be performed"):
        taken_over_plan(grant(operation_id="x" * 33), source="host-ticket-agent", epoch=2)
