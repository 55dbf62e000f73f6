"""The promise, end to end: at most one effect and exactly one terminal result per ticket, whatever breaks."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from agent_support import AgentProcess, Books, Caller, agent_on, books_of
from hive_support import LEASE_CTL, TRANSPORTS, ManualClock, running, running_hive

from ticket_agent.hive.reference import Fault, FaultKind, Faults, ReferenceHive
from ticket_agent.journal.view import read_journal

if TYPE_CHECKING:
    from pathlib import Path

TICKETS = 200
TICKETS_OVER = {"console": TICKETS, "rest": 24}
"""A gateway is asked far more often per lost answer."""
WORKERS = 16
KILLS = 8
LIFE_S = 120
LONG_S = 900
"""Ten times what any of these takes on a machine that does something else as well."""


def _workers(hive: ReferenceHive, count: int = WORKERS) -> list[str]:
    return [hive.spawn_worker("worker-gpu").worker_id for _ in range(count)]


def _all_once(books: Books, tickets: list[str], *, kills: int = 0) -> None:
    """One result each, and one effect; a kill between a durable intent and its write costs that ticket."""
    applied = {ticket for ticket in tickets if books.outcomes[ticket] == "confirmed"}
    assert books.effects == Counter(dict.fromkeys(applied, 1))
    assert books.results == Counter(dict.fromkeys(tickets, 1))
    assert set(books.states.values()) == {"terminal"}
    assert {books.outcomes[ticket] for ticket in tickets if ticket not in applied} <= {"rejected"}
    assert len(tickets) - len(applied) <= kills


@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([Fault(kind=FaultKind.DROP_AFTER, verb="ECHO")], id="every-append-applied-answer-lost"),
        pytest.param(
            [
                Fault(kind=FaultKind.DROP_BEFORE, verb="ECHO", prefix="/host/tickets", every=2),
                Fault(kind=FaultKind.DROP_AFTER, verb="ECHO"),
            ],
            id="every-append-cut-every-second-result-not-applied",
        ),
    ],
)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_many_tickets_when_every_append_loses_its_answer(
    tmp_path: Path, faults: list[Fault], transport: str
) -> None:
    clock, total = ManualClock(int(time.time() * 1000)), TICKETS_OVER[transport]
    with running(transport, clock=clock, faults=Faults(*faults)) as (hive, server):
        caller = Caller(hive, _workers(hive), total)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:

            def done() -> bool:
                caller.submit_what_can_be()
                return (
                    len(caller.submitted) == total
                    and not bench.store.open_records()
                    and bench.agent.totals.ended == total
                )

            bench.until(done, limit=20_000)
        _all_once(books_of(hive, tmp_path / "state", caller.submitted), caller.submitted)
        assert {view.outcome for view in hive.admissions()} == {"confirmed"}


@pytest.mark.timeout(LONG_S)
def test_lease_writes_that_are_cut_before_they_apply_end_as_failed_and_are_never_sent_again(
    tmp_path: Path,
) -> None:
    """A write that was proven not to be applied has used up its one dispatch: the ticket fails, honestly."""
    clock = ManualClock(int(time.time() * 1000))
    faults = Faults(
        Fault(kind=FaultKind.DROP_BEFORE, verb="ECHO", prefix=LEASE_CTL, every=2),
        Fault(kind=FaultKind.DROP_BEFORE, verb="ECHO", prefix="/host/tickets", every=3),
        Fault(kind=FaultKind.DROP_AFTER, verb="ECHO"),
    )
    dispatched: list[str] = []
    with running_hive(clock=clock, faults=faults) as (hive, server):
        caller = Caller(hive, _workers(hive), 60)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            for provider in bench.agent._providers._by_version[2].values():
                _count_dispatches(provider, dispatched)

            def done() -> bool:
                caller.submit_what_can_be()
                return len(caller.submitted) == 60 and bench.agent.totals.ended == 60

            bench.until(done, limit=20_000)
        books = books_of(hive, tmp_path / "state", caller.submitted)
    assert Counter(dispatched) == Counter(dict.fromkeys((f"lease-{number}" for number in range(60)), 1))
    assert books.results == Counter(dict.fromkeys(caller.submitted, 1))
    applied = {ticket for ticket in caller.submitted if books.effects[ticket] == 1}
    assert applied
    assert applied != set(caller.submitted)
    assert max(books.effects.values()) == 1
    assert {ticket for ticket, outcome in books.outcomes.items() if outcome == "confirmed"} == applied
    assert {outcome for ticket, outcome in books.outcomes.items() if ticket not in applied} == {"rejected"}


def _count_dispatches(provider: object, dispatched: list[str]) -> None:
    execute = provider.execute  # type: ignore[attr-defined]

    def counted(plan: object) -> object:
        dispatched.append(plan.intent["id"])  # type: ignore[attr-defined]
        return execute(plan)

    provider.execute = counted  # type: ignore[attr-defined]


@pytest.mark.timeout(LONG_S)
def test_kill_at_random_moments_during_two_hundred_tickets(tmp_path: Path) -> None:
    """A real process, SIGKILL, start again, over and over: the same books."""
    chance, moved = random.Random(20261129), threading.Event()
    with running_hive(clock=lambda: int(time.time() * 1000)) as (hive, server):
        server.faults.on_applied(lambda path, line: moved.set())
        caller = Caller(hive, _workers(hive), TICKETS)
        kills = 0
        # So many tickets end before the kill, and at most one more for each Worker: nobody else submits. The
        # first lives are short enough that there are KILLS of them.
        allowances = [chance.randrange(1, 9) for _ in range(KILLS)]
        allowances += [chance.randrange(9, 33) for _ in range(TICKETS)]
        assert sum(allowances[: KILLS - 1]) + WORKERS * (KILLS - 1) < TICKETS
        while not _finished(hive, caller):
            agent = AgentProcess(tmp_path / "state", server.port, tmp_path)
            ended_before = _ended(hive)
            deadline = time.monotonic() + LIFE_S
            while _ended(hive) - ended_before < allowances[kills] and not _finished(hive, caller):
                caller.submit_what_can_be()
                assert agent.process.poll() is None, agent.errors.read_text()
                assert time.monotonic() < deadline, agent.errors.read_text()[-3000:]
                moved.wait(0.05)
                moved.clear()
            time.sleep(chance.random() * 0.01)
            agent.kill()
            kills += 1
        last = AgentProcess(tmp_path / "state", server.port, tmp_path)
        deadline = time.monotonic() + LIFE_S
        while not (_connected(last) and _all_terminal(tmp_path / "state")):
            assert last.process.poll() is None, last.errors.read_text()
            assert time.monotonic() < deadline, last.errors.read_text()[-3000:]
            time.sleep(0.02)
        assert last.terminate() == 0
        _all_once(books_of(hive, tmp_path / "state", caller.submitted), caller.submitted, kills=kills)
        assert kills >= KILLS


def _connected(agent: AgentProcess) -> bool:
    return any(event["event"] == "hive-connected" for event in agent.events())


def _all_terminal(state_dir: Path) -> bool:
    return all(record.terminal for record in read_journal(state_dir).records.values())


def _ended(hive: ReferenceHive) -> int:
    return sum(view.outcome is not None for view in hive.admissions())


def _finished(hive: ReferenceHive, caller: Caller) -> bool:
    return len(caller.submitted) == caller.total and _ended(hive) == caller.total


@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_hive_reboots_in_the_middle(tmp_path: Path, transport: str) -> None:
    """No admission of the new epoch is skipped, none of the old ones is repeated."""
    clock = ManualClock(int(time.time() * 1000))
    with running(transport, clock=clock) as (hive, server):
        first = Caller(hive, _workers(hive), 40)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:

            def half() -> bool:
                first.submit_what_can_be()
                return bench.agent.totals.ended >= 20

            bench.until(half, limit=2000)
            effects_before = hive.effects
            open_before = {record.key for record in bench.store.open_records()}
            hive.reboot()
            server.kick()
            second = Caller(hive, _workers(hive), 60, first=1000)

            def all_done() -> bool:
                second.submit_what_can_be()
                return len(second.submitted) == 60 and not bench.store.open_records() and _ended(hive) == 60

            bench.until(all_done, limit=4000)
            assert bench.store.cursor.epoch == 2
            for key in open_before:
                record = bench.store.records[key]
                assert record.terminal
        effects = hive.effects - effects_before
    assert {effect.subject: count for effect, count in effects.items()} == {
        f"lease-{ticket[1:]}": 1 for ticket in second.submitted
    }
