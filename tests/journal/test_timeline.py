"""What is drawn of a journal: segments, uncertain windows, marks, and the axis that they stand on."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_support import RESULT
from past_records import BOOT, agent, past

from ticket_agent.journal.axis import axis_of
from ticket_agent.journal.cursor import Cursor, EpochMark
from ticket_agent.journal.starts import Start
from ticket_agent.journal.timeline import MarkKind, Timeline, timeline_of
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from ticket_agent.journal.values import Record

NOW = 10_000
ONE, TWO = agent(1), agent(2)


def drawn(*records: Record, starts: tuple[Start, ...] = (), cursor: Cursor | None = None) -> Timeline:
    return timeline_of(
        records, starts, shown=records, cursor=cursor or Cursor(), running=False, now_unix_ms=NOW
    )


def test_segments_follow_the_history() -> None:
    (lane,) = drawn(past([10, 20, 25, 40, 41], [ONE] * 5)).lanes
    assert [(part.state, part.start_unix_ms, part.end_unix_ms) for part in lane.segments] == [
        (State.PREPARED, 10, 20),
        (State.EXECUTING, 20, 25),
        (State.PERSISTED, 25, 40),
        (State.PUBLISHED, 40, 41),
        (State.TERMINAL, 41, 41),
    ]
    assert not any(part.open for part in lane.segments)
    assert (lane.window, lane.clock_went_back) == (None, False)


def test_an_open_operation_lasts_until_now() -> None:
    (lane,) = drawn(past([10], [ONE])).lanes
    assert (lane.segments[-1].open, lane.end_unix_ms) == (True, NOW)


def test_a_clock_that_went_back_is_said_and_draws_nothing_backwards() -> None:
    (lane,) = drawn(past([100, 50, 120], [ONE] * 3)).lanes
    assert lane.clock_went_back
    assert [part.start_unix_ms for part in lane.segments] == [100, 100, 120]


OBSERVED = replace(RESULT, reconciled=True)


@pytest.mark.parametrize(
    ("record", "window", "words"),
    [
        pytest.param(past([10, 20, 25], [ONE] * 3), None, "", id="answered"),
        pytest.param(past([10], [ONE]), None, "", id="not dispatched"),
        pytest.param(
            past([10, 20, 25], [ONE] * 3, result=OBSERVED), (20, 25, False), "the answer", id="lost"
        ),
        pytest.param(
            past([10, 20, 90], [ONE, ONE, TWO], result=OBSERVED),
            (20, 90, False),
            "dispatched by start 1, which ended before it knew; settled 70 ms later",
            id="crashed",
        ),
        pytest.param(past([10, 20], [ONE] * 2), (20, NOW, True), "not settled yet", id="open"),
        pytest.param(
            past([10, 20], [ONE] * 2, uncertain_since=30),
            (20, NOW, True),
            "noted at 1970-01-01T00:00:00.030Z: the answer was lost",
            id="noted",
        ),
        pytest.param(
            past([10, 20, 50], [ONE] * 3, uncertain_since=30), (20, 50, False), "settled 30 ms", id="settled"
        ),
    ],
)
def test_uncertain_windows(record: Record, window: tuple[int, int, bool] | None, words: str) -> None:
    (lane,) = drawn(record).lanes
    if window is None:
        assert lane.window is None
        return
    assert lane.window is not None
    assert (lane.window.start_unix_ms, lane.window.end_unix_ms, lane.window.open) == window
    assert words in lane.window.why


def test_crashes_and_restarts_are_marks() -> None:
    starts = (
        Start(pid=1, boot_id=BOOT, started_unix_ms=5, agent=ONE),
        Start(pid=2, boot_id="boot-2", started_unix_ms=40, agent=TWO, stopped_unix_ms=99),
    )
    record = past([10, 20, 60], [ONE, ONE, TWO], boots=[BOOT, BOOT, "boot-2"])
    timeline = drawn(record, past([11, 21, 22], [ONE] * 3, sequence=2), starts=starts)
    assert [(mark.kind, mark.unix_ms, mark.label) for mark in timeline.marks] == [
        (MarkKind.START, 5, "start 1"),
        (MarkKind.CRASH, 22, "crash 1"),
        (MarkKind.REBOOT, 40, "reboot, start 2"),
        (MarkKind.STOP, 99, "stop 2"),
    ]
    assert "1 operation in flight" in timeline.marks[1].detail
    assert "in flight" not in timeline.marks[3].detail
    assert timeline.crashes == 1
    assert timeline.in_flight == {1: 1, 2: 0}
    assert [(gap.start_unix_ms, gap.end_unix_ms, gap.crashed) for gap in timeline.silences] == [
        (22, 40, True)
    ]


def test_a_dispatch_is_in_flight_at_every_end_until_it_is_settled() -> None:
    record = past([10, 20, 90], [agent(1), agent(1), agent(3)])
    other = past([30], [agent(2)], sequence=2)
    still = past([1, 2], [agent(1)] * 2, sequence=3)
    timeline = drawn(record, other, still)
    assert timeline.in_flight == {1: 2, 2: 2, 3: 1}


def test_an_end_that_is_not_recorded_is_no_crash() -> None:
    timeline = drawn(past([10, 20, 60], [ONE, ONE, TWO]))
    assert timeline.crashes == 0
    assert [mark.kind for mark in timeline.marks] == [MarkKind.START, MarkKind.RESTART]
    assert "at or before" in timeline.marks[1].detail


def test_lives_are_read_from_operations_that_get_no_lane() -> None:
    records = [past([10], [ONE]), past([50], [TWO], sequence=2)]
    timeline = timeline_of(records, (), shown=records[1:], cursor=Cursor(), running=False, now_unix_ms=NOW)
    assert (len(timeline.lanes), len(timeline.lives)) == (1, 2)


def test_a_new_life_of_the_hive_is_a_mark() -> None:
    marks = (
        EpochMark(number=1, opened_unix_ms=1, evidence="first contact"),
        EpochMark(number=2, opened_unix_ms=77, evidence="offsets went back"),
    )
    timeline = drawn(past([10], [ONE]), cursor=Cursor(epoch=2, epochs=marks))
    assert [(mark.unix_ms, mark.detail) for mark in timeline.marks if mark.kind is MarkKind.EPOCH] == [
        (77, "life 2 of the hive was recognised: offsets went back")
    ]


TIMES = st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 50), min_size=1, max_size=60)


@given(TIMES, st.integers(0, 2**63 - 1))
def test_the_axis_keeps_the_order_and_stays_inside(times: list[int], other: int) -> None:
    axis = axis_of(times, narrowest=700, widest=5_000, margin=20)
    places = [axis.at(time) for time in sorted({*times, other})]
    assert all(before <= after for before, after in pairwise(places))
    assert all(20 <= place <= axis.width - 20 + 1e-6 for place in places)
    assert 700 <= axis.width <= 5_000


@given(st.lists(st.integers(1, 10**10), min_size=1, max_size=60))
def test_every_step_is_visible(steps: list[int]) -> None:
    """Two instants never share a place, a millisecond apart or a year."""
    times = [0]
    for step in steps:
        times.append(times[-1] + step)
    axis = axis_of(times, narrowest=1_000, widest=5_000, margin=20)
    gaps = [after - before for before, after in pairwise(axis.places)]
    assert min(gaps) > 0.4
    assert sorted(gaps) == pytest.approx([gap for _, gap in sorted(zip(steps, gaps, strict=True))])


def test_ticks_keep_their_distance() -> None:
    axis = axis_of(range(100), narrowest=500, widest=500, margin=10)
    places = [place for place, _ in axis.ticks(90)]
    assert len(places) == 6
    assert all(after - before >= 90 for before, after in pairwise(places))
