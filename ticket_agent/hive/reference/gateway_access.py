"""Who may do what at the gateway: request token and delegated ticket (transports, REST)."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Access", "AccessRefusal", "Delegation"]


class AccessRefusal(NamedTuple):
    """Why a request was not dispatched: HTTP status and text."""

    status: int
    text: str


class Delegation(Protocol):
    """Judges delegated capability tickets."""

    def refusal(self, ticket: str, *, path: str, write: bool, size: int) -> AccessRefusal | None:
        """Why the ticket does not allow it, or None.

        Args:
            ticket: as the client sent it.
            path: absolute path of the node.
            write: an append; otherwise a read.
            size: bytes of the line, 0 for a read.
        """


class Access:
    """Checks every request before anything is dispatched.

    Args:
        token: the request token; None leaves reads and writes open.
        delegation: judges tickets; None asks for none, as early gateways do.
        open_reads: reads need neither token nor ticket, as early gateways have it.
    """

    def __init__(self, *, token: str | None, delegation: Delegation | None, open_reads: bool = False) -> None:
        self._token = token
        self._delegation = delegation
        self._open_reads = open_reads

    def refusal(
        self, headers: Sequence[tuple[str, str]], *, path: str | None, write: bool = False, size: int = 0
    ) -> AccessRefusal | None:
        """Why a request is refused, or None.

        Args:
            headers: name in lower case and value of each header.
            path: node that is asked for; None for the gateway's own state, which needs no ticket.
            write: an append.
            size: bytes of the line.
        """
        if self._open_reads and not write:
            return None
        if self._token is not None and not self._authenticated(headers, self._token):
            return AccessRefusal(401, "request auth token missing or invalid")
        if self._delegation is None or path is None:
            return None
        tickets = [value for name, value in headers if name == "x-cohesix-ticket"]
        if len(tickets) != 1:
            return AccessRefusal(403, "EPERM delegated ticket must be given exactly once")
        return self._delegation.refusal(tickets[0], path=path, write=write, size=size)

    @staticmethod
    def _authenticated(headers: Sequence[tuple[str, str]], token: str) -> bool:
        given = [value for name, value in headers if name == "x-cohesix-auth"]
        given += [
            value.removeprefix("Bearer ")
            for name, value in headers
            if name == "authorization" and value.startswith("Bearer ")
        ]
        return any(hmac.compare_digest(one.encode(), token.encode()) for one in given)
