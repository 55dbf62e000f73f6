"""Tickets through a fault proxy, with hive and agent restarting: the same run for every way to a hive.

The transport is a parameter; the proxy, the caller, the kills and the books are the same for all of them.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from agent_support import Caller, books_of
from fault_proxy import FaultProxy

from ticket_agent.hive.reference import Faults, ReferenceHive
from ticket_agent.journal.view import read_journal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent_support import AgentProcess
    from transports import Served, Transport

WORKERS = 8
PATIENCE_S = 240.0
"""A net for a run that is stuck."""
STILL_S = 2.0
"""After so long without an end it is asked whether anything can end at all."""
TICKETS_PER_LIFE = 48
"""A hive reboots after so many: it lists no more than 64 leases, and a mount asks for the list."""
COMMAND_TIMEOUT_S = 0.5
"""How long the agent waits for an answer; short, because many never come."""


@dataclass
class Summary:
    """What a run did and what came of it."""

    transport: str
    tickets: int
    succeeded: int = 0
    not_applied: int = 0
    effects: int = 0
    repeated: int = 0
    results: int = 0
    agent_kills: int = 0
    hive_restarts: int = 0
    hive_reboots: int = 0
    forgotten: int = 0
    """Tickets that were open when the hive rebooted, on top of the others; their callers sent new ones."""
    connections: int = 0
    seconds: float = 0.0
    struck: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield (
            f"{self.transport}: {self.tickets} tickets in {self.seconds:.1f} s, {self.connections} sessions, "
            f"{self.agent_kills} kills of the agent, {self.hive_restarts} restarts of the hive's listener, "
            f"{self.hive_reboots} reboots of the hive ({self.forgotten} open tickets forgotten and sent anew)"
        )
        yield (
            f"  terminal results {self.results}: {self.succeeded} succeeded with one effect each, "
            f"{self.not_applied} failed without any; effects {self.effects}, repeated {self.repeated}"
        )
        for what, count in sorted(self.struck.items()):
            yield f"  {count:4} x {what}"
        yield from (f"  PROBLEM {problem}" for problem in self.problems)


class Chaos:
    """One run.

    Args:
        place: directory of the run.
        seed: decides the faults and when what is restarted.
    """

    def __init__(self, transport: Transport, place: Path, *, tickets: int, seed: int) -> None:
        self._transport = transport
        self._place = place
        self._random = Random(seed)
        self._seed = seed
        self._moved = threading.Event()
        self._forgotten: set[str] = set()
        self.summary = Summary(transport.name, tickets)
        self.hive = ReferenceHive(transport.profile, clock=lambda: time.time_ns() // 1_000_000)

    def run(self) -> Summary:
        started = time.monotonic()
        faults = Faults()
        faults.on_applied(lambda path, line: self._moved.set())
        served = self._transport.serve(self.hive, faults)
        try:
            with FaultProxy(served.port, seed=self._seed, requests=self._transport.requests) as proxy:
                self._drive(served, proxy)
                self.summary.struck = proxy.struck
                self.summary.connections = proxy.connections
        finally:
            served.close()
        self.summary.seconds = time.monotonic() - started
        return self.summary

    def _drive(self, served: Served, proxy: FaultProxy) -> None:
        workers = [self.hive.spawn_worker("worker-gpu").worker_id for _ in range(WORKERS)]
        caller = Caller(self.hive, workers, self.summary.tickets)
        agent = self._start(served, proxy)
        reboots = list(range(TICKETS_PER_LIFE, self.summary.tickets, TICKETS_PER_LIFE))
        kills = self._moments(self.summary.tickets // 25)
        restarts = self._moments(self.summary.tickets // 20)
        deadline = time.monotonic() + PATIENCE_S
        known, still = -1, time.monotonic()
        try:
            while (ended := self._ended(caller)) < self.summary.tickets:
                if reboots and ended >= reboots[0]:
                    reboots.pop(0)
                    self._reboot(caller, served)
                caller.submit_what_can_be()
                if ended > known:
                    known, deadline = ended, time.monotonic() + PATIENCE_S
                    still = time.monotonic() + STILL_S
                elif time.monotonic() > still:
                    if self._only_uncertain(caller):
                        self._reboot(caller, served)
                    still = time.monotonic() + STILL_S
                assert time.monotonic() < deadline, self._stuck(caller, agent)
                if kills and ended >= kills[0]:
                    kills.pop(0)
                    agent.kill()
                    self.summary.agent_kills += 1
                    agent = self._start(served, proxy)
                if restarts and ended >= restarts[0]:
                    restarts.pop(0)
                    served.restart()
                    self.summary.hive_restarts += 1
                assert agent.process.poll() is None, agent.errors.read_text(encoding="utf-8")[-2000:]
                self._moved.wait(0.02)
                self._moved.clear()
            # The last results are in the hive; the journal follows when nothing is in the way any more.
            proxy.calm = True
            while any(not record.terminal for record in read_journal(self._state).records.values()):
                assert time.monotonic() < deadline, self._stuck(caller, agent)
                self._moved.wait(0.02)
            code = agent.terminate()
            if code != 0:
                self.summary.problems.append(f"the agent ended with {code}")
        finally:
            agent.kill()
        self._book(caller)

    def _reboot(self, caller: Caller, served: Served) -> None:
        """The hive loses its memory; what was open in it is open for nobody any more."""
        self.hive.reboot()
        self._forgotten |= {name for name in caller.submitted if not self._results(name)}
        caller.workers[:] = [self.hive.spawn_worker("worker-gpu").worker_id for _ in range(WORKERS)]
        caller.total = self.summary.tickets + len(self._forgotten)
        served.restart()
        self.summary.hive_reboots += 1

    def _only_uncertain(self, caller: Caller) -> bool:
        """Whether every open ticket is one of which nobody will ever know more while the hive lives.

        Behind a gateway or a mount, a write that was lost on its way there may still be held back.
        """
        waiting = {name for name in caller.submitted if not self._results(name)} - self._forgotten
        if not waiting or not self._state.exists():
            return False
        records = read_journal(self._state).records.values()
        lost = {json.loads(record.request)["id"] for record in records if record.outcome_unknown}
        return waiting <= lost and not any(
            self.hive.effect_count("grant", name.replace("t", "lease-")) for name in waiting
        )

    def _results(self, name: str) -> list[str]:
        return self.hive.terminal_lines((name, f"key-{name}"))

    @property
    def _state(self) -> Path:
        return self._place / "state"

    def _start(self, served: Served, proxy: FaultProxy) -> AgentProcess:
        proxy.be_gentle()
        return served.agent(self._state, proxy.port, self._place, timeout_s=COMMAND_TIMEOUT_S, poll_ms=None)

    def _moments(self, count: int) -> list[int]:
        """After how many ended tickets something happens."""
        return sorted(self._random.randrange(1, self.summary.tickets) for _ in range(count))

    def _ended(self, caller: Caller) -> int:
        return sum(bool(self._results(name)) for name in caller.submitted)

    def _stuck(self, caller: Caller, agent: AgentProcess) -> str:
        waiting = [name for name in caller.submitted if not self._results(name)]
        log = agent.errors.read_text(encoding="utf-8")[-3000:]
        return f"nothing ended for {PATIENCE_S:.0f} s; open: {waiting[:20]}\n{log}"

    def _book(self, caller: Caller) -> None:
        summary = self.summary
        kept = [name for name in caller.submitted if name not in self._forgotten]
        books = books_of(self.hive, self._state, kept)
        summary.forgotten = len(self._forgotten)
        summary.effects = sum(books.effects[name] for name in kept)
        summary.repeated = sum(count - 1 for count in books.effects.values())
        summary.results = sum(books.results.values())
        for name in kept:
            effects, lines, outcome = books.effects[name], books.results[name], books.outcomes.get(name)
            if (outcome, effects, lines) == ("confirmed", 1, 1):
                summary.succeeded += 1
            elif (outcome, effects, lines) == ("rejected", 0, 1):
                summary.not_applied += 1
            else:
                summary.problems.append(f"{name}: {outcome}, {effects} effects, {lines} terminal results")
        summary.problems += [
            f"{name}: a result after the reboot" for name in self._forgotten if self._results(name)
        ]
        if stray := set(books.effects) - set(caller.submitted):
            summary.problems.append(f"effects that nobody asked for: {stray}")
