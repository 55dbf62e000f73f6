"""A journal as something to be drawn: lanes, segments, uncertain windows and marks. Pure.

Times are the recorded ones. Where a host's clock went back between two entries of one operation, the later
entry is drawn at the earlier one's time and the lane says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

from ticket_agent.journal.lives import End, lives_of, name_of
from ticket_agent.journal.text import span, stamp
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ticket_agent.journal.cursor import Cursor
    from ticket_agent.journal.lives import Life, LifeName
    from ticket_agent.journal.starts import Start
    from ticket_agent.journal.values import Record

__all__ = ["Lane", "Mark", "MarkKind", "Segment", "Silence", "Timeline", "Window", "timeline_of"]


class MarkKind(StrEnum):
    """What a mark stands for."""

    START = "start"
    RESTART = "restart"
    REBOOT = "reboot"
    CRASH = "crash"
    STOP = "stop"
    EPOCH = "epoch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The time that an operation spent in one state; ``open`` when it is still in it."""

    state: State
    start_unix_ms: int
    end_unix_ms: int
    open: bool
    life: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """From the dispatch until its end was settled: nobody could tell whether the effect had happened.

    Attributes:
        start_unix_ms: the dispatch.
        end_unix_ms: when the outcome was settled, or the time of the look at the journal.
        open: it is not settled yet.
        crossed: lives that ended within it.
        why: one sentence.
    """

    start_unix_ms: int
    end_unix_ms: int
    open: bool
    crossed: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One operation: its segments in order, its uncertain window if there was one."""

    record: Record
    segments: tuple[Segment, ...]
    window: Window | None
    clock_went_back: bool

    @property
    def start_unix_ms(self) -> int:
        """When the operation was journaled."""
        return self.segments[0].start_unix_ms

    @property
    def end_unix_ms(self) -> int:
        """When it ended, or the time of the look."""
        return self.segments[-1].end_unix_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened to the whole journal: a short label, and one sentence."""

    kind: MarkKind
    unix_ms: int
    label: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Between the last sign of one process and the first of the next; somewhere in it the former ended."""

    start_unix_ms: int
    end_unix_ms: int
    crashed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Everything to be drawn.

    Attributes:
        lanes: in the order of their start.
        lives: the processes, in order.
        marks: by time.
        silences: by time.
        in_flight: for each life's number, how many operations were executing when it ended.
    """

    lanes: tuple[Lane, ...]
    lives: tuple[Life, ...]
    marks: tuple[Mark, ...]
    silences: tuple[Silence, ...]
    in_flight: Mapping[int, int]

    @property
    def crashes(self) -> int:
        """Processes that did not end in order."""
        return sum(life.end is End.CRASHED for life in self.lives)

    @property
    def windows(self) -> tuple[Lane, ...]:
        """Lanes with an uncertain window."""
        return tuple(lane for lane in self.lanes if lane.window is not None)


def timeline_of(
    records: Sequence[Record],
    starts: Sequence[Start],
    *,
    shown: Sequence[Record],
    cursor: Cursor,
    running: bool,
    now_unix_ms: int,
) -> Timeline:
    """Return what a journal shows.

    Args:
        records: all operations, in any order: lives and what was in flight are read from all of them.
        shown: those of them that get a lane.
        starts: what the fence's file says, oldest first.
        cursor: for the hive's lives.
        running: somebody holds the fence now.
        now_unix_ms: the end of what is still open.
    """
    lives, names = lives_of(records, starts, running=running)
    lanes = [_lane(record, names, now_unix_ms) for record in shown]
    lanes.sort(key=lambda lane: (lane.start_unix_ms, lane.record.epoch, lane.record.sequence))
    in_flight = _in_flight(records, names, lives)
    marks = [*_life_marks(lives, in_flight), *_epoch_marks(cursor)]
    return Timeline(
        lanes=tuple(lanes),
        lives=tuple(lives),
        marks=tuple(sorted(marks, key=lambda mark: mark.unix_ms)),
        silences=tuple(_silences(lives)),
        in_flight=in_flight,
    )


def _lane(record: Record, names: Mapping[LifeName, int], now_unix_ms: int) -> Lane:
    times: list[int] = []
    for entry in record.history:
        times.append(max(entry.unix_ms, times[-1]) if times else entry.unix_ms)
    back = any(drawn != entry.unix_ms for drawn, entry in zip(times, record.history, strict=True))
    now = max(now_unix_ms, times[-1])
    ends = [*times[1:], times[-1] if record.terminal else now]
    segments = tuple(
        Segment(
            state=entry.state,
            start_unix_ms=start,
            end_unix_ms=end,
            open=at + 1 == len(times) and not record.terminal,
            life=names[name_of(entry)],
        )
        for at, (entry, start, end) in enumerate(zip(record.history, times, ends, strict=True))
    )
    return Lane(record=record, segments=segments, window=_window(record, segments), clock_went_back=back)


def _window(record: Record, segments: Sequence[Segment]) -> Window | None:
    at = next((at for at, segment in enumerate(segments) if segment.state is State.EXECUTING), None)
    if at is None:
        return None
    executing = segments[at]
    after = segments[at + 1] if at + 1 < len(segments) else None
    crossed = after.life - executing.life if after is not None else 0
    reconciled = record.result is not None and record.result.reconciled
    if after is not None and not (crossed or reconciled or record.uncertain is not None):
        return None
    return Window(
        start_unix_ms=executing.start_unix_ms,
        end_unix_ms=executing.end_unix_ms,
        open=executing.open,
        crossed=max(crossed, 0),
        why=_why(record, executing, crossed=crossed),
    )


def _why(record: Record, executing: Segment, *, crossed: int) -> str:
    lasted = span(executing.end_unix_ms - executing.start_unix_ms)
    if executing.open:
        said = "dispatched and not settled yet"
    elif crossed:
        said = f"dispatched by start {executing.life}, which ended before it knew; settled {lasted} later"
    else:
        said = f"the answer did not settle it; settled {lasted} after the dispatch"
    if record.uncertain is None:
        return said
    return f"{said}; noted at {stamp(record.uncertain.since_unix_ms)}: {record.uncertain.detail}"


def _in_flight(
    records: Iterable[Record], names: Mapping[LifeName, int], lives: Sequence[Life]
) -> dict[int, int]:
    """How many dispatches each life left without a settled end."""
    counts = dict.fromkeys((life.number for life in lives), 0)
    last = len(lives)
    for record in records:
        numbers = [names[name_of(entry)] for entry in record.history]
        for at, entry in enumerate(record.history):
            if entry.state is not State.EXECUTING:
                continue
            settled = numbers[at + 1] if at + 1 < len(numbers) else last + 1
            # It was in flight at the end of every life from the dispatch to the one before the settlement.
            for number in range(numbers[at], settled):
                counts[number] += 1
    return counts


def _life_marks(lives: Sequence[Life], in_flight: Mapping[int, int]) -> Iterable[Mark]:
    for life in lives:
        number = life.number
        flying = in_flight[number]
        left = f"; {flying} operation{'s' if flying != 1 else ''} in flight" if flying else ""
        yield _begin(life)
        if life.end is End.CRASHED:
            yield Mark(
                kind=MarkKind.CRASH,
                unix_ms=life.last_unix_ms,
                label=f"crash {number}",
                detail=f"start {number} did not end in order: killed, crashed or without power, some time "
                f"after its last recorded sign at {stamp(life.last_unix_ms)}{left}",
            )
        elif life.end is End.STOPPED:
            yield Mark(
                kind=MarkKind.STOP,
                unix_ms=life.last_unix_ms,
                label=f"stop {number}",
                detail=f"start {number} ended in order at {stamp(life.last_unix_ms)}{left}",
            )


def _begin(life: Life) -> Mark:
    when = stamp(life.first_unix_ms)
    known = f"at {when}" if life.start_known else f"at or before {when}"
    if life.number == 1:
        return Mark(
            kind=MarkKind.START,
            unix_ms=life.first_unix_ms,
            label="start 1",
            detail=f"first start that the journal knows of, {known}",
        )
    kind, what = MarkKind.RESTART, "the agent was started again"
    if life.rebooted:
        kind, what = MarkKind.REBOOT, "the host had been booted anew and the agent was started again"
    return Mark(
        kind=kind,
        unix_ms=life.first_unix_ms,
        label=f"{'reboot, ' if life.rebooted else ''}start {life.number}",
        detail=f"{what} {known}",
    )


def _epoch_marks(cursor: Cursor) -> Iterable[Mark]:
    for mark in cursor.epochs:
        if mark.number > 1:
            yield Mark(
                kind=MarkKind.EPOCH,
                unix_ms=mark.opened_unix_ms,
                label=f"hive {mark.number}",
                detail=f"life {mark.number} of the hive was recognised: {mark.evidence}",
            )


def _silences(lives: Sequence[Life]) -> Iterable[Silence]:
    for before, after in pairwise(lives):
        if after.first_unix_ms > before.last_unix_ms:
            yield Silence(
                start_unix_ms=before.last_unix_ms,
                end_unix_ms=after.first_unix_ms,
                crashed=before.end is End.CRASHED,
            )
