"""The credentials of one connect: read afresh, and judged before anybody else hears of them.

A console counts refused attaches for all its clients together and locks everybody out after three in a
minute. A ticket that cannot work is therefore refused here, where it costs nobody anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ticket_agent.hive.console.framing import MAX_TICKET_LEN
from ticket_agent.hive.credentials import (
    CredentialError,
    Secret,
    console_secret,
    is_reference,
    resolve_secret,
)
from ticket_agent.protocol.capability import CapabilityError, decode_ticket
from ticket_agent.protocol.capability_check import check_claims

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Credentials", "read_credentials"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a connection presents.

    Attributes:
        token: for AUTH.
        ticket: for ATTACH, or None.
    """

    token: Secret
    ticket: Secret | None


def read_credentials(
    *,
    token: str | None,
    ticket: str | None,
    role: str,
    host: str,
    allow_placeholder: bool,
    env: Mapping[str, str],
    now_ms: int,
) -> Credentials:
    """Resolve token and ticket anew, so that a rotation takes effect with the next connect.

    Args:
        token: reference, or for a console of this host the token itself; None looks into the environment.
        ticket: the same for the capability ticket; None presents none.
        role: role of the attach, which the ticket must be for.
        host: where the console is.
        allow_placeholder: accept well-known example tokens.
        env: the environment.
        now_ms: unix milliseconds, for the ticket's expiry.

    Raises:
        CredentialError: one is missing, malformed, a placeholder, or a ticket that cannot work.
    """
    for what, given in (("token", token), ("ticket", ticket)):
        if given is not None and not is_reference(given) and not _is_this_host(host):
            raise CredentialError(
                f"the {what} of a console on another host must be a reference; "
                "give it as env:NAME or file:/absolute/path"
            )
    secret = console_secret(token, env=env, allow_placeholder=allow_placeholder)
    if ticket is None:
        return Credentials(token=secret, ticket=None)
    capability = resolve_secret(ticket, env=env, allow_placeholder=allow_placeholder)
    _require_usable(capability.reveal(), role, now_ms)
    return Credentials(token=secret, ticket=capability)


def _require_usable(text: str, role: str, now_ms: int) -> None:
    if len(text) > MAX_TICKET_LEN:
        raise CredentialError(f"the ticket is longer than {MAX_TICKET_LEN} characters; issue a smaller one")
    try:
        decoded = decode_ticket(text)
    except CapabilityError as error:
        raise CredentialError(f"the ticket cannot be used: {error}") from None
    for finding in check_claims(decoded.claims, role=role, now_ms=now_ms):
        if finding.fatal:
            raise CredentialError(f"ticket {decoded.fingerprint} cannot be used: {finding.text}")


def _is_this_host(host: str) -> bool:
    from ipaddress import ip_address  # noqa: PLC0415 - start-up time

    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
