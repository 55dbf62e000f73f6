"""How a ticket is named in the journal.

A version-2 ticket is ``<len(id)>:<id>:<idempotency_key>`` (host tickets, dedup). Version 1 is set apart by a
prefix, and a pair that root admits once more after it forgot the first time by a suffix. A ticket that is
relayed is named by its hives too. ``/`` and ``@`` cannot occur in a token, so no two tickets ever share a
name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = [
    "RELAY_FAMILY",
    "V1_FAMILY",
    "V2_FAMILY",
    "base_key",
    "base_of",
    "pair_of_relay",
    "relay_key",
    "reuse_key",
]

V1_FAMILY = "host-ticket/v1"
V2_FAMILY = "host-ticket/v2"
RELAY_FAMILY = "federation.relay"
"""Tickets for other hives. They belong to no life of this one: what is pending outlives its reboots."""


def base_key(spec: HostTicketSpec) -> str:
    """Name of a ticket at its first admission."""
    return spec.journal_key if spec.version > 1 else f"v1/{spec.journal_key}"


def reuse_key(base: str, epoch: int, sequence: int | None) -> str:
    """Name of a later admission of the same (id, idempotency key) pair."""
    return f"{base}@{epoch}" if sequence is None else f"{base}@{epoch}.{sequence}"


def base_of(key: str) -> tuple[str, bool]:
    """The name of the first admission, and whether ``key`` names a later one."""
    base, marker, _ = key.partition("@")
    return base, marker == "@"


def relay_key(spec: HostTicketSpec, local_hive: str) -> str:
    """Name of a ticket that this hive relays to its target."""
    return f"relay/{spec.journal_key}/{local_hive}/{spec.target_hive}"


def pair_of_relay(key: str) -> str | None:
    """The pair of id and idempotency key in the name of a relayed ticket; None of another one's name."""
    return key.split("/")[1] if key.startswith("relay/") else None


def outlives_epochs(family: str) -> bool:
    """Whether operations of a family are of no life of this hive, so that its reboot forgets none of them."""
    return family == RELAY_FAMILY
