"""A replay brings what is journaled as far as it goes: it observes and publishes, and begins nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from agent_faults import effects_since, root_of, root_writes
from agent_support import NEVER, agent_on
from hive_support import (
    DEADLETTER,
    SNAPSHOT,
    STATUS,
    ManualClock,
    finish,
    raw_grant,
    running_hive,
)
from left_behind import LEFT, leave, leave_undecidable, submit

from ticket_agent.agent.operation import in_order
from ticket_agent.agent.replay import MAX_OUTAGES, behind, replay
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
from ticket_agent.journal.view import read_journal
from ticket_agent.protocol.namespace import HiveAuthError, HiveBusyError, HiveUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ticket_agent.journal.record import Record

KEY = ("t1", "key-t1")
PROFILES = [pytest.param(DEFAULT, id="default"), pytest.param(STRICT_A, id="strict-a")]


def _replayed(server: ConsoleServer, state_dir: Path, clock: ManualClock) -> dict[str, Record]:
    with agent_on(server, state_dir, clock=clock, serves=False) as bench:
        replay(bench.agent, NEVER, pause_s=0)
    return {json.loads(r.request)["id"]: r for r in read_journal(state_dir).records.values()}


def _claims(hive: ReferenceHive) -> int:
    return sum('"state":"claimed"' in line or '"state":"running"' in line for line in hive.cat(STATUS))


@pytest.mark.parametrize("verb", ["grant", "renew", "release"])
@pytest.mark.parametrize(
    ("left", "after", "outcome"),
    [
        ("prepared", State.PREPARED, None),
        ("executing", State.TERMINAL, "rejected"),
        ("effected", State.TERMINAL, "confirmed"),
        ("persisted", State.TERMINAL, "confirmed"),
        ("published", State.TERMINAL, "confirmed"),
    ],
)
def test_what_each_state_comes_to(
    tmp_path: Path, left: str, after: State, outcome: str | None, verb: str
) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        submit(hive, verb)
        leave(server, tmp_path, left, clock=clock)
        effects, claims = sum(hive.effects.values()), _claims(hive)
        record = _replayed(server, tmp_path, clock)["t1"]
        assert record.state is after
        assert (record.result.outcome if record.result is not None else None) == outcome
        assert effects_since(hive, effects) == 0
        assert _claims(hive) == claims
        assert len(hive.terminal_lines(KEY)) == (outcome is not None)
        assert hive.admission_of("t1").outcome == outcome
        with agent_on(server, tmp_path, clock=clock) as bench:
            bench.settle()
        assert effects_since(hive, effects) == (left == "prepared")
        assert len(hive.terminal_lines(KEY)) == 1


Befall = dict[str, "Callable[[ReferenceHive, ConsoleServer, ManualClock], object]"]


def _tear_down(hive: ReferenceHive, server: ConsoleServer, clock: ManualClock) -> None:
    hive.tear_down("worker-1")


def _reboot(hive: ReferenceHive, server: ConsoleServer, clock: ManualClock) -> None:
    hive.reboot()
    root_of(hive).workers._generation += 1000
    hive.spawn_worker("worker-gpu", "worker-1")


def _finish(hive: ReferenceHive, server: ConsoleServer, clock: ManualClock) -> None:
    if not hive.terminal_lines(KEY):
        finish(hive, "t1", "failed", "ended by another")


def _fault(**members: object) -> Callable[[ReferenceHive, ConsoleServer, ManualClock], object]:
    return lambda hive, server, clock: server.faults.add(Fault(**members))  # type: ignore[arg-type]


BEFALLS: Befall = {
    "nothing": lambda hive, server, clock: None,
    "every answer to an append lost": _fault(kind=FaultKind.DROP_AFTER, verb="ECHO"),
    "every second append cut": _fault(kind=FaultKind.DROP_BEFORE, verb="ECHO", every=2),
    "a read cut": _fault(kind=FaultKind.DROP_AFTER, verb="CAT", nth=4),
    "garbage": _fault(kind=FaultKind.GARBAGE, verb="CAT", nth=3),
    "leases hidden": _fault(kind=FaultKind.ERR, verb="CAT", prefix="/proc/lease"),
    "results hidden": _fault(kind=FaultKind.ERR, verb="CAT", prefix=STATUS, nth=1),
    "results refused": _fault(kind=FaultKind.ERR, verb="ECHO", prefix="/host/tickets"),
    "gate closed": lambda hive, server, clock: hive.set_lifecycle("DRAINING"),
    "worker gone": _tear_down,
    "worker replaced": lambda hive, server, clock: hive.replace_worker("worker-1"),
    "rebooted": _reboot,
    "expired": lambda hive, server, clock: clock.advance(10_000_000),
    "clock set back": lambda hive, server, clock: clock.advance(-10_000_000),
    "result visible": _finish,
    "admission evicted": lambda hive, server, clock: hive.slide(SNAPSHOT, 2),
    "results evicted": lambda hive, server, clock: hive.slide(STATUS, 2),
}
EVICTS = {"admission evicted", "results evicted"}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("befall", BEFALLS)
@pytest.mark.parametrize("left", LEFT)
def test_nothing_is_ever_begun_whatever_the_hive_does(
    tmp_path: Path, left: str, befall: str, profile: HiveProfile
) -> None:
    """In every state and on every hive: no effect, no claim, no new record; and every promise afterwards."""
    if befall in EVICTS and not profile.evicting_logs:
        return
    clock = ManualClock()
    with running_hive(profile, clock=clock) as (hive, server):
        submit(hive, expires=clock() + 1_000_000)
        leave(server, tmp_path, left, clock=clock)
        BEFALLS[befall](hive, server, clock)
        before = read_journal(tmp_path)
        effects, claims = sum(hive.effects.values()), _claims(hive)
        with agent_on(server, tmp_path, clock=clock, serves=False) as bench:
            replay(bench.agent, NEVER, pause_s=0)
        after = read_journal(tmp_path)
        assert effects_since(hive, effects) == 0
        assert _claims(hive) == claims
        assert set(after.records) == set(before.records)
        for key, record in after.records.items():
            was = before.records[key]
            assert record.history[: len(was.history)] == was.history
            assert record.plan == was.plan
            assert was.staged in (None, record.staged)
        server.faults.clear()
        hive.set_lifecycle("ONLINE")
        with agent_on(server, tmp_path, clock=clock) as bench:
            bench.passes(3)
            # Where telemetry alone tells of a Worker, its end lets a ticket wait until it expires.
            clock.advance(20_000_000)
            bench.settle()
        assert sum(hive.effects.values()) <= 1
        assert len(hive.terminal_lines(KEY)) <= 1


@pytest.mark.parametrize("profile", PROFILES)
def test_admissions_wait_for_the_agent(tmp_path: Path, profile: HiveProfile) -> None:
    clock = ManualClock()
    with running_hive(profile, clock=clock) as (hive, server):
        submit(hive)
        leave(server, tmp_path, "persisted", clock=clock)
        finish(hive, "t1", message="gpu.lease.grant operation_id=lease-1 observed=active")
        if not profile.exclusive_workers:
            hive.tear_down("worker-1")
        submit(hive, ticket="t2")
        assert set(_replayed(server, tmp_path, clock)) == {"t1"}
        with agent_on(server, tmp_path, clock=clock) as bench:
            bench.passes(1)
            bench.settle()
            assert bench.record("t2").state is State.TERMINAL
        assert hive.effect_count("grant", "lease-2") == 1


def test_a_gap_is_neither_held_nor_passed(tmp_path: Path) -> None:
    """Whether something was lost is for the agent to find out, which can ask root again."""
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        submit(hive)
        leave(server, tmp_path, "effected", clock=clock)
        for ticket in ("t2", "t3"):
            submit(hive, ticket=ticket)
        hive.slide(SNAPSHOT, 2)
        assert _replayed(server, tmp_path, clock)["t1"].terminal
        view = read_journal(tmp_path)
        assert (view.cursor.held, view.cursor.consumed_sequence, len(view.records)) == (None, 1, 1)
        with agent_on(server, tmp_path, clock=clock) as bench:
            bench.passes(2)
            held = bench.agent.intake.held
            assert held is not None
            assert (held.first, held.through) == (2, 2)


def test_a_reboot_is_recognised_and_ends_what_it_forgot(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        submit(hive)
        leave(server, tmp_path, "effected", clock=clock)
        hive.reboot()
        effects = sum(hive.effects.values())
        record = _replayed(server, tmp_path, clock)["t1"]
        assert record.terminal
        assert record.result is not None
        assert record.result.outcome == "stale"
        assert record.withdrawn is not None
        assert "rebooted" in record.withdrawn
        assert read_journal(tmp_path).cursor.epoch == 2
        assert effects_since(hive, effects) == 0
        assert hive.cat(DEADLETTER) == []


def test_a_ticket_that_is_over_ends_without_dispatch(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        submit(hive, expires=clock() + 1000)
        leave(server, tmp_path, "prepared", clock=clock)
        clock.advance(1000)
        record = _replayed(server, tmp_path, clock)["t1"]
        assert record.terminal
        assert record.plan is None
        assert '"state":"expired"' in hive.terminal_lines(KEY)[0]


def test_what_nobody_can_tell_stays_uncertain(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        leave_undecidable(hive, server, tmp_path, clock=clock)
        record = _replayed(server, tmp_path, clock)["t1"]
        assert record.state is State.EXECUTING
        assert record.uncertain is not None
        assert "renewed or not" in record.uncertain.detail


def test_old_records_are_not_moved_to_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of what the hive still shows are known to a serving agent only."""
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        submit(hive)
        leave(server, tmp_path, "prepared", clock=clock)
        with agent_on(server, tmp_path, clock=clock, serves=False) as bench:
            bench.agent._retire_due = 0.0
            monkeypatch.setattr(bench.store, "retire", lambda keep: pytest.fail("records were moved"))
            replay(bench.agent, NEVER, pause_s=0)


@pytest.mark.parametrize("drops", [1, MAX_OUTAGES])
def test_a_connection_that_breaks_is_opened_again(tmp_path: Path, drops: int) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        submit(hive)
        leave(server, tmp_path, "effected", clock=clock)
        for nth in range(1, drops + 1):
            server.faults.add(Fault(kind=FaultKind.DROP_AFTER, verb="CAT", prefix="/proc/lease", nth=nth))
        assert _replayed(server, tmp_path, clock)["t1"].terminal


@pytest.mark.parametrize(
    ("error", "tries"),
    [(HiveUnreachableError("gone"), 1), (HiveAuthError("no"), 1), (HiveBusyError("taken"), 1)],
    ids=["unreachable", "refused", "busy"],
)
def test_a_hive_that_never_answers_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, tries: int
) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        submit(hive)
        leave(server, tmp_path, "effected", clock=clock)
        with agent_on(server, tmp_path, clock=clock, serves=False) as bench:
            calls: list[object] = []

            def fails(stop: object) -> object:
                calls.append(stop)
                raise error

            monkeypatch.setattr(bench.agent, "pass_once", fails)
            with pytest.raises(type(error)):
                replay(bench.agent, NEVER, pause_s=0)
            assert len(calls) == tries


def test_an_outage_that_lasts_ends_the_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        submit(hive)
        leave(server, tmp_path, "prepared", clock=clock)
        with agent_on(server, tmp_path, clock=clock, serves=False) as bench:
            once = bench.agent.pass_once
            calls: list[object] = []

            def fails(stop: object) -> object:
                calls.append(stop)
                if len(calls) == 1:
                    return once(NEVER)
                raise HiveUnreachableError("gone")

            monkeypatch.setattr(bench.agent, "pass_once", fails)
            with pytest.raises(HiveUnreachableError):
                replay(bench.agent, NEVER, pause_s=0)
            assert len(calls) == 1 + MAX_OUTAGES + 1


def test_a_lost_answer_to_a_publication_is_not_the_last_try(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        submit(hive)
        leave(server, tmp_path, "persisted", clock=clock)
        server.faults.add(Fault(kind=FaultKind.DROP_BEFORE, verb="ECHO", nth=1))
        assert _replayed(server, tmp_path, clock)["t1"].terminal
        assert len(hive.terminal_lines(KEY)) == 1


def test_nothing_open_needs_no_hive(tmp_path: Path) -> None:
    clock = ManualClock()
    with (
        running_hive(clock=clock) as (_, server),
        agent_on(server, tmp_path, clock=clock, serves=False) as bench,
    ):
        replay(bench.agent, NEVER, pause_s=0)
        assert bench.namespace.session == 0


def test_who_stands_behind_whom(tmp_path: Path) -> None:
    """Undecided operations of one lane, and results of one Worker; nobody else."""
    clock = ManualClock()
    with running_hive(STRICT_A, clock=clock) as (hive, server):
        worker = hive.spawn_worker("worker-gpu").worker_id
        for ticket, lease in (("t1", "lease-1"), ("t2", "lease-1"), ("t3", "lease-1"), ("t4", "lease-4")):
            hive.submit(raw_grant(hive, worker, ticket, lease))
        hive.set_lifecycle("DRAINING")
        with agent_on(server, tmp_path, clock=clock) as bench:
            bench.passes(1)
            operations = in_order(bench.agent.operations.values())
            found = {key: first.record.key for key, first in behind(reversed(operations)).items()}
            keys = [op.record.key for op in operations]
            assert found == {keys[1]: keys[0], keys[2]: keys[0]}


def test_a_line_of_root_that_cannot_be_trusted_is_not_held_by_a_replay(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        submit(hive)
        leave(server, tmp_path, "effected", clock=clock)
        root_writes(hive, "spec.snapshot", "{nonsense")
        assert _replayed(server, tmp_path, clock)["t1"].terminal
        assert read_journal(tmp_path).cursor.held is None
