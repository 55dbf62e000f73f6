"""Reboots of the hive: its numbers and logs start anew, its tickets are forgotten, nothing is repeated."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from agent_faults import FullFs, blind, drop, when_applied
from agent_support import Bench, agent_on
from hive_support import DEADLETTER, LEASE_CTL, STATUS, ManualClock, finish, raw_grant, running_hive

from ticket_agent.hive.reference import (
    DEFAULT,
    STRICT_A,
    ConsoleServer,
    Fault,
    FaultKind,
    HiveProfile,
    ReferenceHive,
)
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ticket_agent.journal.values import Record
    from ticket_agent.protocol.namespace import AppendAnswer

PROFILES = [pytest.param(DEFAULT, id="default"), pytest.param(STRICT_A, id="strict-a")]
ONE_WORKER_EACH = replace(STRICT_A, slots_per_role=8)


@contextmanager
def hive_on(profile: HiveProfile = DEFAULT) -> Iterator[tuple[ReferenceHive, ConsoleServer, ManualClock]]:
    clock = ManualClock()
    with running_hive(profile, clock=clock) as (hive, server):
        yield hive, server, clock


def _admit(hive: ReferenceHive, ticket: str, lease: str | None = None, *, worker: str | None = None) -> str:
    worker_id = worker or hive.spawn_worker("worker-gpu").worker_id
    hive.submit(raw_grant(hive, worker_id, ticket, lease or f"lease-{ticket}"))
    return worker_id


def _reboot(hive: ReferenceHive, server: ConsoleServer) -> None:
    hive.reboot()
    server.kick()


def _passes(bench: Bench, count: int = 4) -> None:
    for _ in range(count):
        bench.hurry()
        bench.passes(1)


def _records(bench: Bench, ticket: str) -> list[Record]:
    """Every record of a ticket id, oldest first."""
    found = [r for r in bench.store.records.values() if json.loads(r.request)["id"] == ticket]
    return sorted(found, key=lambda record: (record.epoch, record.sequence))


def _outcome(record: Record) -> str:
    assert record.result is not None
    return record.result.outcome


@pytest.mark.parametrize("up", [True, False], ids=["agent-up", "agent-down"])
@pytest.mark.parametrize("profile", PROFILES)
def test_a_reboot_opens_an_epoch_and_the_new_tickets_are_served(
    tmp_path: Path, profile: HiveProfile, up: bool
) -> None:
    with hive_on(profile) as (hive, server, clock):
        worker = _admit(hive, "t1")
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            bench.passes(1)
            if up:
                _reboot(hive, server)
                _admit(hive, "t2", worker=hive.spawn_worker("worker-gpu", worker).worker_id)
                bench.until(lambda: bench.agent.totals.ended == 2)
        if not up:
            _reboot(hive, server)
            _admit(hive, "t2", worker=hive.spawn_worker("worker-gpu", worker).worker_id)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.passes(1)
            bench.settle()
            assert bench.agent.intake.epoch == 2
            assert [mark.number for mark in bench.store.cursor.epochs] == [1, 2]
            assert sorted(record.epoch for record in bench.store.records.values()) == [1, 2]
        assert hive.admission_of("t2").sequence == 1
        assert hive.admission_of("t2").outcome == "confirmed"
        assert hive.effect_count("grant", "lease-t2") == 1


def test_several_reboots_in_a_row(tmp_path: Path) -> None:
    with hive_on() as (hive, server, clock), agent_on(server, tmp_path / "state", clock=clock) as bench:
        for life in range(1, 6):
            _admit(hive, f"t{life}")
            bench.until(lambda life=life: bench.agent.totals.ended == life)  # type: ignore[misc]
            _reboot(hive, server)
        assert sum(hive.effects.values()) == 5
        assert bench.agent.intake.epoch == 5


@pytest.mark.parametrize("up", [True, False], ids=["agent-up", "agent-down"])
@pytest.mark.parametrize("profile", [DEFAULT, ONE_WORKER_EACH], ids=lambda profile: profile.name)
def test_what_was_open_is_ended_with_the_reason(tmp_path: Path, profile: HiveProfile, up: bool) -> None:
    """One of each open state: none is dispatched or published in the new life."""
    with hive_on(profile) as (hive, server, clock):
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            _admit(hive, "done")
            bench.settle()
            bench.passes(1)
            blind(server, "/proc/lease/by-id/lease-executing")
            _admit(hive, "executing")
            _passes(bench)
            _admit(hive, "persisted")
            _admit(hive, "prepared")
            when_applied(server, LEASE_CTL, lambda: hive.set_lifecycle("DRAINING"))
            _passes(bench)
            states = {json.loads(r.request)["id"]: r.state for r in bench.store.open_records()}
            assert states == {
                "executing": State.EXECUTING,
                "persisted": State.PERSISTED,
                "prepared": State.PREPARED,
            }
            server.faults.clear()
            if up:
                _reboot(hive, server)
                _admit(hive, "new")
                bench.until(lambda: bench.agent.totals.ended == 5)
        if not up:
            _reboot(hive, server)
            _admit(hive, "new")
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.passes(1)
            bench.settle()
            for ticket in states:
                (record,) = _records(bench, ticket)
                assert record.withdrawn is not None
                assert "hive epoch 1 is over" in record.withdrawn
            assert _outcome(_records(bench, "executing")[0]) == "stale"
            assert _outcome(_records(bench, "persisted")[0]) == "confirmed"
            assert _outcome(_records(bench, "prepared")[0]) == "stale"
            assert _records(bench, "prepared")[0].plan is None
        assert {effect.subject: count for effect, count in hive.effects.items()} == {
            "lease-done": 1,
            "lease-executing": 1,
            "lease-persisted": 1,
            "lease-new": 1,
        }
        assert [view.outcome for view in hive.admissions()] == ["confirmed"]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_pair_that_was_dispatched_in_an_earlier_life_is_refused(
    tmp_path: Path, profile: HiveProfile
) -> None:
    with hive_on(profile) as (hive, server, clock):
        worker = _admit(hive, "t1")
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            _reboot(hive, server)
            hive.spawn_worker("worker-gpu", worker)
            # Otherwise its line, the last one consumed, would stand there again: see the tests marked below.
            _admit(hive, "t0", worker=worker)
            bench.until(lambda: bench.agent.totals.ended == 2)
            _admit(hive, "t1", worker=worker)
            bench.until(lambda: bench.agent.totals.ended == 3)
            first, second = _records(bench, "t1")
        assert (_outcome(first), _outcome(second)) == ("confirmed", "rejected")
        assert second.plan is None
        assert "already used by admission 1 of hive epoch 1" in json.loads(_last(hive, DEADLETTER))["message"]
        assert hive.effect_count("grant", "lease-t1") == 1


@pytest.mark.parametrize("profile", [DEFAULT, ONE_WORKER_EACH], ids=lambda profile: profile.name)
def test_a_pair_that_was_never_dispatched_is_performed_once_in_the_new_life(
    tmp_path: Path, profile: HiveProfile
) -> None:
    with hive_on(profile) as (hive, server, clock):
        _admit(hive, "t0")
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            _admit(hive, "t1")
            hive.set_lifecycle("DRAINING")
            _passes(bench)
            assert bench.record("t1").state is State.PREPARED
            _reboot(hive, server)
            _admit(hive, "t1")
            bench.until(lambda: len(_records(bench, "t1")) == 2 and not bench.store.open_records())
            first, second = _records(bench, "t1")
        assert (_outcome(first), first.plan) == ("stale", None)
        assert _outcome(second) == "confirmed"
        assert hive.effect_count("grant", "lease-t1") == 1


def test_a_pair_whose_result_was_adopted_counts_as_dispatched(tmp_path: Path) -> None:
    """Without a plan of ours, but confirmed: a journal that is gone had performed it."""
    with hive_on() as (hive, server, clock):
        worker = _admit(hive, "t1")
        finish(hive, "t1")
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            _reboot(hive, server)
            _admit(hive, "t1", worker=hive.spawn_worker("worker-gpu", worker).worker_id)
            bench.until(lambda: len(_records(bench, "t1")) == 2 and not bench.store.open_records())
            assert _outcome(_records(bench, "t1")[1]) == "rejected"
        assert not hive.effects


def test_a_pair_that_root_retired_and_admits_again_is_refused(tmp_path: Path) -> None:
    with hive_on(replace(DEFAULT, window=1)) as (hive, server, clock):
        worker = hive.spawn_worker("worker-gpu").worker_id
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            for ended, ticket in enumerate(("t1", "t2", "t1"), start=1):
                _admit(hive, ticket, worker=worker)
                bench.until(lambda ended=ended: bench.agent.totals.ended == ended)  # type: ignore[misc]
            first, second = _records(bench, "t1")
        assert (first.sequence, second.sequence) == (1, 3)
        assert (_outcome(first), _outcome(second)) == ("confirmed", "rejected")
        assert hive.effect_count("grant", "lease-t1") == 1
        assert hive.admission_of("t1").outcome == "rejected"


@pytest.mark.parametrize("loss", ["deleted", "damaged"])
def test_the_epoch_is_found_in_the_records_when_the_cursor_is_lost(tmp_path: Path, loss: str) -> None:
    state_dir = tmp_path / "state"
    with hive_on() as (hive, server, clock):
        _admit(hive, "t1")
        with agent_on(server, state_dir, clock=clock) as bench:
            bench.settle()
            bench.passes(1)
            _reboot(hive, server)
            _admit(hive, "t2")
            bench.until(lambda: bench.agent.totals.ended == 2)
            hive.set_lifecycle("ONLINE")
            blind(server, "/proc/lease/by-id/lease-t3")
            _admit(hive, "t3")
            _passes(bench)
            assert bench.record("t3").state is State.EXECUTING
        server.faults.clear()
        (cursor,) = state_dir.glob("cursor*")
        cursor.unlink() if loss == "deleted" else cursor.write_bytes(cursor.read_bytes()[:-7])
        _admit(hive, "t4")
        with agent_on(server, state_dir, clock=clock) as bench:
            assert bench.agent.intake.epoch == 2
            bench.passes(1)
            bench.settle()
            bench.passes(2)
            assert bench.agent.intake.epoch == 2
            assert sorted(record.epoch for record in bench.store.records.values()) == [1, 2, 2, 2]
            assert {_outcome(record) for record in bench.store.records.values()} == {"confirmed"}
            assert (bench.store.cursor_problem is None) == (loss == "deleted")
        assert set(hive.effects.values()) == {1}
        assert {view.outcome for view in hive.admissions()} == {"confirmed"}


def test_a_damaged_cursor_stops_neither_a_reboot_nor_a_gap_from_being_noticed(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    with hive_on() as (hive, server, clock):
        _admit(hive, "t1")
        with agent_on(server, state_dir, clock=clock) as bench:
            bench.settle()
            bench.passes(1)
        (cursor,) = state_dir.glob("cursor*")
        cursor.write_bytes(b"rubbish")
        with agent_on(server, state_dir, clock=clock) as bench:
            bench.passes(1)
            _reboot(hive, server)
            _admit(hive, "t2")
            bench.until(lambda: bench.agent.totals.ended == 1)
            assert bench.agent.intake.epoch == 2
        with agent_on(server, state_dir, clock=clock) as bench:
            assert bench.agent.intake.epoch == 2
            _admit(hive, "t3")
            hive.slide("spec.snapshot", 2)
            _passes(bench)
            assert bench.agent.intake.held is not None
        assert cursor.read_bytes() == b"rubbish"
        assert set(hive.effects.values()) == {1}


def test_a_full_disk_at_a_reboot_waits_and_dispatches_nothing(tmp_path: Path) -> None:
    fs = FullFs()
    with hive_on() as (hive, server, clock):
        _admit(hive, "t1")
        with agent_on(server, tmp_path / "state", clock=clock, fs=fs) as bench:
            bench.settle()
            fs.full = True
            _reboot(hive, server)
            _admit(hive, "t2")
            _passes(bench, 6)
            assert hive.effect_count("grant", "lease-t2") == 0
            assert bench.store.cursor.epoch == 1
            fs.full = False
            bench.until(lambda: bench.agent.totals.ended == 2)
            assert bench.store.cursor.epoch == bench.record("t2").epoch == 2
        assert hive.effect_count("grant", "lease-t2") == 1


def test_a_reboot_in_the_middle_of_a_pass_is_noticed_before_anything_else_is_decided(tmp_path: Path) -> None:
    """The first ticket's answer is lost because the hive reboots; the same Workers are READY again at once.

    In the new session nothing may be dispatched (the second ticket is of the earlier life) and nothing may be
    judged (that the lease is absent now says nothing) until the admission log has shown the reboot.
    """
    with hive_on(ONE_WORKER_EACH) as (hive, server, clock):
        workers = [_admit(hive, ticket) for ticket in ("t1", "t2")]

        def reboot() -> None:
            hive.reboot()
            for worker in workers:
                hive.spawn_worker("worker-gpu", worker)

        when_applied(server, LEASE_CTL, reboot)
        server.faults.add(Fault(kind=FaultKind.DROP_AFTER, verb="ECHO", prefix=LEASE_CTL, nth=1))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            first, second = _records(bench, "t1")[0], _records(bench, "t2")[0]
        assert (first.epoch, second.epoch) == (1, 1)
        assert (_outcome(first), _outcome(second)) == ("stale", "stale")
        assert first.plan is not None
        assert second.plan is None
        assert first.withdrawn
        assert second.withdrawn
        assert {effect.subject: count for effect, count in hive.effects.items()} == {"lease-t1": 1}
        assert hive.cat(STATUS) == hive.cat(DEADLETTER) == []


@pytest.mark.parametrize("up", [True, False], ids=["agent-up", "agent-down"])
@pytest.mark.parametrize(
    "profile",
    [pytest.param(DEFAULT, id="default"), pytest.param(STRICT_A, id="strict-a")],
)
def test_a_finished_ticket_that_comes_again_first_thing_after_a_reboot_is_answered(
    tmp_path: Path, profile: HiveProfile, up: bool
) -> None:
    """Its line is the last one consumed, byte for byte and at the same place; our own results are gone."""
    with hive_on(profile) as (hive, server, clock):
        worker = _admit(hive, "t1")
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            _passes(bench, 3)
            if up:
                _reboot(hive, server)
                _admit(hive, "t1", worker=hive.spawn_worker("worker-gpu", worker).worker_id)
                _passes(bench, 6)
        if not up:
            _reboot(hive, server)
            _admit(hive, "t1", worker=hive.spawn_worker("worker-gpu", worker).worker_id)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            _passes(bench, 6)
        if hive.effect_count("grant", "lease-t1") != 1:
            pytest.fail("performed again")
        assert hive.admission_of("t1").outcome == "rejected"


@pytest.mark.parametrize("profile", [DEFAULT, ONE_WORKER_EACH], ids=lambda profile: profile.name)
def test_a_reboot_that_leaves_the_same_bytes_behind(tmp_path: Path, profile: HiveProfile) -> None:
    """The answer to the effect is lost with the hive, and the same ticket is admitted with the same numbers.

    Nothing is performed twice, and the lease's absence in the new life is not taken for proof that the write
    was never applied: our own results are gone from a log that dropped nothing.
    """
    with hive_on(profile) as (hive, server, clock):
        worker = _admit(hive, "t1")

        def reboot() -> None:
            hive.reboot()
            _admit(hive, "t1", worker=hive.spawn_worker("worker-gpu", worker).worker_id)

        when_applied(server, LEASE_CTL, reboot)
        server.faults.add(Fault(kind=FaultKind.DROP_AFTER, verb="ECHO", prefix=LEASE_CTL, nth=1))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            _passes(bench)
            record = _records(bench, "t1")[0]
        if hive.effect_count("grant", "lease-t1") != 1:
            pytest.fail("performed again")
        assert record.result is None or record.result.outcome != "rejected"


@pytest.mark.parametrize("profile", [DEFAULT, ONE_WORKER_EACH], ids=lambda profile: profile.name)
def test_a_waiting_ticket_behind_an_uncertain_one_does_not_hide_the_reboot(
    tmp_path: Path, profile: HiveProfile
) -> None:
    """Both come again with the same numbers; the newest admission was never dispatched and proves nothing."""
    with hive_on(profile) as (hive, server, clock):
        workers = [_admit(hive, ticket) for ticket in ("t1", "t2")]

        def reboot() -> None:
            hive.reboot()
            for number, worker in enumerate(workers, start=1):
                hive.spawn_worker("worker-gpu", worker)
                _admit(hive, f"t{number}", worker=worker)

        when_applied(server, LEASE_CTL, reboot)
        server.faults.add(Fault(kind=FaultKind.DROP_AFTER, verb="ECHO", prefix=LEASE_CTL, nth=1))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.until(lambda: len(bench.store.records) == 4 and not bench.store.open_records())
            old, new = _records(bench, "t1")
            assert _outcome(old) == "stale"
            assert _outcome(new) == "rejected"
            assert "already used" in json.loads(_last(hive, DEADLETTER))["message"]
            assert _outcome(_records(bench, "t2")[1]) == "confirmed"
        assert hive.effect_count("grant", "lease-t1") == 1
        assert hive.effect_count("grant", "lease-t2") == 1


@pytest.mark.parametrize("leaf", ["status", "deadletter"])
@pytest.mark.parametrize("profile", [DEFAULT, ONE_WORKER_EACH], ids=lambda profile: profile.name)
def test_results_that_cannot_be_read_at_first_cost_no_admission(
    tmp_path: Path, profile: HiveProfile, leaf: str
) -> None:
    """Nothing in the request logs moves afterwards; what was looked at has to be looked at again."""
    with hive_on(profile) as (hive, server, clock):
        _admit(hive, "t1")
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            bench.passes(2)
        _admit(hive, "t2")
        server.faults.add(Fault(kind=FaultKind.ERR, verb="CAT", prefix=f"/host/tickets/{leaf}", nth=1))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.until(lambda: bench.agent.totals.ended == 1)
            assert bench.agent.intake.epoch == 1
        assert server.faults.struck(FaultKind.ERR) == 1
        assert hive.admission_of("t2").outcome == "confirmed"


def test_a_result_never_crosses_into_the_next_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hive reboots between our last reading and the result, and admits the same ticket again, with the
    same numbers: the old result would be a perfect answer to the new admission."""
    with hive_on() as (hive, server, clock):
        _admit(hive, "t0")
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            bench.passes(1)
            _admit(hive, "t1")
            append = bench.namespace.append
            lives = [hive.admission_of("t1").line]

            def reboot_before_the_result(path: str, line: str, *, session: int | None = None) -> AppendAnswer:
                if '"state":"succeeded"' in line and len(lives) == 1:
                    hive.reboot()
                    _admit(hive, "tx")
                    _admit(hive, "t1")
                    lives.append(hive.admission_of("t1").line)
                    drop(bench)
                return append(path, line, session=session)

            monkeypatch.setattr(bench.namespace, "append", reboot_before_the_result)
            bench.until(lambda: len(_records(bench, "t1")) == 2 and not bench.store.open_records())
            assert lives[0] == lives[1]
            first, second = _records(bench, "t1")
        assert first.withdrawn is not None
        assert _outcome(second) == "rejected"
        assert hive.effect_count("grant", "lease-t1") == 1
        assert [json.loads(line)["state"] for line in hive.terminal_lines(("t1", "key-t1"))] == ["failed"]


def _last(hive: ReferenceHive, path: str) -> str:
    return hive.cat(path)[-1]
