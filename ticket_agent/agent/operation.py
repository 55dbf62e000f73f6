"""One open operation as the agent carries it from pass to pass; the record in the journal is the truth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ticket_agent.agent.keys import V2_FAMILY
from ticket_agent.journal.recovery import Admission
from ticket_agent.journal.transitions import State
from ticket_agent.protocol.spec import parse_spec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ticket_agent.journal.outcome import Provider
    from ticket_agent.journal.record import Record
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["FIRST_DELAY_S", "UNDECIDED", "UNPUBLISHED", "Operation", "in_order", "open_operation", "spec_of"]

UNDECIDED = (State.PREPARED, State.EXECUTING)
"""States in which an operation holds its lane."""

UNPUBLISHED = (State.PREPARED, State.EXECUTING, State.PERSISTED)
"""States in which an operation holds back later results of its group."""

FIRST_DELAY_S = 0.01
"""First pause, in seconds, of an operation that has to wait; it doubles while nothing changes."""


@dataclass(slots=True)
class Operation:
    """An operation that has not ended, with what only this process knows about it.

    Attributes:
        record: its record as last written.
        spec: the admitted request, parsed from the record's exact bytes.
        provider: who performs and observes it.
        lane: operations of one lane run in sequence order.
        group: results of one group are published in admission order: the receipt Worker in the identity
            that was admitted, because a later Worker of the same id has a count of its own; None for
            version 1.
        admission: whether root still knows the admission.
        forgotten_why: the evidence for that, once it is :attr:`Admission.FORGOTTEN`.
        frees_lane: undecided though it is, it holds nobody up: it was relayed, and its result is awaited.
        audited: intermediate states whose lines are known to be visible.
        may_dispatch: False while its lane is held, by an undecided operation or an unreadable record.
        may_publish: False while an earlier result of its group is not published yet.
        followed: this process dispatched it and has known ever since that its effect goes on.
        waiting: why it does not move, in words; empty while it does.
        retry_at: monotonic seconds before which it is not tried again.
    """

    record: Record
    spec: HostTicketSpec
    provider: Provider[HostTicketSpec]
    lane: str
    group: str | None
    admission: Admission = Admission.KNOWN
    forgotten_why: str = ""
    audited: set[str] = field(default_factory=set)
    may_dispatch: bool = True
    may_publish: bool = True
    frees_lane: bool = False
    followed: bool = False
    waiting: str = ""
    retry_at: float = 0.0
    delay_s: float = FIRST_DELAY_S

    def wait(self, why: str, *, now: float, longest_s: float) -> None:
        """Pause before the next try, longer each time."""
        self.waiting = why
        self.retry_at = now + min(self.delay_s, longest_s)
        self.delay_s = min(self.delay_s * 2, longest_s)

    def moved(self, record: Record) -> None:
        """Take a new record; whatever it waited for is over."""
        self.record = record
        self.waiting = ""
        self.retry_at = 0.0
        self.delay_s = FIRST_DELAY_S


def open_operation(record: Record, spec: HostTicketSpec, provider: Provider[HostTicketSpec]) -> Operation:
    """Carry a record, new or found at start-up."""
    return Operation(
        record=record,
        spec=spec,
        provider=provider,
        lane=provider.lane(spec),
        group=_worker_identity(record, spec) if record.family == V2_FAMILY else None,
    )


def in_order(operations: Iterable[Operation]) -> list[Operation]:
    """The order of every pass: by the hive's lives, version 1 first, then as admitted."""
    return sorted(
        operations, key=lambda op: (op.record.epoch, op.record.family == V2_FAMILY, op.record.sequence)
    )


def _worker_identity(record: Record, spec: HostTicketSpec) -> str:
    parts = (
        record.epoch,
        spec.receipt_worker_id,
        spec.resolved_worker_slot,
        spec.resolved_lease_epoch,
        spec.receipt_supervisor_generation,
        spec.receipt_cap_generation,
    )
    return "/".join(str(part) for part in parts)


def spec_of(record: Record) -> HostTicketSpec:
    """Parse the request of a record that was accepted before.

    Raises:
        ProtocolError: the record holds a request that this version does not understand.
    """
    source = "admitted" if record.family == V2_FAMILY else "raw"
    return parse_spec(record.request, source=source)  # type: ignore[arg-type]
