"""Root's own record of one admission: ``/host/tickets/current/<digest>`` (current and admission)."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from .errors import RecordLineError
from .records import parse_fields, parse_number, parse_numbers
from .tokens import U16_MAX, check_token

__all__ = ["CurrentTicket", "correlation_digest", "current_path", "encode_current", "parse_current"]

PREFIX = "HOST_TICKET_CURRENT "
SCHEMA = "host-ticket-current/v1"
DIRECTORY = "/host/tickets/current"
"""Fixed: this path ignores where the tickets are mounted."""
MAX_LINE_BYTES = 256
STATES = frozenset({"pending", "confirmed", "rejected", "stale"})
_KEYS = ("schema", "state", "role", "worker", "lifecycle", "identity", "sequence", "admission")
_WHAT = "current ticket record"


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTicket:
    """What root knows about one admission and the Worker it is pinned to.

    Attributes:
        state: ``pending``, ``confirmed``, ``rejected`` or ``stale``. ``confirmed`` means that root submitted
            the receipt, not yet that the Worker completed it.
        role: role of the pinned Worker.
        worker: its id.
        lifecycle: its state; ``absent`` when the current Worker is not exactly the admitted one.
        slot: admitted slot, as are ``lease_epoch``, ``supervisor_generation`` and ``cap_generation``.
        ready_sequence: counters of the current Worker, zero when absent.
        admission: the admission sequence.
    """

    state: str
    role: str
    worker: str
    lifecycle: str
    slot: int
    lease_epoch: int
    supervisor_generation: int
    cap_generation: int
    ready_sequence: int
    control_sequence: int
    receipt_sequence: int
    completion_sequence: int
    admission: int


def correlation_digest(id: str, idempotency_key: str) -> str:  # noqa: A002 - the ticket's own word
    """Return the digest under which root files an admission: SHA-256 over both names with their lengths.

    Raises:
        RecordLineError: one of the two is no token.
    """
    digest = hashlib.sha256(b"host-ticket-correlation/v1\0")
    for member, value in (("id", id), ("idempotency_key", idempotency_key)):
        data = check_token(value, member=member, error=RecordLineError).encode("ascii")
        digest.update(struct.pack(">H", len(data)) + data)
    return digest.hexdigest()


def current_path(id: str, key: str) -> str:  # noqa: A002 - the ticket's own word
    """Return the path of root's record of (``id``, idempotency ``key``).

    Raises:
        RecordLineError: one of the two is no token.
    """
    return f"{DIRECTORY}/{correlation_digest(id, key)}"


def parse_current(line: str) -> CurrentTicket:
    """Read root's record.

    Raises:
        RecordLineError: not exactly the eight known fields, or a value out of range.
    """
    if len(line) > MAX_LINE_BYTES or not line.startswith(PREFIX):
        raise RecordLineError(
            f"{_WHAT}: expected one line of at most {MAX_LINE_BYTES} bytes that starts with {PREFIX.strip()}",
            code="record-prefix",
        )
    fields = parse_fields(line.removeprefix(PREFIX), what=_WHAT, keys=_KEYS)
    if fields["schema"] != SCHEMA:
        raise RecordLineError(f"{_WHAT}: schema must be {SCHEMA}", code="record-schema", member="schema")
    if fields["state"] not in STATES:
        raise RecordLineError(
            f"{_WHAT}: state must be one of {', '.join(sorted(STATES))}", code="record-state", member="state"
        )
    slot, lease_epoch, supervisor_generation, cap_generation = parse_numbers(
        fields, "identity", what=_WHAT, count=4
    )
    ready, control, receipt, completion = parse_numbers(fields, "sequence", what=_WHAT, count=4)
    if slot > U16_MAX:
        raise RecordLineError(f"{_WHAT}: slot exceeds {U16_MAX}", code="record-number", member="identity")
    return CurrentTicket(
        state=fields["state"],
        role=check_token(fields["role"], member="role", error=RecordLineError),
        worker=check_token(fields["worker"], member="worker", error=RecordLineError),
        lifecycle=check_token(fields["lifecycle"], member="lifecycle", error=RecordLineError),
        slot=slot,
        lease_epoch=lease_epoch,
        supervisor_generation=supervisor_generation,
        cap_generation=cap_generation,
        ready_sequence=ready,
        control_sequence=control,
        receipt_sequence=receipt,
        completion_sequence=completion,
        admission=parse_number(fields, "admission", what=_WHAT, low=1),
    )


def encode_current(value: CurrentTicket) -> str:
    """Write the record as root does, without a newline."""
    identity = (value.slot, value.lease_epoch, value.supervisor_generation, value.cap_generation)
    sequence = (
        value.ready_sequence,
        value.control_sequence,
        value.receipt_sequence,
        value.completion_sequence,
    )
    return (
        f"{PREFIX}schema={SCHEMA} state={value.state} role={value.role} worker={value.worker} "
        f"lifecycle={value.lifecycle} identity={','.join(map(str, identity))} "
        f"sequence={','.join(map(str, sequence))} admission={value.admission}"
    )
