"""The promise over a mounted hive: at most one effect and exactly one terminal result per ticket."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest
from agent_support import Caller, books_of
from fuse_hive import mounted_hive
from hive_support import LEASE_CTL, ManualClock, raw_grant, running_hive
from mount_support import EARLY, NEWEST, MountedAgentProcess, agent_on_mount, needs_fuse

from ticket_agent.hive.reference import Fault, FaultKind, Faults
from ticket_agent.journal.transitions import State
from ticket_agent.journal.view import read_journal

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.hive.reference import HiveProfile, ReferenceHive

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

            bench.until(done, limit=2000)
        books = books_of(hive, tmp_path / "state", caller.submitted)
    assert set(books.effects.values()) == {1}
    assert set(books.results.values()) == {1}
    assert set(books.outcomes.values()) == {"confirmed"}
    assert set(books.states.values()) == {"terminal"}


def test_answers_that_a_mount_loses(tmp_path: Path) -> None:
    """Writes are applied and answered with EIO: what was done is found by reading back, never repeated."""
    clock = ManualClock(int(time.time() * 1000))
    faults = Faults(Fault(kind=FaultKind.DROP_AFTER, verb="ECHO", every=2))
    with (
        running_hive(NEWEST, clock=clock, faults=faults) as (hive, server),
        mounted_hive(server.port, tmp_path / "hive"),
    ):
        caller = Caller(hive, _workers(hive, 4), 12)
        with agent_on_mount(tmp_path / "hive", tmp_path / "state", clock=clock) as bench:

            def done() -> bool:
                caller.submit_what_can_be()
                return len(caller.submitted) == 12 and bench.agent.totals.ended == 12

            bench.until(done, limit=2000)
        books = books_of(hive, tmp_path / "state", caller.submitted)
    assert set(books.effects.values()) == {1}
    assert set(books.results.values()) == {1}
    assert set(books.outcomes.values()) == {"confirmed"}


def test_a_write_that_never_arrived_stays_unknown_until_the_ticket_expires(tmp_path: Path) -> None:
    """EIO does not tell a refusal from a lost answer, and what is behind a mount may still deliver."""
    clock = ManualClock(int(time.time() * 1000))
    faults = Faults(Fault(kind=FaultKind.DROP_BEFORE, verb="ECHO", prefix=LEASE_CTL))
    with (
        running_hive(NEWEST, clock=clock, faults=faults) as (hive, server),
        mounted_hive(server.port, tmp_path / "hive"),
    ):
        (worker,) = _workers(hive, 1)
        hive.submit(raw_grant(hive, worker, "t0", "lease-0", expires=clock.now_ms + 60_000, ttl_s=60))
        with agent_on_mount(tmp_path / "hive", tmp_path / "state", clock=clock) as bench:
            bench.until(lambda: any(r.uncertain for r in bench.store.open_records()))
            bench.hurry()
            bench.passes(5)
            assert bench.record("t0").state is State.EXECUTING
            clock.advance(60_001)
            bench.settle()
        books = books_of(hive, tmp_path / "state", ["t0"])
    assert books.outcomes == {"t0": "stale"}
    assert books.results == {"t0": 1}
    assert not books.effects


def test_a_root_whose_workers_answer_to_tail_alone_is_said_to_need_another_way(tmp_path: Path) -> None:
    clock = ManualClock(int(time.time() * 1000))
    with running_hive(clock=clock) as (hive, server), mounted_hive(server.port, tmp_path / "hive"):
        (worker,) = _workers(hive, 1)
        hive.submit(raw_grant(hive, worker, "t0", "lease-0", ttl_s=60))
        with agent_on_mount(tmp_path / "hive", tmp_path / "state", clock=clock) as bench:
            bench.passes(2)
            (op,) = bench.agent.operations.values()
            assert "a mount has no TAIL" in op.waiting
    assert not hive.effects


@pytest.mark.parametrize("profile", [NEWEST, EARLY], ids=lambda profile: str(profile.name))
def test_a_hive_that_reboots_behind_its_mount_gets_nothing_of_its_earlier_life(
    tmp_path: Path, profile: HiveProfile
) -> None:
    clock = ManualClock(int(time.time() * 1000))
    with (
        running_hive(profile, clock=clock) as (hive, server),
        mounted_hive(server.port, tmp_path / "hive"),
        agent_on_mount(tmp_path / "hive", tmp_path / "state", clock=clock) as bench,
    ):
        (worker,) = _workers(hive, 1)
        hive.submit(raw_grant(hive, worker, "t0", "lease-0", ttl_s=60))
        bench.settle()
        session = bench.namespace.session
        hive.reboot()
        server.kick()
        (worker,) = _workers(hive, 1)
        hive.submit(raw_grant(hive, worker, "t1", "lease-1", ttl_s=60))
        bench.until(lambda: bench.agent.totals.ended == 2)
        assert bench.namespace.session > session
        assert bench.agent.intake.epoch == 2
        books = books_of(hive, tmp_path / "state", ["t0", "t1"])
    assert books.effects == {"t0": 1, "t1": 1}
    assert books.results == {"t0": 1, "t1": 1}


LIVES = 3
PATIENCE_S = 240


@pytest.mark.timeout(900)
def test_agents_killed_at_random_moments_over_a_mount(tmp_path: Path) -> None:
    """SIGKILL, start again, over and over; the mount's own process is killed too.

    What a kill left uncertain ends when its ticket expires; the tickets of the last life have the time they
    need.
    """
    chance = random.Random(20261130)
    with running_hive(NEWEST, clock=_real_clock) as (hive, server):
        tickets: list[str] = []
        for life in range(LIVES):
            with mounted_hive(server.port, tmp_path / "hive") as mounted:
                tickets += _submitted(hive, 4, first=len(tickets), lives_s=15)
                agent = MountedAgentProcess(tmp_path / "state", tmp_path / "hive", tmp_path)
                stop = hive.appended("status") + chance.randrange(1, 10)
                deadline = time.monotonic() + 20
                while hive.appended("status") < stop and time.monotonic() < deadline:
                    if all(_told(hive, ticket) for ticket in tickets):
                        break
                    time.sleep(0.002)
                if life % 2:
                    mounted.kill()
                agent.kill()
        with mounted_hive(server.port, tmp_path / "hive"):
            last = _submitted(hive, 4, first=len(tickets), lives_s=PATIENCE_S)
            tickets += last
            agent = MountedAgentProcess(tmp_path / "state", tmp_path / "hive", tmp_path)
            deadline = time.monotonic() + PATIENCE_S
            # The result of a ticket is in the hive before the journal says so.
            while not (all(_told(hive, ticket) for ticket in tickets) and _all_terminal(tmp_path / "state")):
                assert agent.process.poll() is None, agent.events()[-5:]
                assert time.monotonic() < deadline, agent.events()[-5:]
                time.sleep(0.02)
            assert agent.terminate() == 0
        books = books_of(hive, tmp_path / "state", tickets)
    assert set(books.effects.values()) == {1}
    assert set(books.results.values()) == {1}
    assert set(books.states.values()) == {"terminal"}
    confirmed = {ticket for ticket, outcome in books.outcomes.items() if outcome == "confirmed"}
    assert confirmed == set(books.effects) >= set(last)
    assert {books.outcomes[ticket] for ticket in set(tickets) - confirmed} <= {"stale"}


def _real_clock() -> int:
    return int(time.time() * 1000)


def _submitted(hive: ReferenceHive, count: int, *, first: int, lives_s: int) -> list[str]:
    """That many tickets, each for a Worker of its own."""
    names = []
    for number, worker in enumerate(_workers(hive, count), start=first):
        expires = _real_clock() + lives_s * 1000
        hive.submit(raw_grant(hive, worker, f"t{number}", f"lease-{number}", expires=expires, ttl_s=60))
        names.append(f"t{number}")
    return names


def _told(hive: ReferenceHive, ticket: str) -> bool:
    return bool(hive.terminal_lines((ticket, f"key-{ticket}")))


def _all_terminal(state_dir: Path) -> bool:
    return all(record.terminal for record in read_journal(state_dir).records.values())
