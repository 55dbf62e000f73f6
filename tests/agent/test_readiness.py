"""READY, expiry and the lifecycle gate: what an operation waits for, and what ends the waiting."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from agent_faults import blind, root_of, telemetry, when_applied
from agent_support import PATIENCE_S, Bench, agent_on
from hive_support import DEADLETTER, LEASE_CTL, STATUS, ManualClock, raw_grant, running_hive

from ticket_agent.hive.reference import DEFAULT, STRICT_A, Fault, FaultKind, HiveProfile, Phase, ReferenceHive
from ticket_agent.journal.transitions import State
from ticket_agent.protocol.lifecycle import LifecycleState
from ticket_agent.protocol.worker_state import encode_worker_state

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEY = ("t1", "key-t1")
PROFILES = [pytest.param(DEFAULT, id="default"), pytest.param(STRICT_A, id="strict-a")]
CLOSED = [state for state in LifecycleState if state not in (LifecycleState.ONLINE, LifecycleState.DEGRADED)]


def _admit(hive: ReferenceHive, clock: ManualClock, *, ttl_ms: int | None = None) -> str:
    worker = hive.spawn_worker("worker-gpu")
    expires = None if ttl_ms is None else clock() + ttl_ms
    hive.submit(raw_grant(hive, worker, "t1", "lease-1", expires=expires))
    return worker.worker_id


def _state_of_result(hive: ReferenceHive) -> str:
    (line,) = hive.terminal_lines(KEY)
    return str(json.loads(line)["state"])


def _still_prepared(bench: Bench, passes: int = 5) -> str:
    for _ in range(passes):
        bench.hurry()
        bench.passes(1)
    record = bench.record("t1")
    assert record.state is State.PREPARED
    return bench.waiting(record.key)


def _unready(hive: ReferenceHive, worker_id: str) -> None:
    """As if root had shown the Worker too early: it is starting again, with the same identity."""
    entry = root_of(hive).workers.get(worker_id)
    assert entry is not None
    entry.phase = Phase.STARTING
    entry.dirty = True


@pytest.mark.parametrize("profile", PROFILES)
def test_a_ticket_waits_until_its_worker_is_ready(tmp_path: Path, profile: HiveProfile) -> None:
    clock = ManualClock()
    with running_hive(profile, clock=clock) as (hive, server):
        worker = _admit(hive, clock)
        _unready(hive, worker)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            assert "not READY" in _still_prepared(bench)
            assert hive.appended(STATUS) == 0
            hive.move_worker(worker, Phase.READY)
            bench.settle()
        assert _state_of_result(hive) == "succeeded"
        assert hive.effect_count("grant", "lease-1") == 1


@pytest.mark.parametrize("profile", PROFILES)
def test_expiry_is_tested_before_ready(tmp_path: Path, profile: HiveProfile) -> None:
    clock = ManualClock()
    with running_hive(profile, clock=clock) as (hive, server):
        _unready(hive, _admit(hive, clock, ttl_ms=1000))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            clock.advance(999)
            _still_prepared(bench)
            clock.advance(1)
            bench.settle()
            record = bench.record("t1")
        assert record.result is not None
        assert (record.result.outcome, record.plan) == ("stale", None)
        assert _state_of_result(hive) == "expired"
        assert hive.appended(STATUS) == 0
        assert not hive.effects


@pytest.mark.parametrize("profile", PROFILES)
def test_expiry_between_claim_and_dispatch(tmp_path: Path, profile: HiveProfile) -> None:
    """The clock is asked once more at the last moment, after `claimed` and `running` took their time."""
    clock = ManualClock()
    with running_hive(profile, clock=clock) as (hive, server):
        _admit(hive, clock, ttl_ms=1000)
        when_applied(server, STATUS, lambda: clock.advance(1000))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
        assert _state_of_result(hive) == "expired"
        assert hive.appended(STATUS) == 2
        assert not hive.effects


@pytest.mark.parametrize("profile", PROFILES)
def test_expiry_ends_an_uncertainty_and_repeats_nothing(tmp_path: Path, profile: HiveProfile) -> None:
    clock = ManualClock()
    with running_hive(profile, clock=clock) as (hive, server):
        _admit(hive, clock, ttl_ms=5000)
        blind(server)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.passes(1)
            for _ in range(5):
                bench.hurry()
                bench.passes(1)
            record = bench.record("t1")
            assert record.state is State.EXECUTING
            assert record.uncertain is not None
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.passes(3)
            assert bench.record("t1").state is State.EXECUTING
            clock.advance(5000)
            bench.settle()
            record = bench.record("t1")
        assert record.result is not None
        assert record.result.outcome == "stale"
        assert "not repeated" in record.result.message
        assert _state_of_result(hive) == "expired"
        assert hive.effect_count("grant", "lease-1") == 1


def test_an_uncertainty_that_lifts_in_time_is_no_expiry(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        _admit(hive, clock, ttl_ms=5000)
        blind(server)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.passes(2)
            clock.advance(5000)
            server.faults.clear()
            bench.settle()
        assert _state_of_result(hive) == "succeeded"
        assert hive.effect_count("grant", "lease-1") == 1


@pytest.mark.parametrize("change", ["tear_down", "replace_worker"])
def test_a_worker_that_is_gone_before_dispatch_fails_the_ticket_by_roots_word(
    tmp_path: Path, change: str
) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        worker = _admit(hive, clock)
        before = hive.worker(worker)
        getattr(hive, change)(worker)
        # Root's word outweighs whatever somebody writes into the telemetry.
        telemetry(hive, worker, encode_worker_state(before, schema="v2"))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            record = bench.record("t1")
        assert record.plan is None
        assert _state_of_result(hive) == "failed"
        assert hive.admission_of("t1").outcome == "stale"
        assert not hive.effects


@pytest.mark.parametrize("change", ["tear_down", "replace_worker"])
def test_telemetry_alone_makes_a_ticket_wait_until_it_expires(tmp_path: Path, change: str) -> None:
    clock = ManualClock()
    with running_hive(STRICT_A, clock=clock) as (hive, server):
        worker = _admit(hive, clock, ttl_ms=1000)
        getattr(hive, change)(worker)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            assert worker in _still_prepared(bench)
            clock.advance(1000)
            bench.settle()
        assert _state_of_result(hive) == "expired"
        assert not hive.effects


@pytest.mark.parametrize("profile", PROFILES)
def test_a_worker_replaced_after_dispatch_does_not_hold_the_result_back(
    tmp_path: Path, profile: HiveProfile
) -> None:
    clock = ManualClock()
    with running_hive(profile, clock=clock) as (hive, server):
        worker = _admit(hive, clock)
        when_applied(server, LEASE_CTL, lambda: hive.replace_worker(worker))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
        assert _state_of_result(hive) == "succeeded"
        assert hive.admission_of("t1").outcome == "stale"
        assert hive.effect_count("grant", "lease-1") == 1


@pytest.mark.parametrize("state", CLOSED)
def test_nothing_is_claimed_while_results_cannot_be_written(tmp_path: Path, state: LifecycleState) -> None:
    """The lease control has no gate of its own, so the agent has to look."""
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        _admit(hive, clock)
        hive.set_lifecycle(state)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            assert state in _still_prepared(bench)
            assert not hive.effects
            assert hive.appended(STATUS) == 0
            hive.set_lifecycle("ONLINE")
            bench.settle()
        assert _state_of_result(hive) == "succeeded"
        assert hive.effect_count("grant", "lease-1") == 1


@pytest.mark.parametrize("profile", PROFILES)
def test_a_gate_that_closes_after_dispatch_only_delays_the_staged_bytes(
    tmp_path: Path, profile: HiveProfile
) -> None:
    clock = ManualClock()
    with running_hive(profile, clock=clock) as (hive, server):
        _admit(hive, clock, ttl_ms=1000)
        when_applied(server, LEASE_CTL, lambda: hive.set_lifecycle("DRAINING"))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.passes(1)
            for _ in range(4):
                bench.hurry()
                bench.passes(1)
            waiting = bench.record("t1")
            assert waiting.state is State.PERSISTED
            assert "not published yet" in bench.waiting(waiting.key)
        # Neither a restart nor the ticket's expiry changes what was decided.
        clock.advance(2000)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.passes(2)
            assert bench.record("t1").state is State.PERSISTED
            hive.set_lifecycle("ONLINE")
            bench.settle()
        assert waiting.staged is not None
        assert hive.terminal_lines(KEY) == [waiting.staged.line]
        assert hive.effect_count("grant", "lease-1") == 1


def test_a_gate_that_closes_between_look_and_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        _admit(hive, clock)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            provider = bench.agent._providers._by_version[2]["gpu.lease.grant"]
            plan = provider.plan

            def plan_and_drain(request: object) -> object:
                planned = plan(request)  # type: ignore[arg-type]
                hive.set_lifecycle("DRAINING")
                return planned

            monkeypatch.setattr(provider, "plan", plan_and_drain)
            _still_prepared(bench)
            monkeypatch.undo()
            assert not hive.effects
            hive.set_lifecycle("ONLINE")
            bench.settle()
        assert hive.effect_count("grant", "lease-1") == 1


JUNK = [
    pytest.param(["END", "END"], id="ends-of-answers"),
    pytest.param(["OK CAT path=/host/tickets/spec.snapshot", "OK TAIL"], id="acknowledgements"),
    pytest.param(["ERR CONSOLE reason=timeout", "ERR ECHO reason=busy"], id="refusals"),
    pytest.param(["C1:0000:0002:" + "0" * 64 + ":half", "C1:broken"], id="frames"),
    pytest.param(["{", "null", "[[[[", '{"schema":"worker-runtime-state/v2"}', "\x01\x7f"], id="junk"),
]


@pytest.mark.parametrize("lines", JUNK)
def test_poisoned_telemetry_stops_no_other_ticket(tmp_path: Path, lines: list[str]) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        victim = _admit(hive, clock)
        state = hive.worker(victim)
        telemetry(hive, victim, encode_worker_state(replace(state, state="closing"), schema="v2"), *lines)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            for number in range(2, 6):
                worker = hive.spawn_worker("worker-gpu").worker_id
                hive.submit(raw_grant(hive, worker, f"t{number}", f"lease-{number}"))

            def others_done() -> bool:
                return bench.agent.totals.ended == 4

            _natural(bench, others_done)
            assert bench.record("t1").state is State.PREPARED
            assert bench.waiting(bench.record("t1").key)
            assert hive.effects == Counter(dict.fromkeys(hive.effects, 1))
            # Once the ring has moved on, it is served as well.
            telemetry(hive, victim, *["x" * 200] * 5, encode_worker_state(state, schema="v2"))
            bench.settle()
        assert _state_of_result(hive) == "succeeded"


def _natural(bench: Bench, done: Callable[[], bool]) -> None:
    """Pass after pass with the operations' own pauses."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        bench.passes(1)
        waiting = [(op.record.key, op.waiting) for op in bench.agent.operations.values()]
        assert time.monotonic() < deadline, waiting


def test_forged_lines_about_others_do_not_count(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(STRICT_A, clock=clock) as (hive, server):
        worker = _admit(hive, clock)
        forged = replace(hive.worker(worker), worker_id="worker-9", state="terminal")
        telemetry(hive, worker, encode_worker_state(forged, schema="v2"), "not json", "")
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
        assert _state_of_result(hive) == "succeeded"


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("state=SLEEPING", id="unknown-state"),
        pytest.param("ERR CAT reason=busy detail=busy path={path} error=busy", id="busy"),
    ],
)
def test_a_lifecycle_that_cannot_be_told_counts_as_closed(tmp_path: Path, line: str) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        _admit(hive, clock)
        if line.startswith("ERR"):
            server.faults.add(Fault(kind=FaultKind.ERR, prefix="/proc/lifecycle", text=line))
        else:
            root_of(hive).lifecycle.state = "SLEEPING"  # type: ignore[assignment]
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            assert _still_prepared(bench)
            assert not hive.effects
        assert hive.appended(DEADLETTER) == 0
