"""An agent whose way to the hive is a directory: in this process for steps, as a process to be killed."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import fuse_hive
import pytest
from agent_support import BOOT, AgentProcess, Bench

from ticket_agent.agent.events import EventLog
from ticket_agent.agent.keys import V2_FAMILY
from ticket_agent.agent.loop import Agent
from ticket_agent.cli.assembly import console, provider_table
from ticket_agent.config import AgentConfig, MountSettings
from ticket_agent.hive.reference import DEFAULT, STRICT_A
from ticket_agent.journal.store import JournalStore, Limits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hive_support import ManualClock

    from ticket_agent.hive.console.client import ConsoleNamespace

NEWEST = replace(DEFAULT, name="newest", telemetry_cat=True, admission_refetch=True)
"""The root that a mount can serve tickets of: its Workers' telemetry answers to CAT."""

EARLY = replace(STRICT_A, name="early", telemetry_cat=True)
"""Without retention offsets: only what its logs hold tells one life of it from the next."""

MISSING = fuse_hive.missing()
needs_fuse = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


@contextmanager
def agent_on_mount(directory: Path, state_dir: Path, *, clock: ManualClock) -> Iterator[Bench]:
    """An agent in this process on a mounted hive."""
    config = AgentConfig(state_dir=state_dir, mount_dir=MountSettings(path=directory))
    log = io.StringIO()
    limits = Limits(fenced_families=frozenset({V2_FAMILY}))
    agents: list[Agent] = []
    namespace = console(config, serves=True)
    with JournalStore.open(
        state_dir, clock=clock, boot_id=BOOT, agent_version="test", limits=limits
    ) as store:
        agents.append(
            Agent(
                config=config,
                store=store,
                namespace=namespace,
                providers=provider_table(config, namespace, epoch=lambda: agents[0].intake.epoch),
                events=EventLog(log, clock=clock, style="json", level="debug"),
                clock=clock,
                monotonic=time.monotonic,
            )
        )
        try:
            yield Bench(
                agent=agents[0],
                store=store,
                # Nothing that reaches into a console is used here.
                namespace=cast("ConsoleNamespace", namespace),
                log=log,
                clock=clock,
                config=config,
            )
        finally:
            namespace.close()


class MountedAgentProcess(AgentProcess):
    """`ticket-agent run --mount-dir` as a process."""

    def __init__(self, state_dir: Path, directory: Path, tmp: Path) -> None:
        self.errors = tmp / f"agent-{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", "ticket_agent", "run", "--state-dir", str(state_dir)]
        command += ["--mount-dir", str(directory), "--log-format", "json"]
        with self.errors.open("wb") as stream:
            self.process = subprocess.Popen(command, stderr=stream, env=dict(os.environ))
