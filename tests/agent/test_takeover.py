"""After a takeover: what the former agent had done is never done again, and no life is taken for another."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from agent_faults import root_writes
from agent_support import agent_on, crash
from foreign_state import STATES, FormerLife, admitted_spec, entry, take_in, write_files, write_state
from foreign_state import journal as journal_of
from hive_support import DEADLETTER, STATUS, ManualClock, running_hive

from ticket_agent.agent.predecessor import lane_of
from ticket_agent.agent.takeover import FORMER
from ticket_agent.hive.reference import DEFAULT, STRICT_A, Effect, HiveProfile, ReferenceHive
from ticket_agent.journal.gaps import acknowledge_gap
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable
    from pathlib import Path

    from agent_support import Bench

PROFILES = pytest.mark.parametrize("profile", [DEFAULT, STRICT_A], ids=lambda profile: profile.name)


def started(hive: ReferenceHive, before: Counter[Effect]) -> set[str]:
    """Leases that were written since."""
    return {effect.subject for effect in hive.effects - before}


def results(hive: ReferenceHive, tickets: Iterable[str]) -> dict[str, int]:
    return {ticket: len(hive.terminal_lines((ticket, f"key-{ticket}"))) for ticket in tickets}


def calm(bench: Bench) -> None:
    """Nothing is held, and the hive's life is the one that was taken over."""
    assert bench.agent.intake.held is None
    assert bench.agent.intake.epoch == 2
    assert bench.store.takeover is not None
    assert bench.store.takeover.met


@PROFILES
@pytest.mark.parametrize("through", [None, 0], ids=["v2", "v3"])
def test_every_state_on_every_root(tmp_path: Path, profile: HiveProfile, through: int | None) -> None:
    clock = ManualClock()
    with running_hive(profile, clock=clock) as (hive, server):
        former = FormerLife(hive)
        # In this order, because the first root has one Worker and takes its results in order of admission.
        for state in reversed(STATES):
            former.reach(state, state)
        take_in(write_state(tmp_path / "former", former.entries, through=through), tmp_path / "state")
        before = hive.effects.copy()
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            calm(bench)
        assert started(hive, before) == {"lease-prepared"}
        assert results(hive, STATES) == dict.fromkeys(STATES, 1)
        for ticket, (_, line) in former.lines.items():
            assert hive.terminal_lines((ticket, f"key-{ticket}")) == [line]


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
def test_what_was_executing_is_observed_until_it_expires(tmp_path: Path, *, applied: bool) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        former = FormerLife(hive)
        former.reach("t", "executing", applied=applied, expires=clock() + 60_000)
        take_in(write_state(tmp_path / "former", former.entries), tmp_path / "state")
        before = hive.effects.copy()
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.passes(5)
            if not applied:
                waiting = bench.record("t")
                assert waiting.state is State.EXECUTING
                assert waiting.uncertain is not None
                assert "without a before-image" in waiting.uncertain.detail
                clock.advance(60_000)
            bench.settle()
            record = bench.record("t")
        assert record.result is not None
        assert (record.result.outcome, record.result.reconciled) == (
            "confirmed" if applied else "stale",
            True,
        )
        assert not started(hive, before)
        assert results(hive, ["t"]) == {"t": 1}


def test_an_action_without_a_provider_stays_unknown_until_it_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        former = FormerLife(hive)
        former.reach("t", "executing", expires=clock() + 60_000)
        take_in(write_state(tmp_path / "former", former.entries), tmp_path / "state")
        before = hive.effects.copy()
        allowed = frozenset({"gpu.lease.release"})
        with agent_on(server, tmp_path / "state", clock=clock, allowlist=allowed) as bench:
            bench.passes(3)
            assert bench.record("t").state is State.EXECUTING
            clock.advance(60_000)
            bench.settle()
        assert not started(hive, before)


def test_an_outcome_without_a_staged_line_gets_the_line_that_would_have_been_staged(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        former = FormerLife(hive)
        spec = former.reach("t", "provider-result-persisted", keep=False)
        bare = entry(spec, "provider-result-persisted", staged=False)
        take_in(write_state(tmp_path / "former", [bare]), tmp_path / "state")
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
        assert hive.terminal_lines(("t", "key-t")) == [former.lines["t"][1]]
        assert hive.effect_count("grant", "lease-t") == 1


# -- the fence


@pytest.mark.parametrize("source", ["fence", "cursor"])
def test_what_was_forgotten_is_covered_by_the_fence(tmp_path: Path, source: str) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        former = FormerLife(hive)
        ended = [f"t{number}" for number in range(4)]
        for ticket in ended:
            former.reach(ticket, "terminal", keep=False)
        # The oldest result is dropped; the newest still proves that the hive did not reboot.
        hive.slide(STATUS, 3)
        former.admit("new")
        cursor = {"raw_next_spec_index": 0, "snapshot_last_admission_sequence": 4 * (source == "cursor")}
        directory = write_state(tmp_path / "former", [], through=4 * (source == "fence"), cursor=cursor)
        take_in(directory, tmp_path / "state")
        before, status = hive.effects.copy(), hive.appended(STATUS)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            calm(bench)
            first, second = bench.record("t0"), bench.record("t1")
        assert first.result is not None
        assert first.withdrawn == f"{FORMER} had ended it before the takeover; nothing was done or published"
        assert second.result is not None
        assert (second.result.outcome, second.withdrawn) == ("confirmed", None)
        assert started(hive, before) == {"lease-new"}
        assert hive.appended(STATUS) == status + 3
        assert hive.appended(DEADLETTER) == 0


def test_a_second_start_finds_its_place(tmp_path: Path) -> None:
    """Also when the first one died between the look and noting that it was the first."""
    clock, state_dir = ManualClock(), tmp_path / "state"
    with running_hive(clock=clock) as (hive, server):
        former = FormerLife(hive)
        for ticket in ("t1", "t2"):
            former.reach(ticket, "terminal", keep=False)
        former.reach("t3", "terminal")
        take_in(write_state(tmp_path / "former", former.entries, through=2), state_dir)
        before = hive.effects.copy()
        with agent_on(server, state_dir, clock=clock) as bench:
            bench.agent.intake._former.met = _die  # type: ignore[method-assign]
            with pytest.raises(KeyboardInterrupt):
                bench.passes(1)
            crash(bench)
        for number in range(2):
            former.admit(f"new{number}")
            with agent_on(server, state_dir, clock=clock) as bench:
                bench.settle()
                calm(bench)
                crash(bench)
        assert started(hive, before) == {"lease-new0", "lease-new1"}
        assert results(hive, ["t1", "t2", "t3", "new0", "new1"]) == dict.fromkeys(
            ("t1", "t2", "t3", "new0", "new1"), 1
        )


def _die() -> None:
    raise KeyboardInterrupt


def test_a_journal_that_was_emptied_leaves_the_count_of_lines(tmp_path: Path) -> None:
    """Format 2 is full at 256 entries; whoever moved it away had only the cursor left as a fence."""
    clock = ManualClock()
    with running_hive(STRICT_A, clock=clock) as (hive, server):
        former = FormerLife(hive)
        for ticket in ("t1", "t2"):
            former.reach(ticket, "terminal", keep=False)
        former.admit("new")
        cursor = {"raw_next_spec_index": 2, "snapshot_next_spec_index": 2}
        take_in(write_state(tmp_path / "former", [], cursor=cursor), tmp_path / "state")
        before = hive.effects.copy()
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            calm(bench)
        assert started(hive, before) == {"lease-new"}


def test_lines_before_an_entry_of_the_only_lane_were_passed(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        former = FormerLife(hive)
        former.reach("lost", "terminal", keep=False)
        former.reach("t", "executing")
        take_in(write_state(tmp_path / "former", former.entries), tmp_path / "state")
        before = hive.effects.copy()
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            calm(bench)
        assert not started(hive, before)


def test_each_lane_has_a_fence_of_its_own(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        former = FormerLife(hive)
        specs = {ticket: former.admit(ticket) for ticket in (f"t{number}" for number in range(8))}
        lanes = {ticket: lane_of(spec, 2) for ticket, spec in specs.items()}
        assert set(lanes.values()) == {0, 1}
        # Lane 0 has ended everything; lane 1 has not begun.
        for ticket, spec in specs.items():
            if lanes[ticket] == 0:
                former.effect(spec)
                former.publish(spec)
        files = {
            "execution-journal.lane-00-of-02.json": journal_of([], through=8),
            "cursor.lane-00-of-02.json": {},
            "execution-journal.topology.json": {"schema": "host-ticket-execution-lanes/v1", "lanes": 2},
        }
        take_in(write_files(tmp_path / "former", files), tmp_path / "state")
        before = hive.effects.copy()
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            calm(bench)
        assert started(hive, before) == {f"lease-{ticket}" for ticket, lane in lanes.items() if lane == 1}
        assert results(hive, specs) == dict.fromkeys(specs, 1)


# -- the life of the hive


@PROFILES
@pytest.mark.parametrize("through", [None, 1], ids=["v2", "v3"])
def test_a_reboot_in_between_is_a_new_epoch(
    tmp_path: Path, profile: HiveProfile, through: int | None
) -> None:
    """What was open is not performed for the new life; the new life's tickets are not taken for old ones."""
    clock = ManualClock()
    with running_hive(profile, clock=clock) as (hive, server):
        former = FormerLife(hive)
        former.reach("ended", "terminal", keep=through is None)
        former.reach("t1", "prepared")
        former.reach("t2", "executing", applied=False)
        take_in(write_state(tmp_path / "former", former.entries, through=through), tmp_path / "state")
        hive.reboot()
        life = FormerLife(hive)
        life.admit("n1")
        before = hive.effects.copy()
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            assert bench.agent.intake.held is None
            assert bench.agent.intake.epoch == 3
            outcomes = {bench.record(ticket).result.outcome for ticket in ("t1", "t2")}  # type: ignore[union-attr]
        assert outcomes == {"stale"}
        assert started(hive, before) == {"lease-n1"}
        assert results(hive, ["n1", "t1", "t2"]) == {"n1": 1, "t1": 0, "t2": 0}


@pytest.mark.parametrize("profile", [STRICT_A], ids=lambda profile: profile.name)
def test_ended_entries_of_earlier_lives_are_no_evidence(tmp_path: Path, profile: HiveProfile) -> None:
    """Format 2 keeps everything, across reboots too: higher and equal numbers of other lives are in it."""
    clock = ManualClock()
    with running_hive(profile, clock=clock) as (hive, server):
        former = FormerLife(hive)
        for number in range(6):
            former.reach(f"old{number}", "terminal")
        hive.reboot()
        former.worker = None
        former.reach("t1", "terminal")
        former.reach("t2", "executing")
        former.admit("new")
        take_in(write_state(tmp_path / "former", former.entries), tmp_path / "state")
        before = hive.effects.copy()
        for _ in range(3):
            with agent_on(server, tmp_path / "state", clock=clock) as bench:
                bench.settle()
                calm(bench)
                crash(bench)
        assert started(hive, before) == {"lease-new"}
        assert results(hive, ["t1", "t2", "new"]) == {"t1": 1, "t2": 1, "new": 1}


def test_without_evidence_the_range_is_held_until_somebody_answers(tmp_path: Path) -> None:
    clock, state_dir = ManualClock(), tmp_path / "state"
    with running_hive(clock=clock) as (hive, server):
        former = FormerLife(hive)
        for ticket in ("t1", "t2"):
            former.reach(ticket, "terminal", keep=False)
        hive.slide(STATUS, 6)
        take_in(write_state(tmp_path / "former", [], through=2), state_dir)
        former.admit("new")
        before = hive.effects.copy()
        with agent_on(server, state_dir, clock=clock) as bench:
            bench.passes(3)
            held = bench.agent.intake.held
            assert held is not None
            assert (held.epoch, held.first, held.through) == (2, 1, 2)
            assert "rebooted" in held.reason
            assert not started(hive, before)
            acknowledge_gap(
                state_dir, epoch=2, first=1, through=2, reason="it did not", by="test", clock=clock
            )
            bench.settle()
            calm(bench)
        assert started(hive, before) == {"lease-new"}


def test_admissions_that_were_dropped_unseen_are_held(tmp_path: Path) -> None:
    clock, state_dir = ManualClock(), tmp_path / "state"
    with running_hive(clock=clock) as (hive, server):
        former = FormerLife(hive)
        former.reach("t1", "terminal")
        take_in(write_state(tmp_path / "former", former.entries, through=1), state_dir)
        for ticket in ("lost", "kept"):
            former.admit(ticket)
        hive.slide("spec.snapshot", 2)
        with agent_on(server, state_dir, clock=clock) as bench:
            bench.passes(3)
            held = bench.agent.intake.held
            assert held is not None
            assert (held.first, held.through) == (2, 2)
            acknowledge_gap(state_dir, epoch=2, first=2, through=2, reason="gone", by="test", clock=clock)
            bench.settle()
            calm(bench)
        assert hive.effect_count("grant", "lease-kept") == 1


# -- version 1


def v1_line(ticket: str, **more: object) -> str:
    made: dict[str, object] = {"schema": "host-ticket/v1", "id": ticket, "idempotency_key": f"key-{ticket}"}
    made |= {"action": "systemd.start", "args": {"unit": "x.service"}}
    return json.dumps(made | more, separators=(",", ":"))


def v1_result(ticket: str, state: str) -> str:
    made = {"schema": "host-ticket-result/v1", "id": ticket, "idempotency_key": f"key-{ticket}"}
    return json.dumps(made | {"action": "systemd.start", "state": state}, separators=(",", ":"))


def test_version_1_tickets_that_were_passed_or_begun_are_not_performed(tmp_path: Path) -> None:
    clock, state_dir = ManualClock(), tmp_path / "state"
    with running_hive(clock=clock) as (hive, server):
        for ticket in ("shown", "dropped", "begun", "new"):
            root_writes(hive, "spec", v1_line(ticket))
        root_writes(hive, "status", v1_result("shown", "succeeded"))
        for state in ("claimed", "running"):
            root_writes(hive, "status", v1_result("begun", state))
        cursor = {"next_spec_index": 2}
        take_in(write_state(tmp_path / "former", [], through=0, cursor=cursor), state_dir)
        with agent_on(server, state_dir, clock=clock) as bench:
            bench.settle()
            told = {ticket: bench.record(ticket) for ticket in ("shown", "dropped", "begun", "new")}
        # Only the first look goes by the count of lines: what has moved into those places since is new.
        hive.slide("spec", 4)
        root_writes(hive, "spec", v1_line("later"))
        with agent_on(server, state_dir, clock=clock) as bench:
            bench.settle()
            assert bench.record("later").plan is None
        outcomes = {ticket: record.result.outcome for ticket, record in told.items() if record.result}
        # No provider takes this action here, so "rejected" shows which tickets reached one.
        assert outcomes == {"shown": "confirmed", "dropped": "stale", "begun": "stale", "new": "rejected"}
        assert told["dropped"].withdrawn is not None
        (line,) = hive.terminal_lines(("begun", "key-begun"))
        assert json.loads(line)["state"] == "expired"
        assert not hive.terminal_lines(("dropped", "key-dropped"))


def test_root_may_write_the_members_of_a_ticket_in_another_order(tmp_path: Path) -> None:
    """The former journal kept requests parsed; what equals an entry is that entry, however it is written."""
    clock, state_dir = ManualClock(), tmp_path / "state"
    with running_hive(clock=clock) as (hive, server):
        specs = {state: admitted_spec(number) for number, state in enumerate(("terminal", "executing"), 1)}
        for spec in specs.values():
            members = json.loads(spec.encode())
            root_writes(hive, "spec.snapshot", json.dumps(dict(reversed(members.items()))))
        entries = [entry(spec, state) for state, spec in specs.items()]
        take_in(write_state(tmp_path / "former", entries), state_dir)
        for _ in range(2):
            with agent_on(server, state_dir, clock=clock) as bench:
                bench.passes(3)
                calm(bench)
                assert len(bench.store.records) == 2
                assert bench.record("t-2").state is State.EXECUTING
                crash(bench)
        assert not hive.effects
