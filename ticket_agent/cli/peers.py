"""From `[relay]` to what the agent relays with: one link for each peer, each over its own transport."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from ticket_agent.cli.output import fail
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from ticket_agent.agent.relay.contact import PeerLink
    from ticket_agent.agent.relay.relay import RelayPlan
    from ticket_agent.config import AgentConfig
    from ticket_agent.config_relay import PeerSettings
    from ticket_agent.protocol.namespace import Namespace

__all__ = ["peer_namespace", "relay_plan"]

GATEWAY_SETTLE_S = 130.0
"""How long a gateway may hold an append whose answer was lost: its queue, its target, and a moment more."""

GATEWAY_LOOK_S = 1.0
CONSOLE_LOOK_S = 5.0
"""A console has one client, and between two looks it should be the peer's own agent."""

GATEWAY_CACHE_S = 2.0
"""How long a gateway may answer reads from its cache."""


def relay_plan(config: AgentConfig) -> RelayPlan:
    """What `--relay` relays; settings with which nothing could be relayed end the command."""
    from ticket_agent.agent.relay.book import RelayBounds  # noqa: PLC0415 - start-up time
    from ticket_agent.agent.relay.relay import RelayPlan  # noqa: PLC0415 - start-up time

    relay = config.relay
    if not relay.enabled:
        fail("--relay: the hive's manifest, or [relay], does not enable federation", Exit.USAGE)
    for what, given in (("peers", relay.peers), ("actions", relay.actions)):
        if not given:
            fail(f"--relay: no {what} are named; name them in [relay] or in the manifest", Exit.USAGE)
    return RelayPlan(
        links=tuple(_link(peer, relay.timeout_ms) for peer in relay.peers),
        actions=relay.actions,
        bounds=RelayBounds(
            queue_max_entries=relay.queue_max_entries,
            queue_max_bytes=relay.queue_max_bytes,
            wal_max_entries=relay.wal_max_entries,
            wal_max_bytes=relay.wal_max_bytes,
        ),
    )


def _link(peer: PeerSettings, timeout_ms: int) -> PeerLink:
    from ticket_agent.agent.relay.contact import PeerLink  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.paths import TicketPaths  # noqa: PLC0415 - start-up time

    timeout_s = (peer.timeout_ms or timeout_ms) / 1000
    return PeerLink(
        peer.name,
        partial(peer_namespace, peer, timeout_s=timeout_s),
        paths=TicketPaths(peer.mount),
        gives_way=peer.transport == "console",
        settle_s=GATEWAY_SETTLE_S if peer.transport == "rest" else 0.0,
        max_line_bytes=peer.max_line_bytes,
        look_s=CONSOLE_LOOK_S if peer.transport == "console" else GATEWAY_LOOK_S,
    )


def peer_namespace(peer: PeerSettings, *, timeout_s: float, cache_s: float = GATEWAY_CACHE_S) -> Namespace:
    """The namespace of a peer; every step of a contact has the same deadline."""
    if peer.transport == "rest":
        from ticket_agent.hive.rest.client import RestNamespace  # noqa: PLC0415 - start-up time
        from ticket_agent.hive.rest.origin import TICKET_VARIABLE, RestConfig  # noqa: PLC0415 - start-up time

        # The ticket in the environment is for this hive's own gateway.
        foreign = () if peer.ticket is not None else (TICKET_VARIABLE,)
        env = {name: value for name, value in os.environ.items() if name not in foreign}
        return RestNamespace(
            RestConfig(
                url=peer.url or "",
                auth_token=peer.auth_token,
                ticket=peer.ticket,
                allow_placeholder=peer.allow_placeholder_token,
                data_s=timeout_s,
                cache_s=cache_s,
            ),
            env=env,
        )
    from ticket_agent.hive.console.client import ConsoleConfig, ConsoleNamespace  # noqa: PLC0415 - start-up time

    return ConsoleNamespace(
        ConsoleConfig(
            host=peer.host or "",
            port=peer.port,
            token=peer.auth_token,
            ticket=peer.ticket,
            allow_placeholder=peer.allow_placeholder_token,
            connect_s=timeout_s,
            auth_s=min(timeout_s, 2.0),
            command_s=timeout_s,
        )
    )
