"""Lanes and publication order: whom an operation holds up, and whom it must not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from agent_faults import blind
from agent_support import Bench, agent_on
from hive_support import LEASE_CTL, STATUS, ManualClock, raw_grant, raw_release, raw_renew, running_hive

from ticket_agent.hive.reference import STRICT_A, Fault, FaultKind, Faults, ReferenceHive
from ticket_agent.journal.outcome import Outcome, Plan, Unknown
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _states(bench: Bench) -> dict[str, State]:
    return {json.loads(r.request)["id"]: r.state for r in bench.store.records.values()}


def _passes(bench: Bench, count: int = 6) -> None:
    for _ in range(count):
        bench.hurry()
        bench.passes(1)


def _published(hive: ReferenceHive) -> list[str]:
    """Ids of terminal results in the order in which root took them."""
    results = [json.loads(line) for line in hive.cat(STATUS)]
    return [result["id"] for result in results if result["state"] == "succeeded"]


def test_an_uncertain_grant_holds_up_its_own_lease_only(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        workers = [hive.spawn_worker("worker-gpu").worker_id for _ in range(5)]
        blind(server, "/proc/lease/by-id/lease-a")
        hive.submit(raw_grant(hive, workers[0], "t1", "lease-a"))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.until(lambda: _states(bench).get("t1") is State.EXECUTING)
            hive.submit(raw_release(hive, workers[1], "t2", "lease-a"))
            hive.submit(raw_renew(hive, workers[2], "t3", "lease-a"))
            hive.submit(raw_grant(hive, workers[3], "t4", "lease-b"))
            hive.submit(raw_grant(hive, workers[4], "t5", "lease-c", "GPU-1"))
            _passes(bench)
            assert _states(bench) == {
                "t1": State.EXECUTING,
                "t2": State.PREPARED,
                "t3": State.PREPARED,
                "t4": State.TERMINAL,
                "t5": State.TERMINAL,
            }
            assert not any(hive.admission_of(ticket).outcome for ticket in ("t1", "t2", "t3"))
            server.faults.clear()
            bench.settle()
        assert sum(hive.effects.values()) == 3
        assert hive.admission_of("t1").outcome == "confirmed"
        # The lease is the first Worker's, so the others' tickets about it are refused, after it was known.
        assert hive.admission_of("t2").outcome == hive.admission_of("t3").outcome == "rejected"


def test_nothing_is_dispatched_on_a_lease_whose_grant_is_uncertain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is there for all to see; only the grant's own outcome is not known."""
    clock = ManualClock()
    with running_hive(STRICT_A, clock=clock) as (hive, server):
        worker = hive.spawn_worker("worker-gpu").worker_id
        hive.submit(raw_grant(hive, worker, "t1", "lease-a"))
        hive.submit(raw_release(hive, worker, "t2", "lease-a"))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            grant = bench.agent._providers._by_version[2]["gpu.lease.grant"]
            execute = grant.execute

            def unanswered(plan: Plan) -> Outcome:
                execute(plan)
                return Unknown("the answer was lost")

            monkeypatch.setattr(grant, "execute", unanswered)
            monkeypatch.setattr(grant, "observe", lambda plan: Unknown("nobody can tell"))
            _passes(bench)
            assert hive.cat("/proc/lease/by-id/lease-a")
            assert _states(bench) == {"t1": State.EXECUTING, "t2": State.PREPARED}
            monkeypatch.undo()
            bench.settle()
        assert _published(hive) == ["t1", "t2"]
        assert {effect.kind: count for effect, count in hive.effects.items()} == {"grant": 1, "preempt": 1}


def test_operations_on_one_lease_run_in_the_order_of_their_admissions(tmp_path: Path) -> None:
    clock = ManualClock()
    applied: list[str] = []
    with running_hive(STRICT_A, clock=clock) as (hive, server):
        server.faults.on_applied(lambda path, line: applied.append(line) if path == LEASE_CTL else None)
        worker = hive.spawn_worker("worker-gpu").worker_id
        hive.submit(raw_grant(hive, worker, "t1", "lease-a"))
        hive.submit(raw_renew(hive, worker, "t2", "lease-a", ttl_s=7))
        hive.submit(raw_release(hive, worker, "t3", "lease-a"))
        hive.submit(raw_grant(hive, worker, "t4", "lease-a"))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
        assert _published(hive) == ["t1", "t2", "t3", "t4"]
        assert {view.outcome for view in hive.admissions()} == {"confirmed"}
        assert [json.loads(line)["op"] for line in applied] == ["grant", "renew-bound", "preempt", "grant"]


def test_results_of_one_worker_are_published_in_the_order_of_their_admissions(tmp_path: Path) -> None:
    """With several open admissions, a later result that is taken first makes the earlier ones impossible."""
    clock = ManualClock()
    with running_hive(STRICT_A, clock=clock) as (hive, server):
        worker = hive.spawn_worker("worker-gpu").worker_id
        blind(server, "/proc/lease/by-id/lease-1")
        tickets = [f"t{number}" for number in range(1, 6)]
        for number, ticket in enumerate(tickets, start=1):
            hive.submit(raw_grant(hive, worker, ticket, f"lease-{number}"))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            _passes(bench)
            states = _states(bench)
            assert states.pop("t1") is State.EXECUTING
            assert set(states.values()) == {State.PERSISTED}
            assert "earlier result" in bench.waiting(bench.record("t5").key)
            assert _published(hive) == []
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            server.faults.clear()
            bench.settle()
        assert _published(hive) == tickets
        assert {view.outcome for view in hive.admissions()} == {"confirmed"}


def test_the_order_outlasts_refusals(tmp_path: Path) -> None:
    clock = ManualClock()

    def is_first(line: str) -> bool:
        return '"id":"t1"' in line and '"state":"succeeded"' in line

    busy = Fault(kind=FaultKind.ERR, verb="ECHO", prefix=STATUS, predicate=is_first)
    with running_hive(STRICT_A, clock=clock, faults=Faults(busy)) as (hive, server):
        worker = hive.spawn_worker("worker-gpu").worker_id
        for number in range(1, 4):
            hive.submit(raw_grant(hive, worker, f"t{number}", f"lease-{number}"))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            _passes(bench)
            assert server.faults.struck(FaultKind.ERR) > 1
            assert set(_states(bench).values()) == {State.PERSISTED}
            server.faults.clear()
            bench.settle()
        assert _published(hive) == ["t1", "t2", "t3"]


def test_an_operation_that_waits_for_a_gone_worker_does_not_hold_up_its_successor(tmp_path: Path) -> None:
    """A Worker that came back under the same id has a count of its own; nothing is owed to the old one."""
    clock = ManualClock()
    with running_hive(STRICT_A, clock=clock) as (hive, server):
        worker = hive.spawn_worker("worker-gpu").worker_id
        hive.submit(raw_grant(hive, worker, "t1", "lease-1"))
        hive.replace_worker(worker)
        hive.submit(raw_grant(hive, worker, "t2", "lease-2"))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.until(lambda: _states(bench).get("t2") is State.TERMINAL)
            assert _states(bench)["t1"] is State.PREPARED
        assert _published(hive) == ["t2"]
        assert hive.effect_count("grant", "lease-1") == 0


@pytest.mark.parametrize("part", ["plan", "execute", "observe"])
def test_a_faulty_provider_stops_only_its_own_ticket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        first, second, third = (hive.spawn_worker("worker-gpu").worker_id for _ in range(3))
        hive.submit(raw_grant(hive, first, "t1", "lease-1", expires=clock() + 60_000))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            provider = bench.agent._providers._by_version[2]["gpu.lease.grant"]
            monkeypatch.setattr(provider, part, _broken)
            if part == "observe":
                blind(server, "/proc/lease/by-id/lease-1")
            _passes(bench)
            expected = State.PREPARED if part == "plan" else State.EXECUTING
            if part == "execute":
                # Nothing was sent, and the connection lives on: nobody can tell yet that it will not come.
                assert bench.record("t1").uncertain is not None
            assert _states(bench)["t1"] is expected
            assert "ZeroDivisionError" in bench.waiting(bench.record("t1").key) or part == "execute"
            monkeypatch.undo()
            server.faults.clear()
            hive.submit(raw_grant(hive, second, "t2", "lease-2"))
            hive.submit(raw_release(hive, third, "t3", "lease-3"))
            bench.until(lambda: _states(bench).get("t3") is State.TERMINAL)
            clock.advance(60_000)
            bench.settle()
        assert hive.effect_count("grant", "lease-2") == 1
        assert hive.effect_count("grant", "lease-1") == (part != "execute")


def _broken(*_: object) -> Callable[..., object]:
    raise ZeroDivisionError
