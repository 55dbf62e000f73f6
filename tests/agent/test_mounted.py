"""The promise over a mounted hive: at most one effect and exactly one terminal result per ticket."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest
from agent_support import Caller, books_of
from fuse_hive import mounted_hive
from hive_support import LEASE_CTL, ManualClock, raw_grant, running_hive
from mount_support import NEWEST, MountedAgentProcess, agent_on_mount, needs_fuse

from ticket_agent.hive.reference import Fault, FaultKind, Faults, RefusalError
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.hive.reference import ReferenceHive

pytestmark = needs_fuse


def _workers(hive: ReferenceHive, count: int) -> list[str]:
    return [hive.spawn_worker("worker-gpu").worker_id for _ in range(count)]


def test_leases_over_a_mount(tmp_path: Path) -> None:
    clock = ManualClock(int(time.time() * 1000))
    with running_hive(NEWEST, clock=clock) as (hive, server), mounted_hive(server.port, tmp_path / "hive"):
        caller = Caller(hive, _workers(hive, 8), 24)
        with agent_on_mount(tmp_path / "hive", tmp_path / "state", clock=clock) as bench:

            def done() -> bool:
                caller.submit_what_can_be()
                return len(caller.submitted) == 24 and bench.agent.totals.ended == 24

            started = time.perf_counter()
            bench.until(done, limit=2000)
            print("per ticket", (time.perf_counter() - started) / 24)
        books = books_of(hive, tmp_path / "state", caller.submitted)
    assert set(books.effects.values()) == {1}
    assert set(books.results.values()) == {1}
    assert set(books.outcomes.values()) == {"confirmed"}
    assert set(books.states.values()) == {"terminal"}
