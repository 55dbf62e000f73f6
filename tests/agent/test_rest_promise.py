"""The promise behind a gateway: answers are lost, late, wrong or told to others; one effect, one result."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from agent_support import AgentProcess, Caller, agent_on, books_of
from hive_support import CACHE_S, LEASE_CTL, ManualClock, raw_grant, running_gateway

from ticket_agent.exits import Exit
from ticket_agent.hive.reference import Fault, FaultKind, Faults
from ticket_agent.journal.view import read_journal

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.hive.reference import ReferenceHive
    from ticket_agent.journal.values import Record

TICKETS = 8

FAULTS = {
    "answer-lost": [Fault(kind=FaultKind.DROP_AFTER, verb="ECHO")],
    "504-after-dispatch": [Fault(kind=FaultKind.STATUS_AFTER, verb="ECHO")],
    "503-after-dispatch": [Fault(kind=FaultKind.STATUS_AFTER, verb="ECHO", text="503")],
    "500-after-dispatch": [Fault(kind=FaultKind.STATUS_AFTER, verb="ECHO", text="500")],
    "wrong-json": [Fault(kind=FaultKind.GARBAGE, verb="ECHO")],
    "answer-to-another": [
        Fault(kind=FaultKind.GARBAGE, verb="ECHO", text='{"status":"OK","verb":"ECHO","path":"/x"}')
    ],
    "endless-answer": [Fault(kind=FaultKind.HUGE, verb="ECHO", every=2)],
    "results-refused-by-load": [
        Fault(kind=FaultKind.STATUS_BEFORE, verb="ECHO", prefix="/host", every=4, text="429")
    ],
    "results-503-before-dispatch": [
        Fault(kind=FaultKind.STATUS_BEFORE, verb="ECHO", prefix="/host", every=2),
        Fault(kind=FaultKind.STATUS_AFTER, verb="ECHO", prefix="/queen"),
    ],
    "results-forbidden": [
        Fault(kind=FaultKind.STATUS_BEFORE, verb="ECHO", prefix="/host", every=3, text="403")
    ],
    "reads-fail": [
        Fault(kind=FaultKind.DROP_BEFORE, verb="CAT", every=5),
        Fault(kind=FaultKind.GARBAGE, verb="TAIL", every=7),
        Fault(kind=FaultKind.STATUS_AFTER, verb="LS", every=3),
    ],
}


def _now() -> ManualClock:
    return ManualClock(int(time.time() * 1000))


@pytest.mark.parametrize("name", FAULTS)
def test_one_effect_and_one_result_each(tmp_path: Path, name: str) -> None:
    clock = _now()
    with running_gateway(clock=clock, faults=Faults(*FAULTS[name])) as (hive, server):
        caller = Caller(hive, [hive.spawn_worker("worker-gpu").worker_id for _ in range(4)], TICKETS)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:

            def done() -> bool:
                caller.submit_what_can_be()
                return bench.agent.totals.ended == TICKETS

            bench.until(done, limit=4000)
        books = books_of(hive, tmp_path / "state", caller.submitted)
        assert server.faults.struck(FAULTS[name][0].kind) > 0
    assert books.effects == Counter(dict.fromkeys(caller.submitted, 1))
    assert books.results == Counter(dict.fromkeys(caller.submitted, 1))
    assert set(books.outcomes.values()) == {"confirmed"}


def test_a_write_that_a_gateway_may_still_hold_is_never_called_not_applied(tmp_path: Path) -> None:
    """The lease is not there, the connection is gone, the hive runs: at a console that would prove it."""
    clock = _now()
    lost = Fault(kind=FaultKind.STATUS_BEFORE, verb="ECHO", prefix=LEASE_CTL)
    with running_gateway(clock=clock, faults=Faults(lost)) as (hive, server):
        worker = hive.spawn_worker("worker-gpu").worker_id
        expires = clock.now_ms + 60_000
        hive.submit(raw_grant(hive, worker, "t-1", "lease-1", expires=expires))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.passes(3)
            server.kick()
            server.drop_connections()
            for _ in range(5):
                bench.hurry()
                bench.passes(1)
            record = bench.record("t-1")
            assert record.state.value == "executing"
            assert record.uncertain is not None
            clock.advance(60_001)
            bench.until(lambda: bench.agent.totals.ended == 1)
            outcome = bench.record("t-1").result
            assert outcome is not None
            assert outcome.outcome == "stale"
        assert server.faults.struck(FaultKind.STATUS_BEFORE) == 1
        assert not hive.effects


def test_a_write_that_comes_through_after_its_504_is_found_and_not_made_again(tmp_path: Path) -> None:
    clock, release = _now(), threading.Event()
    late = Fault(kind=FaultKind.DELAY, verb="ECHO", prefix=LEASE_CTL, seconds=60, event=release)
    with running_gateway(clock=clock, faults=Faults(late), deadline_s=0.05) as (hive, server):
        worker = hive.spawn_worker("worker-gpu").worker_id
        hive.submit(raw_grant(hive, worker, "t-1", "lease-1"))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            for _ in range(4):
                bench.hurry()
                bench.passes(1)
            assert bench.record("t-1").uncertain is not None
            assert hive.effect_count("grant", "lease-1") == 0
            release.set()
            bench.until(lambda: bench.agent.totals.ended == 1)
            outcome = bench.record("t-1").result
            assert outcome is not None
            assert (outcome.outcome, outcome.reconciled) == ("confirmed", True)
        assert hive.effect_count("grant", "lease-1") == 1
        assert len(hive.terminal_lines(("t-1", "key-t-1"))) == 1


KILLS = 5
LIFE_S = 120


@pytest.mark.timeout(900)
def test_the_daemon_over_rest_is_killed_again_and_again(tmp_path: Path) -> None:
    """A kill right before the one request leaves a ticket uncertain, and it says so; nothing is doubled."""
    with running_gateway(clock=lambda: int(time.time() * 1000)) as (hive, server):
        caller = Caller(hive, [hive.spawn_worker("worker-gpu").worker_id for _ in range(4)], 12)
        config = tmp_path / "agent.toml"
        config.write_text(f'[rest]\nurl = "{server.url}"\ncache_s = {CACHE_S}\n')
        state_dir = tmp_path / "state"

        def ended() -> int:
            return sum(view.outcome is not None for view in hive.admissions())

        caller.submit_what_can_be()
        for _ in range(KILLS):
            agent = AgentProcess(state_dir, server.url, tmp_path, "--config", str(config))
            before, deadline = ended(), time.monotonic() + LIFE_S
            # More than two may end at once, and a Worker whose ticket a kill left uncertain gets no other.
            # There may be nothing left to end.
            while ended() - before < 2 and not _settled(hive, state_dir):
                caller.submit_what_can_be()
                assert agent.process.poll() is None, agent.errors.read_text()
                assert time.monotonic() < deadline, agent.errors.read_text()[-3000:]
                time.sleep(0.005)
            agent.kill()
        last = AgentProcess(state_dir, server.url, tmp_path, "--config", str(config))
        deadline = time.monotonic() + LIFE_S
        while not _settled(hive, state_dir):
            caller.submit_what_can_be()
            assert last.process.poll() is None, last.errors.read_text()
            assert time.monotonic() < deadline, last.errors.read_text()[-3000:]
            time.sleep(0.02)
        assert last.terminate() in {0, Exit.UNCERTAIN}
        records = read_journal(state_dir).records.values()
        assert {json.loads(record.request)["id"] for record in records} == set(caller.submitted)
        for record in records:
            ticket = json.loads(record.request)["id"]
            applied = hive.effect_count("grant", _lease_of(record))
            told = len(hive.terminal_lines((ticket, f"key-{ticket}")))
            assert (applied, told) == _counts(record), ticket
        uncertain = [record for record in records if not record.terminal]
        assert len(uncertain) <= KILLS
        assert ended() == len(caller.submitted) - len(uncertain)


def _settled(hive: ReferenceHive, state_dir: Path) -> bool:
    """Whether every admission is terminal, or is known to be uncertain and left no effect."""
    records = read_journal(state_dir).records.values() if state_dir.exists() else ()
    return len(records) == len(hive.admissions()) and all(
        record.terminal
        or (record.uncertain is not None and not hive.effect_count("grant", _lease_of(record)))
        for record in records
    )


def _counts(record: Record) -> tuple[int, int]:
    """How many effects and terminal results there must be, by what the journal says."""
    if record.result is None:
        return 0, 0
    if record.result.outcome == "confirmed":
        return 1, 1
    # A gateway that could not be asked for too long got nothing; nothing else is ever called not applied.
    assert "nothing was sent" in record.result.message, record.result
    return 0, 1


def _lease_of(record: Record) -> str:
    return str(json.loads(record.request)["operation_id"])
