"""The version-2 actions ``gpu.lease.grant``, ``gpu.lease.renew`` and ``gpu.lease.release``.

The lease id is the ticket's operation id, its subject the receipt Worker, its resource the GPU that the
ticket names as its own subject. An action is one JSON line appended to ``/queen/lease/ctl`` and nothing else;
whether it took effect is read from ``/proc/lease``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from ticket_agent.gpu.dispatch import Dispatcher, Origin
from ticket_agent.gpu.lease_evidence import (
    BeforeImage,
    LeaseFacts,
    LeaseReader,
    PlanFormatError,
    optional_integer,
    optional_text,
    required_text,
    unseen,
)
from ticket_agent.gpu.lease_verdict import (
    LeaseBinding,
    Sought,
    grant_verdict,
    release_verdict,
    renew_verdict,
    taken_over_verdict,
)
from ticket_agent.journal.outcome import (
    Committed,
    Outcome,
    Pending,
    Plan,
    PlanRefusedError,
    Provider,
    Rejected,
    Unknown,
)
from ticket_agent.protocol.args import LeaseReleaseArgs, LeaseTermArgs
from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.lease import (
    GrantControl,
    PreemptControl,
    RenewBoundControl,
    check_lease_id,
    check_lease_resource,
    check_lease_subject,
    check_preempt_reason,
    request_tag,
)
from ticket_agent.protocol.namespace import Acked, HiveError, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ticket_agent.journal.outcome import JsonValue
    from ticket_agent.protocol.lease import LeaseRecord
    from ticket_agent.protocol.namespace import Namespace
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["LEASE_CONTROL", "LeaseGrant", "LeaseRelease", "LeaseRenew", "lease_providers", "taken_over_plan"]

LEASE_CONTROL: Final = "/queen/lease/ctl"
"""The only path that these actions write to."""


def lease_providers(
    namespace: Namespace,
    *,
    instance: str | None = None,
    single_owner: bool = True,
    epoch: Callable[[], int] | None = None,
) -> dict[str, Provider[HostTicketSpec]]:
    """The version-2 lease actions of one hive, by action name.

    Args:
        namespace: the hive.
        instance: nonce of this namespace object's life, never used before; drawn at random if absent.
        single_owner: whether a newer session proves that the older connection is gone (true of the console).
        epoch: number of the hive's present life, without I/O.
    """
    dispatcher = Dispatcher(
        namespace,
        instance=uuid4().hex if instance is None else instance,
        single_owner=single_owner,
        epoch=epoch,
    )
    return {action: kind(namespace, dispatcher) for action, kind in _ACTIONS.items()}


def taken_over_plan(request: HostTicketSpec, *, source: str, epoch: int) -> Plan:
    """The plan of a lease action that another program dispatched: its intent, and no before-image.

    :meth:`_LeaseAction.observe` judges it by :func:`taken_over_verdict`; ``execute`` refuses it.

    Args:
        request: an admitted lease ticket.
        source: that program, one line.
        epoch: number of the hive's life in which it was dispatched.

    Raises:
        PlanRefusedError: no lease line follows from the request, so that there is nothing to look for.
    """
    kind = _ACTIONS.get(request.action)
    if kind is None:
        raise PlanRefusedError(f"{request.action} is no lease action")
    try:
        intent = kind.intend(_binding(request), request)
    except ProtocolError as error:
        raise PlanRefusedError(f"{request.action} cannot be performed: {error}") from error
    # The empty nonce is nobody's: whoever wrote has ended, or its own lock would have stopped the takeover.
    origin = Origin(instance="", session=0, epoch=epoch)
    before = BeforeImage(origin=origin, by_id=None, taken_over=source)
    return Plan(before=before.to_json(), intent=intent.to_json())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Intent:
    """``Plan.intent`` of a lease action: the line to write and the names and terms in it."""

    lease: LeaseBinding
    line: str
    request: str | None = None
    ttl_s: int | None = None
    priority: int | None = None
    reason: str | None = None

    def to_json(self) -> dict[str, JsonValue]:
        return {
            "action": self.lease.action,
            "path": LEASE_CONTROL,
            "line": self.line,
            "id": self.lease.id,
            "subject": self.lease.subject,
            "resource": self.lease.resource,
            "request": self.request,
            "ttl_s": self.ttl_s,
            "priority": self.priority,
            "reason": self.reason,
        }

    @property
    def sought(self) -> Sought:
        """What would show this very effect to somebody who did not see the world before it."""
        terms = None if self.ttl_s is None or self.request is not None else (self.ttl_s, self.priority)
        return Sought(terms=terms, request=self.request, reason=self.reason)

    @classmethod
    def from_json(cls, intent: Mapping[str, JsonValue]) -> _Intent:
        if intent.get("path") != LEASE_CONTROL:
            raise PlanFormatError("the plan's intent is not a lease control line; it is not written")
        return cls(
            lease=LeaseBinding(
                action=required_text(intent, "action"),
                id=required_text(intent, "id"),
                subject=required_text(intent, "subject"),
                resource=required_text(intent, "resource"),
            ),
            line=required_text(intent, "line"),
            request=optional_text(intent, "request"),
            ttl_s=optional_integer(intent, "ttl_s"),
            priority=optional_integer(intent, "priority"),
            reason=optional_text(intent, "reason"),
        )


class _LeaseAction(ABC):
    """What the three actions share; subclasses say what to check, to write and to conclude."""

    action: str

    def __init__(self, namespace: Namespace, dispatcher: Dispatcher) -> None:
        self._namespace: Final = namespace
        self._reader: Final = LeaseReader(namespace)
        self._dispatcher: Final = dispatcher

    def lane(self, request: HostTicketSpec) -> str:
        """One lane per lease."""
        return f"gpu-lease/{request.operation_id}"

    def plan(self, request: HostTicketSpec) -> Plan:
        """Check the names, look at the lease and fix the line to write. Reads only.

        Raises:
            PlanRefusedError: the hive's state or its rules exclude the action.
            HiveError: the hive could not be read.
        """
        try:
            lease = _binding(request)
            intent = self.intend(lease, request)
        except ProtocolError as error:
            raise PlanRefusedError(f"{request.action} cannot be performed: {error}") from error
        return Plan(before=self._look(intent).to_json(), intent=intent.to_json())

    def execute(self, plan: Plan) -> Outcome:
        """Append the planned line, once, and judge the answer."""
        # Both are read before the write: afterwards nothing but the hive may raise.
        intent, before = _Intent.from_json(plan.intent), BeforeImage.from_json(plan.before)
        if before.taken_over is not None:
            return Unknown(intent.lease.says("taken over: another program may have performed it"))
        try:
            answer = self._dispatcher.append(LEASE_CONTROL, intent.line, session=before.origin.session)
        except HiveError as error:
            return Rejected(intent.lease.says(f"not applied: nothing was sent: {error}"))
        if isinstance(answer, Refused):
            return Rejected(intent.lease.says(f"refused by the hive: {answer.refusal.text}"))
        if not isinstance(answer, Acked):
            return Unknown(intent.lease.says(f"the hive's answer was lost: {answer.why}"))
        return self._settled_by_ack(intent) or self._confirm(intent, before)

    def observe(self, plan: Plan) -> Outcome:
        """Tell from the hive's lease nodes what became of the planned line.

        Reads only. A hive that cannot be read, or shows something malformed, makes the outcome Unknown.
        """
        try:
            intent, before = _Intent.from_json(plan.intent), BeforeImage.from_json(plan.before)
            if before.taken_over is not None:
                facts = self._facts(intent, before.origin, needs_window=lambda _: intent.reason is not None)
                return taken_over_verdict(intent.lease, intent.sought, facts)
            return self._judge(intent, before)
        except (HiveError, PlanFormatError) as error:
            return unseen(self.action, error)

    def _confirm(self, intent: _Intent, before: BeforeImage) -> Outcome:
        try:
            verdict = self._judge(intent, before)
        except HiveError as error:
            return Pending(intent.lease.says(f"acknowledged, not yet observed: {error}"))
        if isinstance(verdict, Committed):
            return verdict
        # Accepted is accepted: a reading that does not show it yet must not end the operation.
        return Pending(intent.lease.says("acknowledged; its effect is not visible yet"))

    def _settled_by_ack(self, intent: _Intent) -> Committed | None:  # noqa: ARG002 - for the one that is
        return None

    @classmethod
    @abstractmethod
    def intend(cls, lease: LeaseBinding, request: HostTicketSpec) -> _Intent:
        """The exact effect that the request asks for; a refusal is a ProtocolError."""

    @abstractmethod
    def _look(self, intent: _Intent) -> BeforeImage:
        """The before-image; raises PlanRefusedError where the hive's state excludes the effect."""

    @abstractmethod
    def _judge(self, intent: _Intent, before: BeforeImage) -> Outcome:
        """What the hive shows now, compared with the before-image."""

    def _facts(
        self, intent: _Intent, origin: Origin, *, needs_window: Callable[[LeaseRecord | None], bool]
    ) -> LeaseFacts:
        """Read the lease and, if it does not decide alone, the window of preemptions with its counters."""
        by_id = self._reader.by_id(intent.lease.id)
        # That read ran on this session, if need be opened for it; what follows runs on it or on a later one.
        session = self._namespace.session
        preemptions, summary = self._reader.window() if needs_window(by_id) else ((), None)
        return LeaseFacts(
            by_id=by_id,
            preemptions=preemptions or (),
            summary=summary,
            writer_dead=self._dispatcher.writer_dead(origin, LEASE_CONTROL, intent.line, session=session),
            acknowledged=self._dispatcher.acknowledged(origin, LEASE_CONTROL, intent.line),
            same_epoch=self._dispatcher.same_epoch(origin),
        )


class LeaseGrant(_LeaseAction):
    """``gpu.lease.grant``: a lease on a GPU of the inventory, under an id that has none."""

    action = "gpu.lease.grant"

    @classmethod
    def intend(cls, lease: LeaseBinding, request: HostTicketSpec) -> _Intent:
        """See :meth:`_LeaseAction.intend`."""
        args = _term_args(request)
        control = GrantControl(
            id=lease.id,
            subject=lease.subject,
            resource=lease.resource,
            ttl_s=args.ttl_s,
            priority=args.priority,
        )
        return _Intent(lease=lease, line=control.encode(), ttl_s=args.ttl_s, priority=args.priority)

    def _look(self, intent: _Intent) -> BeforeImage:
        lease = intent.lease
        if lease.resource not in self._reader.gpus():
            raise PlanRefusedError(lease.says(f"GPU id {lease.resource} is absent from the /gpu inventory"))
        if self._reader.by_id(lease.id) is not None:
            raise PlanRefusedError(lease.says("is already active; grant under a new operation id"))
        # After the absence was seen, so that what counts as new cannot be older than it.
        window = self._reader.preemptions()
        summary = self._reader.summary()
        return BeforeImage(
            origin=self._dispatcher.origin(),
            by_id=None,
            preemptions_total=None if summary is None else summary.preemptions,
            window_empty=window == (),
            preemptions=tuple(record.encode() for record in window or () if record.id == lease.id),
        )

    def _judge(self, intent: _Intent, before: BeforeImage) -> Outcome:
        def undecided(record: LeaseRecord | None) -> bool:
            return record is None or not intent.lease.holds(record)

        return grant_verdict(intent.lease, before, self._facts(intent, before.origin, needs_window=undecided))


class LeaseRenew(_LeaseAction):
    """``gpu.lease.renew``: new terms for an active lease, tagged with the ticket's idempotency key."""

    action = "gpu.lease.renew"

    @classmethod
    def intend(cls, lease: LeaseBinding, request: HostTicketSpec) -> _Intent:
        """See :meth:`_LeaseAction.intend`."""
        args = _term_args(request)
        tag = request_tag(request.idempotency_key)
        control = RenewBoundControl(
            id=lease.id,
            subject=lease.subject,
            resource=lease.resource,
            request=tag,
            ttl_s=args.ttl_s,
            priority=args.priority,
        )
        return _Intent(
            lease=lease, line=control.encode(), request=tag, ttl_s=args.ttl_s, priority=args.priority
        )

    def _look(self, intent: _Intent) -> BeforeImage:
        lease = intent.lease
        record = self._reader.by_id(lease.id)
        if record is None or not lease.holds(record):
            raise PlanRefusedError(_not_ours(lease, active=record is not None))
        same_terms = (record.ttl_s, record.priority) == (intent.ttl_s, intent.priority)
        if record.request == intent.request and not same_terms:
            raise PlanRefusedError(lease.says("was renewed under this idempotency key with other terms"))
        return BeforeImage(origin=self._dispatcher.origin(), by_id=record)

    def _settled_by_ack(self, intent: _Intent) -> Committed | None:
        # The hive compares binding and tag itself before it acknowledges; a reading could only be staler.
        return Committed(intent.lease.says(f"observed=active request={intent.request}"))

    def _judge(self, intent: _Intent, before: BeforeImage) -> Outcome:
        if intent.request is None:
            raise PlanFormatError("the plan of a renewal carries no request tag")
        facts = self._facts(intent, before.origin, needs_window=lambda _: False)
        return renew_verdict(intent.lease, before, facts, request=intent.request)


class LeaseRelease(_LeaseAction):
    """``gpu.lease.release``: preempt the ticket's own lease.

    The GPU need not be in the inventory: an inventory lapses with its publisher, and the root's lease record
    is proof enough of which GPU the lease is on.
    """

    action = "gpu.lease.release"

    @classmethod
    def intend(cls, lease: LeaseBinding, request: HostTicketSpec) -> _Intent:
        """See :meth:`_LeaseAction.intend`."""
        args = request.action_args()
        if not isinstance(args, LeaseReleaseArgs):
            raise PlanRefusedError(lease.says("carries no release arguments"))
        reason = check_preempt_reason(args.reason)
        control = PreemptControl(id=lease.id, reason=reason)
        return _Intent(lease=lease, line=control.encode(), reason=reason)

    def _look(self, intent: _Intent) -> BeforeImage:
        record = self._reader.by_id(intent.lease.id)
        if record is None or not intent.lease.holds(record):
            raise PlanRefusedError(_not_ours(intent.lease, active=record is not None))
        summary = self._reader.summary()
        return BeforeImage(
            origin=self._dispatcher.origin(),
            by_id=record,
            preemptions_total=None if summary is None else summary.preemptions,
        )

    def _judge(self, intent: _Intent, before: BeforeImage) -> Outcome:
        facts = self._facts(intent, before.origin, needs_window=lambda _: True)
        return release_verdict(intent.lease, before, facts)


_ACTIONS: Final[dict[str, type[_LeaseAction]]] = {
    kind.action: kind for kind in (LeaseGrant, LeaseRenew, LeaseRelease)
}


def _binding(request: HostTicketSpec) -> LeaseBinding:
    return LeaseBinding(
        action=request.action,
        id=check_lease_id(request.operation_id),
        subject=check_lease_subject(request.receipt_worker_id),
        resource=check_lease_resource(request.subject_ref),
    )


def _term_args(request: HostTicketSpec) -> LeaseTermArgs:
    args = request.action_args()
    if not isinstance(args, LeaseTermArgs):
        raise PlanRefusedError(f"{request.action} carries no lease terms")
    return args


def _not_ours(lease: LeaseBinding, *, active: bool) -> str:
    if not active:
        return lease.says("is not active")
    return lease.says(f"is not pinned to Worker {lease.subject} and GPU {lease.resource}")
