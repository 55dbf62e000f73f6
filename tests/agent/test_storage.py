"""Full disks, failing writes and damaged files: what waits, what ends the process, what goes on."""

from __future__ import annotations

import errno
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from agent_faults import FullFs, root_of
from agent_support import Bench, agent_on
from hive_support import STATUS, ManualClock, raw_grant, running_hive
from journal_support import FailingFs

from ticket_agent.agent import operation
from ticket_agent.agent.keys import V2_FAMILY
from ticket_agent.journal.errors import JournalPoisonedError
from ticket_agent.journal.outcome import Committed, Plan, Unknown
from ticket_agent.journal.store import Limits
from ticket_agent.journal.transitions import State
from ticket_agent.protocol import spec
from ticket_agent.protocol.errors import SpecError

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.hive.reference import ReferenceHive

NO_RETENTION = Limits(retain_ms=0, retain_records=0, retire_batch=1, fenced_families=frozenset({V2_FAMILY}))


def _admit(hive: ReferenceHive, number: int, *, expires: int | None = None) -> None:
    worker = hive.spawn_worker("worker-gpu")
    hive.submit(raw_grant(hive, worker, f"t{number}", f"lease-{number}", expires=expires))


def _passes(bench: Bench, count: int = 5) -> None:
    for _ in range(count):
        bench.hurry()
        bench.passes(1)


def _outcome(bench: Bench, ticket: str) -> str:
    result = bench.record(ticket).result
    assert result is not None
    return result.outcome


def test_a_disk_that_is_full_at_the_intake_is_waited_for_without_a_restart(tmp_path: Path) -> None:
    """Nothing in the log changes when there is room again; the agent has to come back by itself."""
    clock, fs = ManualClock(), FullFs()
    with running_hive(clock=clock) as (hive, server):
        with agent_on(server, tmp_path / "state", clock=clock, fs=fs) as bench:
            _admit(hive, 1)
            bench.settle()
            fs.full = True
            _admit(hive, 2)
            _admit(hive, 3)
            _passes(bench)
            assert len(bench.store.records) == 1
            assert len(bench.events("intake-waits")) == 1
            fs.full = False
            bench.until(lambda: bench.agent.totals.ended == 3)
            fs.full = True
            _admit(hive, 4)
            _passes(bench)
            assert len(bench.events("intake-waits")) == 2
        assert {view.outcome for view in hive.admissions()[:3]} == {"confirmed"}
        assert hive.effect_count("grant", "lease-4") == 0


def test_a_disk_that_is_full_before_dispatch_is_waited_for_in_prepared(tmp_path: Path) -> None:
    clock, fs = ManualClock(), FullFs()
    with running_hive(clock=clock) as (hive, server):
        with agent_on(server, tmp_path / "state", clock=clock, fs=fs) as bench:
            hive.set_lifecycle("DRAINING")
            _admit_in_draining(hive, 1)
            _passes(bench, 2)
            fs.full = True
            hive.set_lifecycle("ONLINE")
            _passes(bench)
            record = bench.record("t1")
            assert record.state is State.PREPARED
            assert "make room" in bench.waiting(record.key)
            assert not hive.effects
            fs.full = False
            bench.settle()
        assert hive.effect_count("grant", "lease-1") == 1


def _admit_in_draining(hive: ReferenceHive, number: int, *, expires: int | None = None) -> None:
    """Admit while the gate is closed, as a ticket that came a moment before it closed."""
    state = root_of(hive).lifecycle.state
    hive.set_lifecycle("ONLINE")
    _admit(hive, number, expires=expires)
    root_of(hive).lifecycle.state = state


def test_a_ticket_that_expires_on_a_full_disk_waits_for_room_and_stops_nobody(tmp_path: Path) -> None:
    clock, fs = ManualClock(), FullFs()
    with running_hive(clock=clock) as (hive, server):
        with agent_on(server, tmp_path / "state", clock=clock, fs=fs) as bench:
            hive.set_lifecycle("DRAINING")
            _admit_in_draining(hive, 1, expires=clock() + 1000)
            _passes(bench, 2)
            fs.full = True
            clock.advance(1000)
            _passes(bench)
            assert bench.record("t1").state is State.PREPARED
            assert "make room" in bench.waiting(bench.record("t1").key)
            fs.full = False
            hive.set_lifecycle("ONLINE")
            bench.settle()
            assert _outcome(bench, "t1") == "stale"
        assert not hive.effects


def test_an_outcome_is_stored_from_the_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills up while the effect happens; the outcome is kept and the process then ends."""
    clock = ManualClock()
    fs = FailingFs(at=0, error=errno.ENOSPC, names={"create_new"})
    fs.armed = False
    with running_hive(clock=clock) as (hive, server):
        _admit(hive, 1)
        with agent_on(server, tmp_path / "state", clock=clock, fs=fs) as bench:
            provider = bench.agent._providers._by_version[2]["gpu.lease.grant"]
            execute = provider.execute

            def fill(plan: Plan) -> object:
                fs.armed = True
                return execute(plan)

            monkeypatch.setattr(provider, "execute", fill)
            bench.settle()
            assert bench.store.poisoned is not None
            _admit(hive, 2)
            with pytest.raises(JournalPoisonedError):
                _passes(bench)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.passes(1)
            bench.settle()
            assert [_outcome(bench, ticket) for ticket in ("t1", "t2")] == ["confirmed", "confirmed"]
        assert set(hive.effects.values()) == {1}


@pytest.mark.parametrize("name", ["write", "fsync", "close", "rename", "rename_new", "fsync_dir"])
def test_a_failed_write_ends_the_process_and_loses_nothing(tmp_path: Path, name: str) -> None:
    """Whichever call fails first: no further step in this life, and the next one finishes the ticket once."""
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        _admit(hive, 1)
        lives = 0
        for number in range(100):
            fs = FailingFs(at=number, names={name})
            fs.armed = False
            with agent_on(server, tmp_path / "state", clock=clock, fs=fs) as bench:
                fs.armed = True
                if not bench.store.open_records() and bench.store.records:
                    break
                try:
                    bench.settle()
                except JournalPoisonedError:
                    lives += 1
                    assert bench.store.poisoned is not None
                    states = Counter(record.state for record in bench.store.records.values())
                    with pytest.raises(JournalPoisonedError):
                        _passes(bench, 20)
                    assert Counter(record.state for record in bench.store.records.values()) == states
        assert lives >= 1
        assert hive.admission_of("t1").outcome in {"confirmed", "rejected"}
        assert sum(hive.effects.values()) == (hive.admission_of("t1").outcome == "confirmed")
        assert len(hive.terminal_lines(("t1", "key-t1"))) == 1


def test_a_damaged_record_of_an_open_ticket_is_not_executed_and_others_go_on(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        hive.set_lifecycle("DRAINING")
        _admit_in_draining(hive, 1)
        _admit_in_draining(hive, 2)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            _passes(bench, 2)
            assert {record.state for record in bench.store.records.values()} == {State.PREPARED}
        damaged = next((tmp_path / "state" / "ops").glob("00000000000000000001-*.rec"))
        data = damaged.read_bytes().replace(b"prepared", b"prepareD")
        damaged.write_bytes(data)
        hive.set_lifecycle("ONLINE")
        for _ in range(2):
            with agent_on(server, tmp_path / "state", clock=clock) as bench:
                bench.passes(1)
                bench.settle()
                assert [entry.sequence for entry in bench.store.quarantined] == [1]
        assert {effect.subject: count for effect, count in hive.effects.items()} == {"lease-2": 1}
        assert hive.admission_of("t1").outcome is None
        assert damaged.read_bytes() == data


def test_a_request_that_cannot_be_parsed_any_more_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a step back to an older version of the agent."""
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        hive.set_lifecycle("DRAINING")
        _admit_in_draining(hive, 1)
        _admit_in_draining(hive, 2)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            _passes(bench, 2)
        hive.set_lifecycle("ONLINE")
        parse = spec.parse_spec

        def older(data: bytes, **options: str) -> object:
            if b'"t1"' in data:
                raise SpecError("action: this is from the future", code="action", member="action")
            return parse(data, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(operation, "parse_spec", older)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.until(lambda: bench.agent.totals.ended == 1)
            assert list(bench.agent.unparsable) == [bench.record("t1").key]
            assert bench.record("t1").state is State.PREPARED
        monkeypatch.undo()
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
        assert set(hive.effects.values()) == {1}
        assert len(hive.effects) == 2


def test_retirement_that_finds_no_room_is_tried_again_later(tmp_path: Path) -> None:
    clock, fs = ManualClock(), FullFs()
    with running_hive(clock=clock) as (hive, server):
        _admit(hive, 1)
        _admit(hive, 2)
        with agent_on(server, tmp_path / "state", clock=clock, fs=fs, limits=NO_RETENTION) as bench:
            bench.settle()
            bench.passes(2)
            fs.full = True
            bench.agent._retire_due = 0.0
            _passes(bench)
            assert len(bench.store.records) == 2
            assert len(bench.events("retirement-waits")) == 1
            fs.full = False
            bench.agent._retire_due = 0.0
            _passes(bench)
            assert [record.sequence for record in bench.store.records.values()] == [2]
            _admit(hive, 3)
            bench.until(lambda: bench.agent.totals.ended == 3)
        assert hive.effect_count("grant", "lease-1") == 1


def test_a_cursor_that_finds_no_room_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, fs = ManualClock(), FullFs()
    with running_hive(clock=clock) as (hive, server):
        _admit(hive, 1)
        with agent_on(server, tmp_path / "state", clock=clock, fs=fs) as bench:
            bench.settle()
            assert bench.store.cursor.consumed_sequence == 0
            fs.full = True
            _passes(bench, 2)
            assert len(bench.events("cursor-waits")) == 1
            fs.full = False
            _passes(bench, 2)
            assert bench.store.cursor.consumed_sequence == 1


def test_a_plan_that_cannot_be_journaled_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        _admit(hive, 1)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            provider = bench.agent._providers._by_version[2]["gpu.lease.grant"]
            huge = Plan(before={"log": "x" * 20_000}, intent={})
            monkeypatch.setattr(provider, "plan", lambda request: huge)
            bench.settle()
            record = bench.record("t1")
            assert record.plan is None
            assert _outcome(bench, "t1") == "rejected"
            assert record.result is not None
            assert "cannot be journaled" in record.result.message
        assert hive.appended(STATUS) == 2
        assert not hive.effects


@pytest.mark.parametrize("part", ["execute", "observe"])
def test_evidence_that_cannot_be_journaled_does_not_cost_the_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        _admit(hive, 1)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            provider = bench.agent._providers._by_version[2]["gpu.lease.grant"]
            odd = Committed("done", {"when": 1.5})  # type: ignore[dict-item]
            monkeypatch.setattr(provider, "execute", lambda plan: Unknown("lost"))
            monkeypatch.setattr(provider, part, lambda plan: odd)
            bench.settle()
            record = bench.record("t1")
        assert record.result is not None
        assert record.result.outcome == "confirmed"
        assert "evidence_dropped" in record.result.evidence
