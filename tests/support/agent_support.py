"""A real agent on a real console: in this process for single steps, as a process of its own to be killed."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from hive_support import TOKEN, ManualClock, raw_grant

from ticket_agent.agent.events import EventLog
from ticket_agent.agent.keys import V2_FAMILY
from ticket_agent.agent.loop import Agent
from ticket_agent.agent.metered import MeteredStore
from ticket_agent.agent.providers import ProviderTable
from ticket_agent.config import AgentConfig, ConsoleSettings
from ticket_agent.gpu.compat import compat_lease_providers
from ticket_agent.gpu.lease import lease_providers
from ticket_agent.hive.console.client import ConsoleConfig, ConsoleNamespace
from ticket_agent.hive.reference import ConsoleServer, GatewayServer, ReferenceHive, RefusalError
from ticket_agent.hive.rest.client import RestConfig, RestNamespace
from ticket_agent.journal.store import JournalStore, Limits
from ticket_agent.journal.view import read_journal
from ticket_agent.peft.compat import compat_peft_providers
from ticket_agent.peft.providers import peft_providers
from ticket_agent.protocol.namespace import HiveError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ticket_agent.agent.metrics import Meter
    from ticket_agent.agent.relay.relay import RelayPlan
    from ticket_agent.journal.fs import Fs
    from ticket_agent.journal.values import Record
    from ticket_agent.peft.settings import PeftRoots

NEVER = threading.Event()
BOOT = "boot-of-the-test"
PATIENCE_S = 90.0
"""A net for a process that never does what is waited for."""
ANSWER_S = 20.0
"""So long an answer may take: a hive of this process is not given up because the machine is busy."""


@dataclass
class Bench:
    """One agent life on one state directory."""

    agent: Agent
    store: JournalStore
    namespace: ConsoleNamespace
    log: io.StringIO
    clock: ManualClock
    config: AgentConfig
    stop: threading.Event = field(default_factory=threading.Event)

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [event for event in found if name is None or event["event"] == name]

    def passes(self, count: int) -> None:
        """That many passes; an unreachable hive ends one early, as in the daemon."""
        for _ in range(count):
            with suppress(HiveError):
                self.agent.pass_once(self.stop)

    def until(self, done: Callable[[], bool], *, limit: int = 400) -> None:
        """Pass after pass until ``done``, with every pause of every operation skipped."""
        for _ in range(limit):
            if done():
                return
            self.hurry()
            self.passes(1)
        states = {
            record.key: (record.state.value, self.waiting(record.key)) for record in self.store.open_records()
        }
        raise AssertionError(f"not done after {limit} passes; open: {states}")

    def hurry(self) -> None:
        for op in self.agent.operations.values():
            op.retry_at = 0.0

    def settle(self) -> None:
        """Until nothing is open any more."""
        self.passes(1)
        self.until(lambda: not self.store.open_records())

    def waiting(self, key: str) -> str:
        op = self.agent.operations.get(key)
        return op.waiting if op is not None else ""

    def record(self, ticket_id: str) -> Record:
        return next(r for r in self.store.records.values() if json.loads(r.request)["id"] == ticket_id)


@contextmanager
def agent_on(
    server: ConsoleServer | GatewayServer,
    state_dir: Path,
    *,
    clock: ManualClock,
    fs: Fs | None = None,
    limits: Limits | None = None,
    allowlist: frozenset[str] | None = None,
    instance: str | None = None,
    boot_id: str = BOOT,
    serves: bool = True,
    meter: Meter | None = None,
    roots: PeftRoots | None = None,
    relay: RelayPlan | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Iterator[Bench]:
    """An agent in this process over a real console or gateway; closing it is a clean stop for the journal.

    With a meter its journal is the timed one, as when metrics are switched on. ``monotonic`` paces the agent
    alone: how long an answer may take is real time.
    """
    config = AgentConfig(
        state_dir=state_dir,
        console=ConsoleSettings(port=server.port, auth_token=TOKEN),
        action_allowlist=allowlist,
    )
    limits = limits or Limits(fenced_families=frozenset({V2_FAMILY}))
    log = io.StringIO()
    if meter is not None:
        store: JournalStore = MeteredStore.open_metered(
            state_dir, meter=meter, clock=clock, boot_id=boot_id, agent_version="test", limits=limits
        )
    else:
        store = JournalStore.open(
            state_dir, clock=clock, boot_id=boot_id, agent_version="test", fs=fs, limits=limits
        )
    with store:
        namespace = _namespace_on(server)
        single_owner = isinstance(server, ConsoleServer)
        agents: list[Agent] = []

        def epoch() -> int:
            return agents[0].intake.epoch

        with namespace:
            agent = Agent(
                config=config,
                store=store,
                namespace=namespace,
                providers=ProviderTable(
                    v1=compat_lease_providers(
                        namespace, instance=instance, single_owner=single_owner, epoch=epoch
                    )
                    | ({} if roots is None else compat_peft_providers(roots, namespace)),
                    v2=lease_providers(namespace, instance=instance, single_owner=single_owner, epoch=epoch)
                    | ({} if roots is None else peft_providers(roots, namespace)),
                    allowlist=allowlist,
                ),
                events=EventLog(log, clock=clock, style="json", level="debug"),
                clock=clock,
                monotonic=monotonic,
                serves=serves,
                relay=relay,
            )
            agents.append(agent)
            try:
                yield Bench(
                    agent=agent, store=store, namespace=namespace, log=log, clock=clock, config=config
                )
            finally:
                agent.relay.close()


def _namespace_on(server: ConsoleServer | GatewayServer) -> ConsoleNamespace:
    if isinstance(server, GatewayServer):
        settings = RestConfig(
            url=server.url,
            auth_token=server.token,
            metadata_s=ANSWER_S,
            cache_s=server.times.cache_s,
        )
        # Tests that reach into a namespace are those of the console; the others use what both have.
        return cast("ConsoleNamespace", RestNamespace(settings, env={}))
    return ConsoleNamespace(
        ConsoleConfig(
            host=server.host,
            port=server.port,
            token=TOKEN,
            use_lock=False,
            connect_s=ANSWER_S,
            auth_s=ANSWER_S,
            command_s=ANSWER_S,
        ),
        sleep=_brief_sleep,
    )


def _brief_sleep(seconds: float) -> None:
    """Reconnects pause as they would, but not for longer than a loopback needs."""
    time.sleep(min(seconds, 0.02))


def crash(bench: Bench) -> None:
    """Leave the state directory as SIGKILL would: nothing is saved, said or closed in order."""
    bench.namespace._drop()
    bench.store.close()


class AgentProcess:
    """`ticket-agent run` as a process, with its events as a list."""

    def __init__(self, state_dir: Path, port: int | str, tmp: Path, *options: str) -> None:
        """``port`` is a console's port, or a gateway's URL."""
        self.errors = tmp / f"agent-{time.monotonic_ns()}.log"
        environ = os.environ | {"LAB_TOKEN": TOKEN, "COHSH_CONSOLE_LOCK": "0"}
        command = [sys.executable, "-m", "ticket_agent", "run", "--state-dir", str(state_dir)]
        if isinstance(port, str):
            command += ["--rest-url", port, "--rest-auth-token", "env:LAB_TOKEN"]
        else:
            command += ["--tcp-port", str(port), "--auth-token", "env:LAB_TOKEN"]
        command += ["--log-format", "json", *options]
        with self.errors.open("wb") as stream:
            self.process = subprocess.Popen(command, stderr=stream, env=environ)

    def events(self) -> list[dict[str, Any]]:
        found = []
        for line in self.errors.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=PATIENCE_S)


@dataclass
class Caller:
    """Submits lease tickets, one open one per Worker, as fast as the hive admits them."""

    hive: ReferenceHive
    workers: list[str]
    total: int
    first: int = 0
    submitted: list[str] = field(default_factory=list)

    def submit_what_can_be(self) -> None:
        for index, worker in enumerate(self.workers):
            if len(self.submitted) >= self.total:
                return
            number = self.first + len(self.submitted)
            line = raw_grant(self.hive, worker, f"t{number}", f"lease-{number}", f"GPU-{index % 2}", ttl_s=60)
            with suppress(RefusalError):
                self.hive.submit(line)
                self.submitted.append(f"t{number}")


@dataclass(frozen=True)
class Books:
    """What the hive counted and the journal says, per ticket."""

    effects: Counter[str]
    results: Counter[str]
    outcomes: dict[str, str]
    states: dict[str, str]


def books_of(hive: ReferenceHive, state_dir: Path, tickets: list[str]) -> Books:
    view = read_journal(state_dir)
    assert not view.quarantined
    by_id = {json.loads(record.request)["id"]: record for record in view.records.values()}
    effects: Counter[str] = Counter()
    for effect, count in hive.effects.items():
        effects[effect.subject.replace("lease-", "t")] += count
    settled = {ticket: by_id[ticket].result for ticket in tickets}
    results = Counter({ticket: len(hive.terminal_lines((ticket, f"key-{ticket}"))) for ticket in tickets})
    return Books(
        effects=effects,
        results=results,
        outcomes={ticket: result.outcome for ticket, result in settled.items() if result is not None},
        states={ticket: by_id[ticket].state.value for ticket in tickets},
    )
