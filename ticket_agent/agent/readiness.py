"""Proof, before anything is dispatched, that the receipt Worker of a ticket is READY.

Two witnesses are asked: the Worker's own telemetry projection, which every root offers, and root's own word
on the admission (``current/<digest>``), which newer roots offer. Only the latter can end a ticket for good:
anyone with telemetry rights may write a line that looks like a state record, so telemetry alone can make a
ticket wait but never fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ticket_agent.protocol.current import CurrentTicket, current_path, parse_current
from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.namespace import HiveRefusedError, Namespace
from ticket_agent.protocol.shard import telemetry_path
from ticket_agent.protocol.worker_state import newest_worker_state, ready_refusal

if TYPE_CHECKING:
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["Proof", "Readiness", "prove_ready", "read_current"]

GONE_LIFECYCLES = frozenset({"absent", "closing", "faulted", "terminal"})
"""States from which a Worker of this identity never comes back (shards and worker telemetry: states)."""


class Readiness(StrEnum):
    """What the witnesses say."""

    READY = "ready"
    NOT_YET = "not-yet"
    WORKER_GONE = "worker-gone"
    ALREADY_DECIDED = "already-decided"
    FORGOTTEN = "forgotten"


@dataclass(frozen=True, slots=True)
class Proof:
    """The verdict and one line of evidence."""

    readiness: Readiness
    detail: str


def read_current(namespace: Namespace, spec: HostTicketSpec) -> CurrentTicket | None:
    """Root's own record of an admission; None when root does not know it (any more).

    Raises:
        HiveError: the read failed or root broke the record's format.
    """
    try:
        lines = namespace.read(current_path(spec.id, spec.idempotency_key))
    except HiveRefusedError as error:
        if error.absent:
            return None
        raise
    return parse_current(lines[0] if len(lines) == 1 else "\n".join(lines))


def prove_ready(namespace: Namespace, spec: HostTicketSpec, *, ask_current: bool, shard_bits: int) -> Proof:
    """Ask the witnesses in the order of their authority.

    Raises:
        HiveError: a read failed; nothing is known and the ticket waits.
    """
    if ask_current:
        verdict = _by_current(namespace, spec)
        if verdict is not None:
            return verdict
    return _by_telemetry(namespace, spec, shard_bits)


def _by_current(namespace: Namespace, spec: HostTicketSpec) -> Proof | None:
    try:
        current = read_current(namespace, spec)
    except ProtocolError as error:
        return Proof(Readiness.NOT_YET, f"root's record of this admission is malformed: {error}")
    if current is None or current.admission != spec.admission_sequence:
        return Proof(Readiness.FORGOTTEN, "root no longer knows this admission")
    if current.state != "pending":
        return Proof(Readiness.ALREADY_DECIDED, f"root already holds this admission as {current.state}")
    if current.lifecycle in GONE_LIFECYCLES:
        return Proof(
            Readiness.WORKER_GONE, f"receipt Worker {spec.receipt_worker_id} of this identity is gone"
        )
    if current.lifecycle != "ready" or current.ready_sequence == 0:
        return Proof(
            Readiness.NOT_YET, f"receipt Worker {spec.receipt_worker_id} is {current.lifecycle}, not READY"
        )
    return None


def _by_telemetry(namespace: Namespace, spec: HostTicketSpec, shard_bits: int) -> Proof:
    worker_id = spec.receipt_worker_id or ""
    try:
        path = telemetry_path(worker_id, shard_bits=shard_bits)
    except ProtocolError as error:
        return Proof(Readiness.NOT_YET, str(error))
    try:
        state = newest_worker_state(namespace.tail(path), worker_id)
        if state is None:
            # A ticketed session keeps a cursor per path, so its TAIL may hide what was read before.
            state = newest_worker_state(namespace.read(path), worker_id)
    except HiveRefusedError as error:
        return Proof(Readiness.NOT_YET, f"no telemetry of Worker {worker_id}: {error.refusal.text}")
    refusal = ready_refusal(state, spec)
    if refusal is not None:
        return Proof(Readiness.NOT_YET, refusal)
    return Proof(Readiness.READY, f"Worker {worker_id} is READY")
