"""Names that follow from a ticket: of its enrolment file and of the units that run its phases."""

from __future__ import annotations

from ticket_agent.peft.release.canonical import digest, encode_ordered

__all__ = ["enrolment_key", "unit_infix"]


def enrolment_key(ticket_id: str, idempotency_key: str) -> str:
    """SHA-256 that names the enrolment of a ticket's evidence keys; over both ids as an array of JSON."""
    return digest(encode_ordered([ticket_id, idempotency_key]))


def unit_infix(ticket_id: str) -> str:
    """The 16 hexadecimal digits that tell the units of one ticket from those of another."""
    return digest(ticket_id.encode("utf-8"))[:16]
