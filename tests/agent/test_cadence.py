"""How often the request logs are looked at: never so late that a ring is replaced between two looks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from agent_support import agent_on
from hive_support import START_MS, ManualClock, raw_grant, running_hive
from hypothesis import given, settings
from hypothesis import strategies as st

from ticket_agent.agent.cadence import CLOSE, LOOKS_PER_TURN, RELAX_S, LogPace, Pace
from ticket_agent.agent.loop import PassSummary
from ticket_agent.hive.reference.rings import LineLog
from ticket_agent.protocol.retention import Retention

if TYPE_CHECKING:
    from pathlib import Path

MAXIMAL = "x" * 2048
"""Twelve wire lines: a ring of 64 holds five."""


class Ring:
    """A ticket log as root keeps it."""

    def __init__(self) -> None:
        self.log = LineLog(max_bytes=16384, max_frames=64)

    def append(self, text: str) -> None:
        self.log.append([text])

    def retention(self, path: str = "spec.snapshot") -> dict[str, Retention]:
        log = self.log
        return {
            path: Retention(
                path=path,
                base=log.base,
                next=log.next,
                retained_bytes=log.retained_bytes,
                retained_wire_lines=log.retained_frames,
                dropped_lines=log.dropped_lines,
                dropped_bytes=log.dropped_bytes,
            )
        }


def test_a_ring_holds_five_maximal_records() -> None:
    ring = Ring()
    for _ in range(9):
        ring.append(MAXIMAL)
    assert len(ring.log.lines()) == 5


def test_a_quiet_log_asks_for_nothing() -> None:
    pace = LogPace()
    assert pace.pace(0.0) == Pace()
    for now in range(100):
        pace.saw(Ring().retention(), float(now))
    assert pace.pace(100.0).longest_pause_s is None
    assert not pace.pace(100.0).close


def test_the_first_look_is_no_pace() -> None:
    ring, pace = Ring(), LogPace()
    for _ in range(50):
        ring.append(MAXIMAL)
    pace.saw(ring.retention(), 0.0)
    assert pace.pace(0.0) == Pace()


@pytest.mark.parametrize(
    ("text", "per_s", "turnover_s"),
    [
        (MAXIMAL, 5, 1.0),
        (MAXIMAL, 10, 0.5),
        (MAXIMAL, 1, 5.0),
        ("x" * 100, 64, 1.0),
        ("x" * 250, 32, 2.0),
    ],
)
@pytest.mark.parametrize("path", ["spec.snapshot", "spec"])
def test_the_time_of_a_turn(text: str, per_s: int, turnover_s: float, path: str) -> None:
    ring, pace = Ring(), LogPace()
    for tick in range(per_s * 20):
        pace.saw(ring.retention(path), tick / per_s)
        ring.append(text)
    found = pace.pace(20.0)
    assert found.log == path
    assert found.turnover_s == pytest.approx(turnover_s, rel=0.25)
    assert found.longest_pause_s == pytest.approx((found.turnover_s or 0) / LOOKS_PER_TURN)


def test_one_record_is_no_pace_however_soon_it_is_seen() -> None:
    ring, pace = Ring(), LogPace()
    pace.saw(ring.retention(), 10.0)
    ring.append(MAXIMAL)
    pace.saw(ring.retention(), 10.001)
    longest = pace.pace(10.001).longest_pause_s
    assert longest is not None
    assert longest > 1.0


def test_a_pace_that_is_over_is_forgotten() -> None:
    ring, pace = Ring(), LogPace()
    pace.saw(ring.retention(), 0.0)
    for _ in range(5):
        ring.append(MAXIMAL)
    pace.saw(ring.retention(), 1.0)
    assert pace.pace(1.0).close
    for now in range(2, 200):
        pace.saw(ring.retention(), float(now))
    assert not pace.pace(200.0).close
    later = pace.pace(200.0).turnover_s
    assert later is None or later > 1000
    assert pace.pace(1.0 + 199 + 20 * RELAX_S).turnover_s is None


def test_a_reboot_of_the_hive_is_no_pace() -> None:
    ring, pace = Ring(), LogPace()
    for _ in range(40):
        ring.append(MAXIMAL)
    pace.saw(ring.retention(), 0.0)
    pace.saw(Ring().retention(), 1.0)
    assert pace.pace(1.0) == Pace()


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(100, 2048), min_size=1, max_size=6),
    per_s=st.floats(0.5, 200),
    command_s=st.floats(0.0, 0.004),
)
def test_a_steady_stream_is_never_outrun(sizes: list[int], per_s: float, command_s: float) -> None:
    """An agent that keeps to the pause it is asked for sees every record before it is evicted."""
    ring, pace, idle_s = Ring(), LogPace(), 1.0
    now, sent, read_to = 0.0, 0, 0
    while now < 8.0:
        while sent < per_s * now:
            ring.append("x" * sizes[sent % len(sizes)])
            sent += 1
        if ring.log.base > read_to:
            assert now <= 1.0 + command_s, "only what comes out of complete silence can be missed"
        read_to = ring.log.next
        pace.saw(ring.retention(), now)
        longest = pace.pace(now).longest_pause_s
        now += min(idle_s, idle_s if longest is None else longest) + command_s


def test_an_agent_looks_more_often_when_the_log_turns_over(tmp_path: Path) -> None:
    clock, now = ManualClock(), 1000.0
    with (
        running_hive(clock=clock) as (hive, server),
        agent_on(server, tmp_path / "s", clock=clock, monotonic=lambda: now) as bench,
    ):
        bench.passes(1)
        agent = bench.agent
        agent._last_activity = now - 60
        agent._idle_s = 1.0
        assert agent._pause(PassSummary()) == pytest.approx(1.0)
        for number in range(12):
            worker = hive.spawn_worker("worker-gpu")
            name = f"t{number}".ljust(120, "x")
            hive.submit(raw_grant(hive, worker, name, f"lease-{number}", key=name, ttl_s=60))
        bench.passes(1)
        assert agent.cadence.pace.log == "spec.snapshot"
        longest = agent.cadence.pace.longest_pause_s
        assert longest is not None
        agent._last_activity = now - 60
        agent._idle_s = 1.0
        assert agent._pause(PassSummary()) <= longest + 0.001 < 1.0
        assert agent._feed.callers_period_s <= longest
        (event,) = bench.events("log-nearly-outrun")
        assert event["level"] == "warning"
        assert agent.cadence.pace.replaced >= CLOSE


def test_a_long_pass_ends_early_where_the_next_look_is_due(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server), agent_on(server, tmp_path / "s", clock=clock) as bench:
        bench.passes(1)
        for number in range(4):
            worker = hive.spawn_worker("worker-gpu")
            hive.submit(raw_grant(hive, worker, f"t{number}", f"lease-{number}", ttl_s=60))
        agent = bench.agent
        agent.cadence.looked = lambda: None  # type: ignore[method-assign]
        agent.cadence.pace = Pace(log="spec.snapshot", turnover_s=0.0, replaced=0.3)
        summary = agent.pass_once(bench.stop)
        assert (summary.admitted, summary.ended) == (4, 1)
        for left in (3, 2, 1):
            assert len(agent.operations) == left
            agent.pass_once(bench.stop)
        assert agent.totals.ended == 4


def test_what_was_evicted_of_the_callers_log_is_told(tmp_path: Path) -> None:
    """Version-1 tickets stand in no other log: that some may have been missed must not go unsaid."""
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        worker = hive.spawn_worker("worker-gpu")
        with agent_on(server, tmp_path / "s", clock=clock) as bench:
            hive.submit(raw_grant(hive, worker, "t0", "lease-0", ttl_s=60))
            bench.settle()
            bench.agent._feed._callers_due = 0.0
            bench.passes(1)
            lines = [
                json.dumps(
                    {
                        "schema": "host-ticket/v1",
                        "id": f"v{number}",
                        "idempotency_key": f"v{number}",
                        "action": "gpu.lease.release",
                        "expires_unix_ms": START_MS + 1,
                    }
                )
                for number in range(3)
            ]
            for text in lines:
                hive._root.logs.append([("spec", [text])])
            hive.slide("/host/tickets/spec", 3)
            bench.agent._feed._callers_due = 0.0
            bench.passes(2)
            (event,) = bench.events("callers-lines-evicted")
            assert event["bytes"] == sum(len(text) + 1 for text in lines[:2])
            assert bench.agent.intake.counters.evicted_unseen_bytes == event["bytes"]
            assert [r for r in bench.store.records.values() if b'"v2"' in r.request]
