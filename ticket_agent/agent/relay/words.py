"""What the decisions of recovery mean for a relayed ticket, in words."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ticket_agent.agent.keys import RELAY_FAMILY
from ticket_agent.journal.recovery import Decision

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["effects_of"]

_RELAY: Final = MappingProxyType(
    {
        Decision.DISPATCH: "read the peer, journal what it shows, then send it the ticket once",
        Decision.OBSERVE: "read the peer back; the ticket is sent again only if it certainly did not arrive",
        Decision.ADOPT: "take the visible result over and relay nothing",
        Decision.EXPIRE: "settle as stale without contact and publish `expired`",
        Decision.PUBLISH: "append the peer's result to this hive, as it was staged",
    }
)


def effects_of(family: str) -> Mapping[Decision, str]:
    """Words that differ from every other operation's; none for what is performed here."""
    return _RELAY if family == RELAY_FAMILY else MappingProxyType({})
