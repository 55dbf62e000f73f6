"""Hives that relay to each other: a source with an agent, peers that are reference hives behind consoles."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_support import agent_on
from hive_support import DEADLETTER, SPEC, STATUS, TOKEN, ManualClock, running_hive

from ticket_agent.agent.relay.contact import PeerLink
from ticket_agent.agent.relay.relay import RelayPlan
from ticket_agent.hive.console.client import ConsoleConfig, ConsoleNamespace
from ticket_agent.hive.reference import DEFAULT, ConsoleServer, HiveProfile, ReferenceHive
from ticket_agent.protocol.paths import TicketPaths
from ticket_agent.protocol.result import build_result
from ticket_agent.protocol.spec import HostTicketSpec, parse_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from agent_support import Bench

    from ticket_agent.agent.relay.book import RelayBounds
    from ticket_agent.protocol.namespace import Namespace

ACTION = "systemd.restart"
LOCAL = "hive-a"
PATIENCE_S = 90.0
"""A net for what never comes: all that is waited for ends the waiting by itself."""
ANSWER_S = 20.0
"""So long an answer may take where none is withheld: no peer is given up because this machine is busy."""


def ticket(
    ticket_id: str = "t1",
    *,
    target: str | None = "hive-b",
    source: str | None = LOCAL,
    action: str = ACTION,
    key: str | None = None,
    **changes: Any,
) -> str:
    """One version-1 line of a caller; a None leaves a member out."""
    members = {
        "schema": "host-ticket/v1",
        "id": ticket_id,
        "idempotency_key": key or f"key-{ticket_id}",
        "action": action,
        "args": {"unit": "ssh.service"},
        "source_hive": source if target is not None else None,
        "target_hive": target,
        **changes,
    }
    kept = {name: value for name, value in members.items() if value is not None}
    return json.dumps(kept, separators=(",", ":"))


def journal_key(ticket_id: str = "t1", target: str = "hive-b") -> str:
    return f"relay/{len(ticket_id)}:{ticket_id}:key-{ticket_id}/{LOCAL}/{target}"


def perform(hive: ReferenceHive, state: str = "succeeded", message: str = "done") -> int:
    """End every ticket that a peer holds, as the peer's own agent would, once each; returns how many."""
    ended = 0
    for spec in arrived(hive):
        if hive.terminal_lines(spec.key):
            continue
        line = build_result(spec, state=state, message=message, max_line_bytes=2048).decode()
        hive.echo(STATUS if state == "succeeded" else DEADLETTER, line)
        ended += 1
    return ended


def arrived(hive: ReferenceHive) -> list[HostTicketSpec]:
    """Tickets in a hive's callers' log."""
    return [parse_spec(line.encode(), source="raw") for line in hive.cat(SPEC)]


@dataclass
class Peers:
    """Peers by name, each a hive behind a console of its own."""

    hives: dict[str, ReferenceHive]
    servers: dict[str, ConsoleServer]
    taken: dict[str, list[str]] = field(default_factory=dict)
    """Every line that was ever applied to a peer's `spec`, by peer."""
    answer_s: float = ANSWER_S

    def connect(self, name: str) -> ConsoleNamespace:
        server = self.servers[name]
        return ConsoleNamespace(
            ConsoleConfig(
                host=server.host,
                port=server.port,
                token=TOKEN,
                use_lock=False,
                connect_s=ANSWER_S,
                auth_s=ANSWER_S,
                command_s=self.answer_s,
            ),
            sleep=lambda seconds: time.sleep(min(seconds, 0.02)),
        )

    def plan(
        self,
        *,
        bounds: RelayBounds | None = None,
        connect: Callable[[str], Namespace] | None = None,
        actions: frozenset[str] = frozenset({ACTION}),
        names: tuple[str, ...] | None = None,
        settle_s: float = 0.0,
    ) -> RelayPlan:
        """What an agent relays with; its links are new ones."""
        make = connect or self.connect

        def link(name: str) -> PeerLink:
            return PeerLink(name, lambda: make(name), paths=TicketPaths("/host"), settle_s=settle_s)

        links = tuple(link(name) for name in (self.hives if names is None else names))
        return RelayPlan(links=links, actions=actions, **({} if bounds is None else {"bounds": bounds}))


@contextmanager
def peers(
    *names: str, profile: HiveProfile = DEFAULT, used: bool = True, answer_s: float = ANSWER_S
) -> Iterator[Peers]:
    """Running peers; one that was ``used`` has taken a ticket of somebody else's since its boot."""
    with ExitStack() as stack:
        found = Peers(hives={}, servers={}, answer_s=answer_s)
        for name in names or ("hive-b",):
            hive, server = stack.enter_context(running_hive(profile))
            found.hives[name], found.servers[name] = hive, server
            found.taken[name] = []
            if used:
                hive.echo(SPEC, ticket("somebody-elses", target=None, source=None))
                perform(hive)
            server.faults.on_applied(_noter(found.taken[name]))
        yield found


def _noter(taken: list[str]) -> Callable[[str, str], None]:
    def note(path: str, line: str) -> None:
        if path == SPEC:
            taken.append(line)

    return note


@contextmanager
def relaying(
    server: ConsoleServer,
    state_dir: Path,
    plan: RelayPlan | None,
    *,
    clock: ManualClock | None = None,
    **more: Any,
) -> Iterator[Bench]:
    """An agent of the source hive."""
    with agent_on(server, state_dir, clock=clock or ManualClock(), relay=plan, **more) as bench:
        yield bench


def run_until(bench: Bench, done: Callable[[], object], *, patience_s: float = PATIENCE_S) -> None:
    """Pass after pass until ``done``; contacts take their time in threads of their own."""
    end = time.monotonic() + patience_s
    while not done():
        assert time.monotonic() < end, f"{[op.waiting for op in bench.agent.operations.values()]}"
        bench.hurry()
        bench.passes(1)
        time.sleep(0.002)
