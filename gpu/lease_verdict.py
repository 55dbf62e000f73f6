"""What became of a lease write, decided from the plan's before-image and the facts of an observation. Pure.

The rules, in the order of their strength:

1. Evidence that only this operation can have made commits it.
2. "Not applied" is said only when the world is as before the write *and* nothing can still arrive: the
   connection that carried the write is dead, the hive has not rebooted, and no acknowledgement was seen.
3. Absence alone proves nothing. Everything else is Unknown, with the reason.

Without a before-image (the operation was taken over from another program) only the first rule is left, and of
the evidence only that which names the whole effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ticket_agent.journal.outcome import Committed, Outcome, Rejected, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.gpu.lease_evidence import BeforeImage, LeaseFacts
    from ticket_agent.protocol.lease import LeaseRecord, PreemptionRecord

__all__ = [
    "LeaseBinding",
    "Sought",
    "grant_verdict",
    "release_verdict",
    "renew_verdict",
    "taken_over_verdict",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseBinding:
    """Whose lease an operation is about.

    Attributes:
        action: the ticket's action, for messages.
        id: lease id, the ticket's operation id.
        subject: the Worker.
        resource: the GPU.
    """

    action: str
    id: str
    subject: str
    resource: str

    def holds(self, record: LeaseRecord | PreemptionRecord) -> bool:
        """Whether a record is this very lease: id, Worker and GPU."""
        return (record.id, record.subject, record.resource) == (self.id, self.subject, self.resource)

    def says(self, clause: str) -> str:
        """One line about the operation."""
        return f"{self.action} operation_id={self.id} {clause}"


def grant_verdict(lease: LeaseBinding, before: BeforeImage, now: LeaseFacts) -> Outcome:
    """Decide a grant whose id was planned as absent."""
    if now.by_id is not None and lease.holds(now.by_id):
        return Committed(lease.says("observed=active"), {"by_id": now.by_id.encode()})
    if now.same_epoch:
        for record in _new_preemptions(before, now):
            if lease.holds(record):
                # The id was free, so a preemption after the plan ended a lease that was granted after it.
                return Committed(lease.says("observed=preempted"), {"preemption": record.encode()})
    if now.by_id is not None:
        return Rejected(lease.says("observed=wrong-binding"), {"by_id": now.by_id.encode()})
    if not now.same_epoch:
        return Unknown(lease.says("observed=absent, but the hive has rebooted since"))
    if _nothing_may_arrive(now) and _no_preemption_since(before, now):
        return Rejected(lease.says("not applied: absent, nothing was preempted and the connection is gone"))
    return Unknown(lease.says("observed=absent"))


def renew_verdict(lease: LeaseBinding, before: BeforeImage, now: LeaseFacts, *, request: str) -> Outcome:
    """Decide a renewal that carries the tag ``request``."""
    if now.by_id is None:
        return Unknown(lease.says("observed=absent: the lease is gone, renewed or not"))
    evidence = {"by_id": now.by_id.encode()}
    if not lease.holds(now.by_id):
        return Rejected(lease.says("observed=wrong-binding"), evidence)
    if now.by_id.request == request:
        return Committed(lease.says("observed=active request=matched"), evidence)
    if now.same_epoch and _nothing_may_arrive(now) and now.by_id == before.by_id:
        return Rejected(
            lease.says("not applied: the lease is unchanged and the connection is gone"), evidence
        )
    # A later renewal replaces the tag, so another tag does not say that ours never landed.
    return Unknown(lease.says("observed=active request=other"), evidence)


def release_verdict(lease: LeaseBinding, before: BeforeImage, now: LeaseFacts) -> Outcome:
    """Decide a release whose lease was planned as active."""
    if before.by_id is None:
        return Unknown(lease.says("the plan recorded no active lease to compare with"))
    if not now.same_epoch:
        return Unknown(lease.says("the hive has rebooted since: its leases say nothing about this ticket"))
    for record in now.preemptions:
        # An older record with a lower number belongs to an earlier lease of the same id.
        if lease.holds(record) and record.seq > before.by_id.seq:
            return Committed(lease.says("observed=preempted"), {"preemption": record.encode()})
    if now.by_id is None or not lease.holds(now.by_id):
        return _gone(lease, now)
    evidence = {"by_id": now.by_id.encode()}
    unchanged = now.by_id == before.by_id or _no_preemption_since(before, now)
    if _nothing_may_arrive(now) and unchanged:
        clause = "not applied: the lease is still active and the connection is gone"
        return Rejected(lease.says(clause), evidence)
    return Unknown(lease.says("observed=active"), evidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """What tells a taken-over effect from its like; exactly the members of its action are set.

    Attributes:
        terms: seconds and priority of a grant.
        request: tag of a renewal.
        reason: reason of a release.
    """

    terms: tuple[int | None, int | None] | None = None
    request: str | None = None
    reason: str | None = None


def taken_over_verdict(lease: LeaseBinding, sought: Sought, now: LeaseFacts) -> Outcome:
    """Decide an operation that another program dispatched: committed by its own evidence, or unknown.

    A grant is there if the lease is active for this Worker and GPU with exactly the granted terms and no
    renewal's tag; a renewal if the lease carries its tag; a release if the lease is gone and a preemption of
    it carries the reason. "Not applied" is never said: nobody knows what the world was like before.
    """
    if not now.same_epoch:
        return Unknown(lease.says("taken over; the hive has rebooted since"))
    ours = now.by_id is not None and lease.holds(now.by_id)
    if now.by_id is not None and ours:
        evidence = {"by_id": now.by_id.encode()}
        terms = (now.by_id.ttl_s, now.by_id.priority)
        if sought.terms == terms and now.by_id.request is None:
            return Committed(lease.says("observed=active"), evidence)
        if sought.request is not None and sought.request == now.by_id.request:
            return Committed(lease.says("observed=active request=matched"), evidence)
    if sought.reason is not None and now.by_id is None:
        for record in now.preemptions:
            if lease.holds(record) and record.reason == sought.reason:
                return Committed(lease.says("observed=preempted"), {"preemption": record.encode()})
    seen = "absent" if now.by_id is None else "active" if ours else "wrong-binding"
    return Unknown(lease.says(f"taken over without a before-image; observed={seen} proves nothing"))


def _gone(lease: LeaseBinding, now: LeaseFacts) -> Outcome:
    if now.acknowledged:
        return Committed(lease.says("observed=gone write=acknowledged"))
    return Unknown(lease.says("gone, but not provably by this ticket"))


def _nothing_may_arrive(now: LeaseFacts) -> bool:
    return now.writer_dead and not now.acknowledged


def _no_preemption_since(before: BeforeImage, now: LeaseFacts) -> bool:
    if before.preemptions_total is None or now.summary is None:
        return False
    return now.summary.preemptions == before.preemptions_total


def _new_preemptions(before: BeforeImage, now: LeaseFacts) -> Iterator[PreemptionRecord]:
    """Visible preemptions that certainly happened after the plan.

    The window shows the oldest retained records, so its n-th record has the ordinal "total - retained + n"
    among all preemptions since boot. Without counters, only a window that was empty tells new from old.
    """
    if before.preemptions_total is None or now.summary is None:
        if before.window_empty:
            yield from now.preemptions
        return
    numbers = [record.seq for record in now.preemptions]
    if numbers != sorted(set(numbers)):
        return
    retained = min(now.summary.preemptions, now.summary.max_preemptions)
    for ordinal, record in enumerate(now.preemptions, start=now.summary.preemptions - retained + 1):
        if ordinal > before.preemptions_total:
            yield record
