"""Delegated tickets at the gateway: whose they are, what they cover, what they have used up."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from ticket_agent.protocol.capability import CapabilityError, Claims, decode_ticket, verify_mac

from .gateway_access import AccessRefusal
from .tickets import LimitError, Permit

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DelegatedTickets"]

MAX_TTL_S: Final = 86_400
MAX_KNOWN: Final = 1024


class DelegatedTickets:
    """Judges every use of a ticket; safe for many threads.

    1. A ticket needs a subject, an end within ``max_ttl_s`` and a scope that covers what is asked for.
    2. Operations, bandwidth and rates are counted per ticket, whatever connection it comes over.
    3. A clock that went back makes it refuse: no count could be trusted.

    Args:
        clock: unix time in milliseconds.
        key: secret that tickets are minted with; None checks their structure only.
        max_ttl_s: longest life of a ticket.
    """

    def __init__(self, *, clock: Callable[[], int], key: str | None, max_ttl_s: int = MAX_TTL_S) -> None:
        self._clock = clock
        self._key = key
        self._max_ttl_s = max_ttl_s
        self._lock = threading.Lock()
        self._permits: dict[str, Permit] = {}
        self._latest_ms = 0

    def refusal(self, ticket: str, *, path: str, write: bool, size: int) -> AccessRefusal | None:
        """Why the ticket does not allow it, or None; what is allowed is counted."""
        try:
            capability = decode_ticket(ticket)
        except CapabilityError:
            return _denied("format")
        if self._key is not None and not verify_mac(capability, self._key):
            return _denied("mac")
        with self._lock:
            now = self._clock()
            wrong = self._wrong_claims(capability.claims, now)
            if wrong is not None:
                return _denied(wrong)
            self._latest_ms = now
            return self._charged(capability.fingerprint, capability.claims, path, write=write, size=size)

    def _wrong_claims(self, claims: Claims, now: int) -> str | None:
        if now < self._latest_ms:
            return "clock"
        if not claims.subject:
            return "subject"
        if claims.ttl_s is None or claims.ttl_s > self._max_ttl_s:
            return "ttl"
        if claims.issued_at_ms > now:
            return "issued-at"
        return None if claims.scopes else "scope"

    def _charged(
        self, name: str, claims: Claims, path: str, *, write: bool, size: int
    ) -> AccessRefusal | None:
        permit = self._permits.get(name)
        if permit is None:
            if len(self._permits) == MAX_KNOWN:
                return AccessRefusal(429, "ELIMIT delegated-ticket-table")
            permit = self._permits[name] = Permit(claims, self._clock)
        try:
            permit.charge("ECHO" if write else "CAT", path)
        except LimitError as limit:
            if limit.reason == "quota":
                return AccessRefusal(429, "ELIMIT delegated-ticket-quota")
            return _denied("scope")
        permit.spend(size)
        return None


def _denied(why: str) -> AccessRefusal:
    return AccessRefusal(403, f"EPERM delegated-ticket-{why}")
