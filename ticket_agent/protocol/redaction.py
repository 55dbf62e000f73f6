"""Takes capability tickets out of texts that people or files will see."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["redact_tickets", "ticket_fingerprint"]

_MARK: Final = "cohesix-ticket-"
_ANYWHERE: Final = re.compile(r"cohesix-ticket-[0-9a-f]+(?:\.[0-9a-f]*)?", re.IGNORECASE)


def ticket_fingerprint(text: str) -> str:
    """Return a ticket's name for logs: the first 12 digits of the SHA-256 of its text."""
    import hashlib  # noqa: PLC0415 - start-up time; most texts hold no ticket

    return hashlib.sha256(text.encode()).hexdigest()[:12]


def redact_tickets(text: str) -> str:
    """Return ``text`` with every ticket, whole or cut, replaced by its fingerprint."""
    if _MARK not in text.lower():
        return text
    return _ANYWHERE.sub(lambda match: f"[ticket {ticket_fingerprint(match[0])}]", text)
