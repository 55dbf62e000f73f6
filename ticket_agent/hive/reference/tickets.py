"""Capability tickets on the root's side: who is admitted with one, and what the session may then do.

Modelled: MAC, role, subject, expiry, scopes, operations a second, budget of operations, bandwidth. Budgets of
ticks and the quotas of tail cursors are read and not enforced: here a tail keeps no cursor.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from ticket_agent.protocol.capability import (
    Access,
    CapabilityError,
    Claims,
    Role,
    decode_ticket,
    verify_mac,
)
from ticket_agent.protocol.capability_check import CLOCK_SKEW_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["AttachDeniedError", "LimitError", "Permit", "TicketDesk"]

_ACCESS: Final[Mapping[str, Access]] = {
    "LS": Access.READ,
    "CAT": Access.READ,
    "TAIL": Access.READ,
    "ECHO": Access.WRITE,
}
_ALIASES: Final[Mapping[str, str]] = {"worker": Role.HEARTBEAT}


class AttachDeniedError(Exception):
    """An attach was refused; ``detail`` is the word after ``detail=``."""

    code = "hive-attach-denied"

    def __init__(self, detail: str) -> None:
        super().__init__(f"attach refused: {detail}")
        self.detail = detail


class LimitError(Exception):
    """A ticket or a role does not allow a command; it changed nothing.

    Attributes:
        reason: ``policy`` or ``quota``.
        rest: what follows the reason; ``{path}`` stands for the path.
    """

    code = "hive-limit"

    def __init__(self, reason: str, rest: str) -> None:
        super().__init__(f"refused: {reason} {rest}")
        self.reason = reason
        self.rest = rest

    def line(self, verb: str, path: str) -> str:
        """Return the console's answer line, as recorded consoles word it."""
        return f"ERR {verb} reason={self.reason} {self.rest.format(path=path)}"


def _outside() -> LimitError:
    return LimitError("policy", "path={path} error=EPERM")


def _over() -> LimitError:
    return LimitError("quota", "path={path} error=ELIMIT")


class Permit:
    """What one session may do, and what it has used up; a new session starts anew."""

    def __init__(self, claims: Claims, clock: Callable[[], int]) -> None:
        self._claims = claims
        self._clock = clock
        self._calls: Counter[str] = Counter()
        self._second = -1
        self._ops = 0
        self._bytes = 0

    def charge(self, verb: str, path: str) -> None:
        """Count a command.

        Raises:
            LimitError: it is outside the scopes, too often, over a budget or after the expiry.
        """
        claims, now = self._claims, self._clock()
        if claims.expires_at_ms is not None and now >= claims.expires_at_ms:
            raise _outside()
        scope = claims.scope_for(path, _ACCESS[verb])
        if claims.scopes and scope is None:
            raise _outside()
        if now // 1000 != self._second:
            self._second = now // 1000
            self._calls.clear()
        if scope is not None and 0 < scope.rate_per_s <= self._calls[scope.path]:
            raise _over()
        bandwidth = 0 if claims.quotas is None else claims.quotas.bandwidth
        if (claims.ops is not None and self._ops >= claims.ops) or 0 < bandwidth <= self._bytes:
            raise _over()
        self._ops += 1
        if scope is not None:
            self._calls[scope.path] += 1

    def spend(self, size: int) -> None:
        """Count bytes that were carried."""
        self._bytes += size


class TicketDesk:
    """Judges the tickets of attaches.

    Args:
        secrets: secret of each role whose tickets are accepted.
        clock: unix time in milliseconds.
    """

    def __init__(self, secrets: Mapping[str, str], *, clock: Callable[[], int]) -> None:
        self._secrets = secrets
        self._clock = clock

    def admit(self, role: str, ticket: str) -> Permit | None:
        """Return the session's permit; None for a queen without a ticket, who may do everything.

        Raises:
            AttachDeniedError: the role needs a ticket of its own, or the ticket is not good.
        """
        wanted = _ALIASES.get(role, role)
        if not ticket:
            if wanted == Role.QUEEN:
                return None
            raise AttachDeniedError("denied")
        secret = self._secrets.get(wanted)
        try:
            capability = decode_ticket(ticket)
        except CapabilityError:
            raise AttachDeniedError("denied") from None
        claims = capability.claims
        if secret is None or claims.role != wanted or not verify_mac(capability, secret):
            raise AttachDeniedError("denied")
        if claims.issued_at_ms > self._clock() + CLOCK_SKEW_MS or (
            wanted != Role.QUEEN and not claims.subject
        ):
            raise AttachDeniedError("invalid-claims")
        if claims.expires_at_ms is not None and self._clock() >= claims.expires_at_ms:
            raise AttachDeniedError("expired")
        return Permit(claims, self._clock)
