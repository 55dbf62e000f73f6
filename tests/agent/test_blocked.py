"""A record that cannot be read holds its lane: everything that depends on it waits, other lanes go on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from agent_support import Bench, agent_on
from hive_support import ManualClock, raw_grant, raw_release, raw_renew, running_hive

from ticket_agent.agent.blocked import BlockedAdmissions
from ticket_agent.agent.keys import V2_FAMILY, base_key, reuse_key
from ticket_agent.hive.reference import DEFAULT, ReferenceHive
from ticket_agent.journal.scan import Quarantined
from ticket_agent.journal.transitions import State
from ticket_agent.journal.values import record_name
from ticket_agent.protocol.spec import parse_spec

if TYPE_CHECKING:
    from pathlib import Path

REFETCHING = replace(DEFAULT, admission_refetch=True)


def _damage(state_dir: Path, sequence: int) -> Path:
    (record,) = (state_dir / "ops").glob(f"{sequence:020d}-*.rec")
    record.write_bytes(record.read_bytes()[:-7])
    return record


def _granted_then_damaged(hive: ReferenceHive, worker: str, bench: Bench, state_dir: Path) -> None:
    hive.submit(raw_grant(hive, worker, "t1", "lease-a"))
    bench.settle()
    _damage(state_dir, 1)


def test_later_tickets_of_the_lease_wait_and_other_lanes_go_on(tmp_path: Path) -> None:
    clock, state_dir = ManualClock(), tmp_path / "state"
    with running_hive(clock=clock) as (hive, server):
        first, second = (hive.spawn_worker("worker-gpu").worker_id for _ in range(2))
        with agent_on(server, state_dir, clock=clock) as bench:
            _granted_then_damaged(hive, first, bench, state_dir)
        hive.submit(raw_renew(hive, first, "t2", "lease-a"))
        hive.submit(raw_grant(hive, second, "t3", "lease-b", "GPU-1"))
        before = hive.effects.copy()
        with agent_on(server, state_dir, clock=clock) as bench:
            bench.passes(1)
            bench.until(lambda: bench.record("t3").state is State.TERMINAL)
            for _ in range(5):
                bench.hurry()
                bench.passes(1)
            assert bench.record("t2").state is State.PREPARED
            key = bench.record("t2").key
            assert "cannot be read" in bench.waiting(key)
            assert "00000000000000000001-" in bench.waiting(key)
        assert {effect.subject for effect in hive.effects - before} == {"lease-b"}


def test_what_waits_behind_it_still_expires(tmp_path: Path) -> None:
    clock, state_dir = ManualClock(), tmp_path / "state"
    with running_hive(clock=clock) as (hive, server):
        worker = hive.spawn_worker("worker-gpu").worker_id
        with agent_on(server, state_dir, clock=clock) as bench:
            _granted_then_damaged(hive, worker, bench, state_dir)
        hive.submit(raw_release(hive, worker, "t2", "lease-a", expires=clock() + 5_000))
        before = hive.effects.copy()
        with agent_on(server, state_dir, clock=clock) as bench:
            bench.passes(2)
            assert bench.record("t2").state is State.PREPARED
            clock.advance(5_000)
            bench.settle()
            result = bench.record("t2").result
            assert result is not None
            assert result.outcome == "stale"
        assert hive.effects == before


def test_an_admission_that_slid_out_of_the_log_is_asked_for(tmp_path: Path) -> None:
    clock, state_dir = ManualClock(), tmp_path / "state"
    with running_hive(REFETCHING, clock=clock) as (hive, server):
        worker = hive.spawn_worker("worker-gpu").worker_id
        with agent_on(server, state_dir, clock=clock) as bench:
            _granted_then_damaged(hive, worker, bench, state_dir)
        hive.submit(raw_release(hive, worker, "t2", "lease-a"))
        hive.slide("spec.snapshot", 1)
        before = hive.effects.copy()
        with agent_on(server, state_dir, clock=clock) as bench:
            bench.until(lambda: len(bench.store.records) == 1)
            for _ in range(5):
                bench.hurry()
                bench.passes(1)
            assert bench.record("t2").state is State.PREPARED
        assert hive.effects == before


def test_the_lane_is_free_once_the_record_is_restored(tmp_path: Path) -> None:
    clock, state_dir = ManualClock(), tmp_path / "state"
    with running_hive(clock=clock) as (hive, server):
        worker = hive.spawn_worker("worker-gpu").worker_id
        hive.submit(raw_grant(hive, worker, "t1", "lease-a"))
        with agent_on(server, state_dir, clock=clock) as bench:
            bench.settle()
        (whole,) = (state_dir / "ops").glob("*.rec")
        good = whole.read_bytes()
        _damage(state_dir, 1)
        hive.submit(raw_release(hive, worker, "t2", "lease-a"))
        with agent_on(server, state_dir, clock=clock) as bench:
            bench.passes(3)
            assert bench.record("t2").state is State.PREPARED
        whole.write_bytes(good)
        with agent_on(server, state_dir, clock=clock) as bench:
            bench.settle()
            assert bench.record("t2").state is State.TERMINAL
        assert hive.admission_of("t2").outcome == "confirmed"


@pytest.mark.parametrize("suffixed", [False, True], ids=["first use", "used again"])
def test_only_the_request_that_the_file_is_named_after_is_its_own(suffixed: bool) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, _):
        worker = hive.spawn_worker("worker-gpu").worker_id
        hive.submit(raw_grant(hive, worker, "t1", "lease-a"))
        line = hive.cat("/host/tickets/spec.snapshot")[0]
    spec = parse_spec(line.encode(), source="admitted")
    key = reuse_key(base_key(spec), 3, 1) if suffixed else base_key(spec)
    entries = [
        Quarantined(name=record_name(sequence, name), reason="", offset=0, sequence=sequence)
        for sequence, name in ((1, key), (2, key), (1, "another"))
    ]
    blocked = BlockedAdmissions(entries, refetch=lambda _: None, max_line_bytes=2_048)
    blocked.learn([spec], family=V2_FAMILY, epoch=3)
    assert [(found.name, found.sequence) for found in blocked.found] == [(entries[0].name, 1)]
    blocked.learn([spec], family=V2_FAMILY, epoch=3)
    assert len(blocked.found) == 1
