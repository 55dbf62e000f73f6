"""Whether a ticket whose effect goes on for long still has its authority: its Worker is READY for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ticket_agent.agent.readiness import Readiness, prove_ready
from ticket_agent.peft.release.phase_machine import Allowed
from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.namespace import HiveError

if TYPE_CHECKING:
    from ticket_agent.agent.feed import Feed
    from ticket_agent.protocol.namespace import Namespace
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["prove_authority"]

_ALLOWED = {
    Readiness.READY: Allowed.HELD,
    Readiness.NOT_YET: Allowed.UNPROVEN,
    Readiness.WORKER_GONE: Allowed.LOST,
    Readiness.ALREADY_DECIDED: Allowed.LOST,
    Readiness.FORGOTTEN: Allowed.LOST,
}


def prove_authority(
    namespace: Namespace, feed: Feed, spec: HostTicketSpec, *, shard_bits: int
) -> tuple[Allowed, str]:
    """Ask the hive once; what it does not answer proves nothing and takes nothing away."""
    try:
        proof = prove_ready(namespace, spec, ask_current=feed.features().current, shard_bits=shard_bits)
    except (HiveError, ProtocolError) as error:
        return Allowed.UNPROVEN, str(error)
    return _ALLOWED[proof.readiness], proof.detail
