"""A journal with a past: an agent process that was killed three times with a dispatch in flight."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from agent_support import AgentProcess
from cli_support import PATIENCE_S, now_ms
from hive_support import LEASE_CTL, raw_grant, running_hive

from ticket_agent.journal.view import read_journal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CRASHES = 3


def thrice_crashed(home: Path, *, tickets: int = 3, rounds: int = 4) -> Path:
    """Run tickets against a hive; return the state directory after the last, orderly end.

    In each of the first three rounds the agent is killed at the moment at which the hive has applied the
    second lease write of its life, so that the answer never arrives.
    """
    state = home / "state"
    with running_hive(clock=now_ms) as (hive, server):
        agents: list[AgentProcess] = []
        applied: list[str] = []
        known = threading.Event()

        def kill(path: str, line: str) -> None:
            if path == LEASE_CTL:
                applied.append(line)
                # The agent may be here before whoever started it knows that it runs.
                assert known.wait(PATIENCE_S)
                if len(applied) == 2 and len(agents) <= CRASHES:
                    agents[-1].kill()

        server.faults.on_applied(kill)
        for number in range(rounds):
            applied.clear()
            known.clear()
            for index in range(number * tickets, (number + 1) * tickets):
                worker = hive.spawn_worker("worker-gpu")
                hive.submit(
                    raw_grant(hive, worker, f"t{index}", f"lease-{index}", f"GPU-{index % 2}", ttl_s=60)
                )
            agents.append(AgentProcess(state, server.port, home))
            known.set()
            if number < CRASHES:
                agents[-1].process.wait(PATIENCE_S)
        _until(lambda: _ended(state) == tickets * rounds)
        assert agents[-1].terminate() == 0
    return state


def _ended(state: Path) -> int:
    return sum(record.terminal for record in read_journal(state).records.values())


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, "the agents did not come so far"
        time.sleep(0.002)
