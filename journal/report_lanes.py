"""One part of the timeline as inline SVG: lanes, segments, uncertain windows, marks. Pure.

Colour is never the only carrier: states differ in height, outcomes and marks in shape, windows are hatched,
and everything has a title.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from ticket_agent.journal.axis import axis_of
from ticket_agent.journal.text import plain, span, stamp
from ticket_agent.journal.timeline import MarkKind
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ticket_agent.journal.axis import Axis
    from ticket_agent.journal.timeline import Lane, Mark, Segment, Silence, Timeline, Window
    from ticket_agent.journal.values import Record

__all__ = [
    "HEAD",
    "HEIGHTS",
    "PATTERNS",
    "ROW",
    "Label",
    "anchor",
    "draw_panel",
    "glyph",
    "mark_shape",
    "safe",
]

HEAD: Final = 66
"""Height above the first lane: one row of times, two of marks."""
ROW: Final = 28
_NARROWEST, _WIDEST, _MARGIN = 1_060.0, 5_200.0, 26.0
_TICKS_APART = 92.0
_LETTER = 6.4
"""Width of a letter of a label, generously."""
_LEAST = 2.0
"""Every segment is at least so wide."""

HEIGHTS: Final = {
    State.PREPARED: 6,
    State.EXECUTING: 18,
    State.PERSISTED: 13,
    State.PUBLISHED: 9,
}
_SHORT: Final = {
    State.PREPARED: "prepared",
    State.EXECUTING: "executing",
    State.PERSISTED: "decided",
    State.PUBLISHED: "published",
}
PATTERNS: Final = (
    '<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>'
    '<pattern id="hatch" width="9" height="9" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="hatch-back" width="9" height="9"/>'
    '<line class="hatch-line" x1="1.5" y1="0" x2="1.5" y2="9"/>'
    "</pattern></defs></svg>"
)
_MARK_ROW: Final = {MarkKind.CRASH: 0, MarkKind.STOP: 0, MarkKind.EPOCH: 0}
"""Ends stand in the upper row of marks, everything else in the lower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What a record is called by those who know its request."""

    ticket: str
    action: str
    subject: str


def safe(text: str) -> str:
    """Text as it may stand anywhere in the page: it can neither end an element nor hide or turn anything."""
    return escape(plain(text), quote=True)


def draw_panel(
    lanes: Sequence[Lane], timeline: Timeline, *, number: int, label: Callable[[Record], Label]
) -> str:
    """Return labels and drawing of some lanes over their own stretch of time."""
    first = min(lane.start_unix_ms for lane in lanes)
    last = max(lane.end_unix_ms for lane in lanes)
    marks, silences = _within(timeline, first, last)
    axis = axis_of(_instants(lanes, marks, silences), narrowest=_NARROWEST, widest=_WIDEST, margin=_MARGIN)
    height = HEAD + ROW * len(lanes) + 4
    says = (
        f"Timeline of {len(lanes)} operations from {stamp(axis.instants[0])} to {stamp(axis.instants[-1])} "
        f"with {len(marks)} marks; the table below has the same facts."
    )
    names = "".join(_name(lane, label(lane.record)) for lane in lanes)
    size = f'width="{axis.width:.0f}" height="{height}" viewBox="0 0 {axis.width:.0f} {height}"'
    drawing = [
        f'<svg role="img" aria-label="{safe(says)}" {size}>',
        *(_silence(silence, axis, height) for silence in silences),
        *_grid(axis, height, rows=len(lanes)),
        *(_draw_lane(lane, axis, HEAD + ROW * at, label(lane.record)) for at, lane in enumerate(lanes)),
        *_draw_marks(marks, axis, height),
        "</svg>",
    ]
    return (
        f'<div class="panel" id="panel-{number}"><ol class="labels">{names}</ol>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="timeline, part {number}">'
        f"{''.join(drawing)}</div></div>"
    )


def _within(timeline: Timeline, first: int, last: int) -> tuple[list[Mark], list[Silence]]:
    """What of the whole journal belongs to a stretch of time: inside it, or next to it."""
    inside = [mark for mark in timeline.marks if first <= mark.unix_ms <= last]
    before = [mark for mark in timeline.marks if mark.unix_ms < first]
    after = [mark for mark in timeline.marks if mark.unix_ms > last]
    marks = [*before[-1:], *inside, *after[:1]]
    low = min([first, *(mark.unix_ms for mark in marks)])
    high = max([last, *(mark.unix_ms for mark in marks)])
    return marks, [
        silence
        for silence in timeline.silences
        if silence.end_unix_ms >= low and silence.start_unix_ms <= high
    ]


def _instants(lanes: Iterable[Lane], marks: Iterable[Mark], silences: Iterable[Silence]) -> set[int]:
    times = {mark.unix_ms for mark in marks}
    for lane in lanes:
        times.update(segment.start_unix_ms for segment in lane.segments)
        times.add(lane.end_unix_ms)
    low, high = min(times), max(times)
    for silence in silences:
        times.update(time for time in (silence.start_unix_ms, silence.end_unix_ms) if low <= time <= high)
    return times


def anchor(record: Record) -> str:
    """Name of the operation's row in the page's table."""
    return f"op-{record.name.removesuffix('.rec')}"


def _name(lane: Lane, label: Label) -> str:
    return (
        f'<li title="{safe(f"{label.ticket}, {label.action} on {label.subject}")}">'
        f'<a href="#{anchor(lane.record)}">{safe(label.ticket)}</a> '
        f'<span class="quiet more">{safe(label.action)}</span></li>'
    )


def _silence(silence: Silence, axis: Axis, height: int) -> str:
    left, right = axis.at(silence.start_unix_ms), axis.at(silence.end_unix_ms)
    lasted = span(silence.end_unix_ms - silence.start_unix_ms)
    how = "ended without an orderly stop" if silence.crashed else "was not running, or wrote nothing"
    return (
        f'<rect class="silence{" crashed" if silence.crashed else ""}" x="{left:.1f}" y="{HEAD - 8}" '
        f'width="{max(right - left, _LEAST):.1f}" height="{height - HEAD + 8}">'
        f"<title>{safe(f'no sign of the agent for {lasted}: it {how}')}</title></rect>"
    )


def _grid(axis: Axis, height: int, *, rows: int) -> Iterable[str]:
    for at in range(rows):
        y = HEAD + ROW * at
        yield f'<line class="row" x1="0" x2="{axis.width:.0f}" y1="{y + 0.5}" y2="{y + 0.5}"/>'
    day, free = "", 0.0
    for place, unix_ms in axis.ticks(_TICKS_APART):
        date, _, time = stamp(unix_ms).partition("T")
        text = time if date == day and time else f"{date} {time}".strip()
        right = place + len(text) * _LETTER
        if place < free or right > axis.width:
            continue
        day, free = date, right + 8
        yield (
            f'<line class="grid" x1="{place:.1f}" x2="{place:.1f}" y1="18" y2="{height}"/>'
            f'<text class="tick" x="{place:.1f}" y="13">{safe(text)}</text>'
        )


def _draw_lane(lane: Lane, axis: Axis, top: int, label: Label) -> str:
    parts = [f'<g class="lane" data-ticket="{safe(label.ticket)}">']
    parts += [_draw_segment(segment, axis, top) for segment in lane.segments if segment.state in HEIGHTS]
    if lane.window is not None:
        parts.append(_draw_window(lane.window, axis, top))
    middle, end = top + ROW / 2, axis.at(lane.end_unix_ms)
    if not lane.record.terminal:
        parts.append(
            f'<polyline class="open-end" points="{end + 2:.1f},{middle - 6} {end + 8:.1f},{middle} '
            f'{end + 2:.1f},{middle + 6}"><title>not ended yet</title></polyline>'
        )
    elif lane.record.result is not None:
        result = lane.record.result
        how = "withdrawn, not published: " if lane.record.withdrawn is not None else ""
        title = f"{how}{result.outcome} at {stamp(lane.end_unix_ms)}: {result.message}"
        parts.append(
            f'<g class="outcome" transform="translate({end + 9:.1f} {middle})">{glyph(result.outcome)}'
            f"<title>{safe(title)}</title></g>"
        )
    return "".join([*parts, "</g>"])


def _draw_segment(segment: Segment, axis: Axis, top: int) -> str:
    left, right = axis.at(segment.start_unix_ms), axis.at(segment.end_unix_ms)
    width, height = max(right - left, _LEAST), HEIGHTS[segment.state]
    y = top + (ROW - height) / 2
    until = "now" if segment.open else stamp(segment.end_unix_ms)
    lasted = span(segment.end_unix_ms - segment.start_unix_ms)
    title = f"{segment.state}: {stamp(segment.start_unix_ms)} to {until}, {lasted}"
    return (
        f'<rect class="s-{segment.state}" x="{left:.1f}" y="{y}" width="{width:.1f}" height="{height}" '
        f'rx="2"><title>{safe(title)}</title></rect>'
    )


def _draw_window(window: Window, axis: Axis, top: int) -> str:
    left, right = axis.at(window.start_unix_ms), axis.at(window.end_unix_ms)
    width = max(right - left, _LEAST)
    word = "uncertain" if not window.open else "not settled"
    text = ""
    if width > len(word) * _LETTER + 8:
        text = (
            f'<text class="on-window" x="{left + width / 2:.1f}" y="{top + ROW / 2 + 4}" '
            f'text-anchor="middle">{word}</text>'
        )
    return (
        f'<rect class="window{" open" if window.open else ""}" x="{left:.1f}" y="{top + 3}" '
        f'width="{width:.1f}" height="{ROW - 6}" rx="3"><title>{safe(f"uncertain: {window.why}")}</title>'
        f"</rect>{text}"
    )


_GLYPHS: Final = {
    "confirmed": '<circle r="7" class="o-confirmed"/><polyline class="glyph" points="-3,0 -1,3 3.5,-3"/>',
    "rejected": (
        '<rect x="-6.5" y="-6.5" width="13" height="13" rx="2" class="o-rejected"/>'
        '<path class="glyph" d="M-3 -3L3 3M3 -3L-3 3"/>'
    ),
    "stale": '<path class="o-stale" d="M0 -8L8 6.5H-8Z"/><path class="glyph" d="M0 -3V2M0 4.4V4.5"/>',
}


def glyph(outcome: str) -> str:
    """The sign of an outcome, around the origin: a tick in a circle, a cross in a square, a warning."""
    return _GLYPHS[outcome]


def _draw_marks(marks: Sequence[Mark], axis: Axis, height: int) -> Iterable[str]:
    free = [0.0, 0.0]
    for mark in marks:
        row = _MARK_ROW.get(mark.kind, 1)
        place, y = axis.at(mark.unix_ms), 30 + 18 * row
        width = len(mark.label) * _LETTER + 16
        # A label that would run out of the drawing stands to the left of its mark.
        flipped = place + width > axis.width
        left = place - width if flipped else place
        label = ""
        if left >= free[row]:
            x, side = (place - 9, "end") if flipped else (place + 9, "start")
            label = f'<text x="{x:.1f}" y="{y + 4}" text-anchor="{side}">{safe(mark.label)}</text>'
            free[row] = left + width + 4
        yield (
            f'<g class="m m-{mark.kind}"><line class="m-line" x1="{place:.1f}" x2="{place:.1f}" '
            f'y1="{y}" y2="{height}"/>{mark_shape(mark.kind, place, y)}{label}'
            f"<title>{safe(mark.detail)}</title></g>"
        )


def mark_shape(kind: MarkKind, x: float, y: float) -> str:
    """The sign of a mark: a cross, a square, a diamond, or an arrow for every kind of start."""
    if kind is MarkKind.CRASH:
        path = f"M{x - 6:.1f} {y - 3}l3 -3l3 3l3 -3l3 3l-3 3l3 3l-3 3l-3 -3l-3 3l-3 -3l3 -3z"
    elif kind is MarkKind.STOP:
        path = f"M{x - 5:.1f} {y - 5}h10v10h-10z"
    elif kind is MarkKind.EPOCH:
        path = f"M{x:.1f} {y - 6}l6 6l-6 6l-6 -6z"
    else:
        path = f"M{x - 4:.1f} {y - 6}l10 6l-10 6z"
    return f'<path class="m-shape" d="{path}"/>'
