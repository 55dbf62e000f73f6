"""A ticket that root already holds a result for: taken over or dropped, never performed again."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from agent_faults import DyingFs, Killed, blind, drop
from agent_support import Bench, agent_on
from hive_support import DEADLETTER, STATUS, ManualClock, finish, raw_grant, running_hive

from ticket_agent.hive.reference import DEFAULT, STRICT_A, Fault, FaultKind, HiveProfile, ReferenceHive
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.journal.values import Record

KEY = ("t1", "key-t1")


def _submit(hive: ReferenceHive) -> None:
    hive.submit(raw_grant(hive, hive.spawn_worker("worker-gpu"), "t1", "lease-1"))


def _ended(bench: Bench) -> Record:
    bench.settle()
    return bench.record("t1")


@pytest.mark.parametrize("profile", [DEFAULT, STRICT_A], ids=lambda profile: profile.name)
@pytest.mark.parametrize(
    ("state", "outcome"), [("succeeded", "confirmed"), ("failed", "rejected"), ("expired", "stale")]
)
def test_a_visible_result_is_adopted(tmp_path: Path, profile: HiveProfile, state: str, outcome: str) -> None:
    """The journal of another life had decided; ours takes it over without a plan."""
    clock = ManualClock()
    with running_hive(profile, clock=clock) as (hive, server):
        _submit(hive)
        line = finish(hive, "t1", state)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            record = _ended(bench)
        assert record.result is not None
        assert (record.result.outcome, record.result.reconciled) == (outcome, True)
        assert record.staged is not None
        assert record.staged.line == line
        assert (record.plan, record.withdrawn) == (None, None)
        assert hive.terminal_lines(KEY) == [line]
        assert not hive.effects


@pytest.mark.parametrize("profile", [DEFAULT, STRICT_A], ids=lambda profile: profile.name)
def test_a_journal_that_is_gone_costs_no_second_effect(tmp_path: Path, profile: HiveProfile) -> None:
    clock, state_dir = ManualClock(), tmp_path / "state"
    with running_hive(profile, clock=clock) as (hive, server):
        _submit(hive)
        with agent_on(server, state_dir, clock=clock) as bench:
            first = _ended(bench)
        shutil.rmtree(state_dir)
        with agent_on(server, state_dir, clock=clock) as bench:
            second = _ended(bench)
        assert first.staged == second.staged
        assert hive.effect_count("grant", "lease-1") == 1
        assert len(hive.terminal_lines(KEY)) == 1


def test_a_result_that_was_evicted_is_known_from_roots_own_record(tmp_path: Path) -> None:
    clock, state_dir = ManualClock(), tmp_path / "state"
    with running_hive(clock=clock) as (hive, server):
        _submit(hive)
        with agent_on(server, state_dir, clock=clock) as bench:
            _ended(bench)
        shutil.rmtree(state_dir)
        hive.slide(STATUS, 10)
        appended = hive.appended(STATUS), hive.appended(DEADLETTER)
        with agent_on(server, state_dir, clock=clock) as bench:
            record = _ended(bench)
        assert record.plan is None
        assert record.withdrawn == "root already holds this admission as confirmed"
        assert (hive.appended(STATUS), hive.appended(DEADLETTER)) == appended
        assert hive.effect_count("grant", "lease-1") == 1


def test_death_before_the_withdrawal_of_a_result_that_root_cannot_take(tmp_path: Path) -> None:
    """Why root cannot take it is only in memory; the next life has to find out again, not wait for ever."""
    clock, state_dir = ManualClock(), tmp_path / "state"
    with running_hive(clock=clock) as (hive, server):
        _submit(hive)
        finish(hive, "t1")
        hive.slide(STATUS, 10)
        with agent_on(server, state_dir, clock=clock, fs=DyingFs(1, durable=True)) as bench:
            with pytest.raises(Killed):
                bench.settle()
            drop(bench)
        with agent_on(server, state_dir, clock=clock) as bench:
            assert bench.record("t1").state is State.PERSISTED
            record = _ended(bench)
        assert record.withdrawn == "root already holds this admission as confirmed"
        assert len(hive.terminal_lines(KEY)) == 1
        assert hive.appended(DEADLETTER) == 0


def test_a_result_that_appears_during_an_uncertainty_is_adopted(tmp_path: Path) -> None:
    """An operator may have ended the ticket on the hive; the agent then adds nothing of its own."""
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        _submit(hive)
        blind(server)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.passes(2)
            assert bench.record("t1").state is State.EXECUTING
            line = finish(hive, "t1", "failed", "ended by hand")
            bench.agent.streams.refresh(force=True)
            record = _ended(bench)
        assert record.result is not None
        assert (record.result.outcome, record.result.message) == ("rejected", "ended by hand")
        assert hive.terminal_lines(KEY) == [line]
        assert hive.effect_count("grant", "lease-1") == 1


def test_another_visible_result_withdraws_the_staged_one(tmp_path: Path) -> None:
    clock = ManualClock()
    refused = Fault(
        kind=FaultKind.ERR, verb="ECHO", prefix=STATUS, predicate=lambda line: '"state":"succeeded"' in line
    )
    with running_hive(clock=clock) as (hive, server):
        server.faults.add(refused)
        _submit(hive)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.passes(2)
            staged = bench.record("t1")
            assert staged.state is State.PERSISTED
            line = finish(hive, "t1", "failed", "ended by hand")
        server.faults.clear()
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            record = _ended(bench)
        assert record.staged == staged.staged
        assert record.withdrawn == "root already shows a different terminal result of this admission"
        assert hive.terminal_lines(KEY) == [line]


def test_a_result_of_an_earlier_admission_of_the_pair_is_not_this_ones(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(replace(DEFAULT, window=1), clock=clock) as (hive, server):
        first, second = (hive.spawn_worker("worker-gpu").worker_id for _ in range(2))
        raw = raw_grant(hive, first, "t1", "lease-1")
        hive.submit(raw)
        finish(hive, "t1", "failed")
        hive.submit(raw_grant(hive, second, "t2", "lease-2"))
        finish(hive, "t2", "failed")
        hive.submit(raw)
        hive.slide("spec.snapshot", 2)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            record = _ended(bench)
        assert record.sequence == 3
        assert hive.effect_count("grant", "lease-1") == 1
        assert len(hive.terminal_lines(KEY)) == 2
