"""Capability tickets for tests."""

from __future__ import annotations

from typing import Any

from ticket_agent.protocol.capability import Claims, Role, mint_ticket

SECRET = "lab-role-secret"
ISSUED_MS = 1_700_000_000_000


def lab_ticket(*, secret: str = SECRET, **claims: Any) -> str:
    """The text of a ticket; a queen's unless told otherwise."""
    return mint_ticket(Claims(**{"role": Role.QUEEN, "issued_at_ms": ISSUED_MS, **claims}), secret).reveal()
