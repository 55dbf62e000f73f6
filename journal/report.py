"""The report of a journal: one page that needs nothing else, for people who look at a crash afterwards. Pure.

The page holds no script and loads nothing; its policy forbids both, so that text out of a record cannot do it
either. Everything that is drawn stands in the tables as well.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.journal.lives import End
from ticket_agent.journal.report_lanes import (
    HEAD,
    HEIGHTS,
    PATTERNS,
    ROW,
    Label,
    anchor,
    draw_panel,
    glyph,
    mark_shape,
    safe,
)
from ticket_agent.journal.report_style import style_sheet
from ticket_agent.journal.text import span, stamp
from ticket_agent.journal.timeline import MarkKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ticket_agent.journal.lives import Life
    from ticket_agent.journal.timeline import Lane, Timeline
    from ticket_agent.journal.values import Record

__all__ = ["Facts", "Label", "render_report"]

PANEL_LANES: Final = 40
"""Lanes drawn over one stretch of time; more operations make more parts, each with an axis of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the page says beside the timeline.

    Attributes:
        source: where the journal is.
        program: which program made the page.
        made_unix_ms: when it looked.
        retained: how many operations the journal holds outside its archive.
        left_out: sentences about what the page does not show.
        problems: sentences about what cannot be read or is held.
    """

    source: str
    program: str
    made_unix_ms: int
    retained: int
    left_out: Sequence[str] = ()
    problems: Sequence[str] = ()


def render_report(timeline: Timeline, facts: Facts, label: Callable[[Record], Label]) -> str:
    """Return the page as HTML.

    Args:
        timeline: what is drawn.
        facts: what is said.
        label: what an operation is called.
    """
    body = [
        _header(facts),
        _tiles(timeline, facts),
        *(f'<p class="alert" role="alert">{safe(problem)}</p>' for problem in facts.problems),
        *(f"<p>{safe(sentence)}</p>" for sentence in [*_verdict(timeline), *facts.left_out]),
        "<h2>Timeline</h2>",
        _legend(),
        *_panels(timeline, label),
        "<h2>Starts of the agent</h2>",
        _lives_table(timeline),
        "<h2>Operations</h2>",
        _operations_table(timeline, label),
        _how_to_read(timeline),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>Ticket journal, {safe(stamp(facts.made_unix_ms))}</title>\n"
        f"<style>\n{style_sheet(head=HEAD, row=ROW)}\n</style></head>\n"
        f"<body>\n{PATTERNS}\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _header(facts: Facts) -> str:
    return (
        "<header><h1>Ticket journal</h1>"
        f'<p class="quiet"><code>{safe(facts.source)}</code>, read {safe(stamp(facts.made_unix_ms))} '
        f"by {safe(facts.program)}. All times are UTC.</p></header>"
    )


def _tiles(timeline: Timeline, facts: Facts) -> str:
    outcomes = Counter(
        lane.record.result.outcome for lane in timeline.lanes if lane.record.result is not None
    )
    still_open = sum(not lane.record.terminal for lane in timeline.lanes)
    unsettled = sum(lane.window is not None and lane.window.open for lane in timeline.lanes)
    shown = len(timeline.lanes)
    tiles = [
        ("", f"{shown}" if shown == facts.retained else f"{shown} of {facts.retained}", "operations"),
        *(("", str(outcomes[name]), name) for name in ("confirmed", "rejected", "stale") if outcomes[name]),
        ("", str(still_open), "not ended"),
        ("unsure" if unsettled else "", str(unsettled), "not settled"),
        ("unsure" if timeline.windows else "", str(len(timeline.windows)), "uncertain windows"),
        ("bad" if timeline.crashes else "", str(timeline.crashes), "crashes"),
        ("", str(max(len(timeline.lives) - 1, 0)), "restarts"),
        ("", str(sum(life.rebooted for life in timeline.lives)), "host reboots"),
    ]
    return (
        '<ul class="tiles">'
        + "".join(f'<li class="{kind}"><b>{count}</b> {name}</li>' for kind, count, name in tiles)
        + "</ul>"
    )


def _verdict(timeline: Timeline) -> Iterable[str]:
    if not timeline.lanes:
        yield "No operation to show."
        return
    settled = [lane for lane in timeline.windows if lane.window is not None and not lane.window.open]
    unsettled = len(timeline.windows) - len(settled)
    if timeline.crashes:
        flying = sum(timeline.in_flight[life.number] for life in timeline.lives if life.end is End.CRASHED)
        yield (
            f"The agent ended {timeline.crashes} time{_s(timeline.crashes)} without an orderly stop and was "
            f"started again; {flying} dispatch{'' if flying == 1 else 'es'} "
            f"{'was' if flying == 1 else 'were'} in flight then. A restarted agent only observes those."
        )
    if settled:
        longest = max(_length(lane) for lane in settled)
        yield (
            f"{len(settled)} operation{_s(len(settled))} had an uncertain outcome for a while and "
            f"{'was' if len(settled) == 1 else 'were'} settled; the longest took {span(longest)}."
        )
    noted = sum(lane.record.outcome_unknown for lane in timeline.windows)
    for count, why in (
        (noted, "nobody can tell yet whether the effect happened"),
        (unsettled - noted, "the effect goes on, or nobody has looked yet"),
    ):
        if count:
            verb = "is" if count == 1 else "are"
            yield f"{count} operation{_s(count)} {verb} dispatched and not settled: {why}."


def _length(lane: Lane) -> int:
    return lane.window.end_unix_ms - lane.window.start_unix_ms if lane.window is not None else 0


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _legend() -> str:
    words = {
        "prepared": "prepared: admitted, nothing dispatched",
        "executing": "executing: dispatched",
        "provider-result-persisted": "decided: the outcome is journaled",
        "result-published": "published: the root has the result",
    }
    entries = [
        _sign(f'<rect class="s-{state}" y="{11 - height / 2}" width="24" height="{height}" rx="2"/>')
        + words[state]
        for state, height in HEIGHTS.items()
    ]
    entries.append(
        _sign('<rect class="window" x="1" y="2" width="22" height="18" rx="3"/>')
        + "uncertain: from dispatch until the outcome was settled"
    )
    entries += [
        _sign(f'<g transform="translate(12 11)">{glyph(name)}</g>') + words
        for name, words in (
            ("confirmed", "confirmed"),
            ("rejected", "rejected"),
            ("stale", "stale: ended by rule, not by knowledge"),
        )
    ]
    entries += [
        _sign(f'<g class="m m-{kind}">{_line(kind)}{mark_shape(kind, 12, 11)}</g>') + words
        for kind, words in (
            (MarkKind.CRASH, "crash: no orderly stop"),
            (MarkKind.STOP, "orderly stop"),
            (MarkKind.RESTART, "start or restart"),
            (MarkKind.REBOOT, "start after a host reboot"),
            (MarkKind.EPOCH, "new life of the hive"),
        )
    ]
    entries.append(_sign('<rect class="silence crashed" width="24" height="22"/>') + "agent not there")
    return '<ul class="legend">' + "".join(f"<li>{entry}</li>" for entry in entries) + "</ul>"


def _line(kind: MarkKind) -> str:
    return '<line class="m-line" x1="12" x2="12" y1="0" y2="22"/>' if kind in _STARTS else ""


def _sign(inner: str) -> str:
    return f'<svg width="24" height="22" aria-hidden="true">{inner}</svg>'


def _panels(timeline: Timeline, label: Callable[[Record], Label]) -> Iterable[str]:
    lanes = timeline.lanes
    parts = [lanes[at : at + PANEL_LANES] for at in range(0, len(lanes), PANEL_LANES)]
    if len(parts) > 1:
        yield (
            f"<p>{len(lanes)} operations in {len(parts)} parts, the newest first; each part has its own "
            "time axis.</p>"
        )
    for number, part in reversed(list(enumerate(parts, start=1))):
        if len(parts) > 1:
            first, last = part[0].start_unix_ms, max(lane.end_unix_ms for lane in part)
            yield f"<p><b>Part {number}</b>: {safe(stamp(first))} to {safe(stamp(last))}</p>"
        yield draw_panel(part, timeline, number=number, label=label)


_ENDS: Final = {
    End.RUNNING: "running",
    End.STOPPED: "orderly stop",
    End.CRASHED: "crash: no orderly stop",
    End.UNSAID: "no end recorded",
}


def _lives_table(timeline: Timeline) -> str:
    rows = [_life_row(life, timeline.in_flight[life.number]) for life in timeline.lives]
    return _table(
        ["start", "first sign", "last sign", "end", "in flight at its end", "entries", "agent", "boot id"],
        rows,
    )


def _life_row(life: Life, flying: int) -> str:
    began = stamp(life.first_unix_ms) + ("" if life.start_known else " (first entry)")
    rebooted = " after a host reboot" if life.rebooted else ""
    kind = "t-crashed" if life.end is End.CRASHED else ""
    several = "" if life.is_one_process else " (possibly several starts)"
    return (
        f'<tr><td class="n">{life.number}</td><td class="t">{safe(began)}{rebooted}</td>'
        f'<td class="t">{safe(stamp(life.last_unix_ms))}</td>'
        f'<td><span class="tag {kind}">{_ENDS[life.end]}</span></td><td class="n">{flying}</td>'
        f'<td class="n">{life.entries}</td><td class="mono">{safe(life.agent or "unknown")}{several}</td>'
        f'<td class="mono">{safe(life.boot_id)}</td></tr>'
    )


_OPERATION_HEADS: Final = (
    "seq",
    "epoch",
    "ticket",
    "action",
    "subject",
    "state",
    "outcome",
    "steps",
    "uncertain",
    "message",
)


def _operations_table(timeline: Timeline, label: Callable[[Record], Label]) -> str:
    newest = sorted(timeline.lanes, key=lambda lane: (lane.record.epoch, lane.record.sequence), reverse=True)
    rows = [_operation_row(lane, label(lane.record)) for lane in newest]
    heads = [
        "seq",
        "epoch",
        "ticket",
        "action",
        "subject",
        "state",
        "outcome",
        "steps",
        "uncertain",
        "message",
    ]
    return _table(heads, rows)


def _operation_row(lane: Lane, label: Label) -> str:
    record = lane.record
    outcome = record.result.outcome if record.result is not None else None
    shown = f'<span class="tag t-{outcome}">{outcome}</span>' if outcome is not None else "&ndash;"
    if outcome is not None and record.result is not None:
        shown += " observed" if record.result.reconciled else ""
    message = record.result.message if record.result is not None else ""
    if record.withdrawn is not None:
        message = f"{message}; withdrawn: {record.withdrawn}"
    return (
        f'<tr id="{anchor(record)}"><td class="n">{record.sequence}</td><td class="n">{record.epoch}</td>'
        f"<td>{safe(label.ticket)}</td><td>{safe(label.action)}</td><td>{safe(label.subject)}</td>"
        f'<td class="t">{record.state}</td><td class="t">{shown}</td><td class="t">{_steps(lane)}</td>'
        f"<td>{_uncertain(lane)}</td>"
        f'<td class="w">{safe(message)}</td></tr>'
    )


def _steps(lane: Lane) -> str:
    lines: list[str] = []
    day = ""
    for entry, segment in zip(lane.record.history, lane.segments, strict=True):
        date, _, time = stamp(entry.unix_ms).partition("T")
        shown, day = (time if date == day and time else stamp(entry.unix_ms)), date
        lines.append(f"{safe(shown)} {entry.state}, start {segment.life}")
    if lane.clock_went_back:
        lines.append("the host's clock went back in between")
    return "<br>".join(lines)


def _uncertain(lane: Lane) -> str:
    if lane.window is None:
        return "&ndash;"
    word = "not settled" if lane.window.open else span(_length(lane))
    return f'<span class="tag t-uncertain">{word}</span> {safe(lane.window.why)}'


def _table(heads: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return (
        '<div class="table" tabindex="0" role="region" aria-label="table"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


_STARTS: Final = (MarkKind.RESTART, MarkKind.REBOOT)
_READING: Final = (
    """Lengths on the axis grow with the logarithm of the time between two instants: the order is exact, the
    duration stands in each title and in the table.""",
    """A crash is a start that another start followed without an orderly stop in between; the moment of death
    is not recorded, it lies in the shaded stretch.""",
    "A start that wrote no entry is known only while the fence's file still has it.",
)


def _how_to_read(timeline: Timeline) -> str:
    said = list(_READING)
    if any(not life.is_one_process for life in timeline.lives):
        said.append(
            "Some entries were written by a version that did not tell one start from the next: restarts "
            "within one boot of the host cannot be seen among them."
        )
    return "<h2>How to read this</h2>" + "".join(f'<p class="quiet">{sentence}</p>' for sentence in said)
