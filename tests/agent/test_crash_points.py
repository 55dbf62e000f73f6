"""Death after and before every durable step and every append of one ticket, for each lease action."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from agent_faults import (
    APPENDS,
    STEPS,
    DyingAppends,
    DyingFs,
    Killed,
    drop,
    effects_since,
    plans_before_effects,
)
from agent_support import Bench, agent_on
from hive_support import LEASE_CTL, ManualClock, raw_lease, running_hive

from ticket_agent.journal.transitions import State
from ticket_agent.journal.view import read_journal
from ticket_agent.protocol.lease import GrantControl

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.hive.reference import ReferenceHive
    from ticket_agent.journal.values import Record

VERBS = ("grant", "renew", "release")
KEY = ("t1", "key-t1")


def _submit(hive: ReferenceHive, verb: str) -> int:
    """One ticket, with the active lease that it needs; returns how many effects there were before."""
    worker = hive.spawn_worker("worker-gpu").worker_id
    if verb != "grant":
        lease = GrantControl(id="lease-1", subject=worker, resource="GPU-0", ttl_s=60, priority=0)
        hive.echo(LEASE_CTL, lease.encode())
    before = sum(hive.effects.values())
    hive.submit(raw_lease(hive, worker, verb, "t1", "lease-1"))
    return before


def _die(bench: Bench) -> None:
    with pytest.raises(Killed):
        bench.settle()
    drop(bench)


def _record(state_dir: Path) -> Record | None:
    records = list(read_journal(state_dir).records.values())
    assert len(records) <= 1
    return records[0] if records else None


def _finished(hive: ReferenceHive, state_dir: Path, before_death: Record | None) -> Record:
    """What holds after every recovery, whatever died where."""
    record = _record(state_dir)
    assert record is not None
    assert record.terminal
    assert record.staged is not None
    assert hive.terminal_lines(KEY) == [record.staged.line]
    if before_death is not None:
        assert record.history[: len(before_death.history)] == before_death.history
        assert before_death.staged in (None, record.staged)
        assert before_death.plan in (None, record.plan)
    return record


@pytest.mark.parametrize("durable", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("verb", VERBS)
def test_death_at_a_durable_step(tmp_path: Path, verb: str, step: str, durable: bool) -> None:
    clock, state_dir = ManualClock(), tmp_path / "state"
    with running_hive(clock=clock) as (hive, server):
        before = _submit(hive, verb)
        fs = DyingFs(STEPS.index(step), durable=durable)
        with (
            plans_before_effects(server, state_dir) as unplanned,
            agent_on(server, state_dir, clock=clock, fs=fs) as bench,
        ):
            _die(bench)
        left = _record(state_dir)
        with agent_on(server, state_dir, clock=clock) as bench:
            bench.settle()
        record = _finished(hive, state_dir, left)
        assert not unplanned
        # Death between the durable plan and the write has used up the one dispatch.
        dispatched = not (step == "executing" and durable)
        assert effects_since(hive, before) == dispatched
        assert record.result is not None
        assert record.result.outcome == ("confirmed" if dispatched else "rejected")
        assert hive.admission_of("t1").outcome == record.result.outcome


@pytest.mark.parametrize("sent", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("append", APPENDS)
@pytest.mark.parametrize("verb", VERBS)
def test_death_at_an_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, append: str, sent: bool
) -> None:
    clock, state_dir = ManualClock(), tmp_path / "state"
    with running_hive(clock=clock) as (hive, server):
        before = _submit(hive, verb)
        with (
            plans_before_effects(server, state_dir) as unplanned,
            agent_on(server, state_dir, clock=clock) as bench,
        ):
            dying = DyingAppends(bench.namespace, APPENDS.index(append), sent=sent)
            monkeypatch.setattr(bench.namespace, "append", dying)
            _die(bench)
        left = _record(state_dir)
        assert left is not None
        assert left.state is {"effect": State.EXECUTING, "result": State.PERSISTED}.get(
            append, State.PREPARED
        )
        with agent_on(server, state_dir, clock=clock) as bench:
            bench.settle()
        record = _finished(hive, state_dir, left)
        assert not unplanned
        dispatched = not (append == "effect" and not sent)
        assert effects_since(hive, before) == dispatched
        assert record.result is not None
        assert record.result.outcome == ("confirmed" if dispatched else "rejected")
        assert record.result.reconciled == (append == "effect")


@pytest.mark.parametrize("verb", VERBS)
def test_death_over_and_over_at_every_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Every life gets exactly one append further than it may, until nothing is left to append."""
    clock, state_dir = ManualClock(), tmp_path / "state"
    with running_hive(clock=clock) as (hive, server):
        before = _submit(hive, verb)
        deaths = 0
        while True:
            with agent_on(server, state_dir, clock=clock) as bench:
                monkeypatch.setattr(bench.namespace, "append", DyingAppends(bench.namespace, 0, sent=True))
                try:
                    bench.settle()
                    break
                except Killed:
                    drop(bench)
                    deaths += 1
        record = _finished(hive, state_dir, None)
        assert deaths == len(APPENDS)
        assert effects_since(hive, before) == 1
        assert record.result is not None
        assert record.result.outcome == "confirmed"
