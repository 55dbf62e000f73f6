"""The plots of a release as SVG: phases in time, losses by step, rows side by side, latencies. Pure.

Colour is never the only carrier: series differ in shape, and all that is drawn stands in tables as well.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ticket_agent.journal.axis import axis_of
from ticket_agent.journal.report_lanes import safe
from ticket_agent.journal.text import span, stamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ticket_agent.peft.release.paired import PairedLosses
    from ticket_agent.peft.release.release_view import PhaseView
    from ticket_agent.peft.release.told import CanaryRound
    from ticket_agent.peft.release.training_progress import TrainingLosses

__all__ = ["PLOT_STYLE", "latency_plot", "loss_plot", "paired_plot", "phases_plot", "ticks"]

_WIDTH: Final = 760
_HEIGHT: Final = 280
_LEFT: Final = 64
_RIGHT: Final = 16
_TOP: Final = 16
_BOTTOM: Final = 40
_ROW: Final = 24
_NARROWEST: Final = 2.0

PLOT_STYLE: Final = """
figure{margin:8px 0 18px}
.plot{max-width:100%;height:auto;background:var(--card);border:1px solid var(--line);border-radius:8px}
.plot .axis{stroke:var(--line);stroke-width:1}
.plot .end{text-anchor:end}.plot .middle{text-anchor:middle}
.p-baseline{fill:var(--executing);stroke:var(--executing)}
.p-candidate{fill:var(--restart);stroke:var(--restart)}
.p-better{stroke:var(--confirmed);stroke-width:2}
.p-worse{stroke:var(--crash);stroke-width:2;stroke-dasharray:4 2}
.p-curve{fill:none;stroke:var(--restart);stroke-width:2}
.p-point{fill:var(--restart)}
.p-limit{stroke:var(--crash);stroke-width:2;stroke-dasharray:6 4}
.p-idle{fill:var(--persisted)}.p-loaded{fill:var(--executing)}
.p-succeeded{fill:var(--confirmed)}.p-failed{fill:var(--rejected)}
.p-lost,.p-unknown{fill:var(--uncertain)}.p-running{fill:var(--executing)}
"""


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers within ``low..=high``, ascending, about ``most`` of them; one at least."""
    if not high > low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    found = [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]
    return found or [low]


class _Frame:
    """Linear axes in a frame."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self._x, self._y = _widened(*x), _widened(*y)

    def x(self, value: float) -> float:
        low, high = self._x
        return _LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self._y
        return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def grid(self, unit: str) -> list[str]:
        found = [f'<text class="tick" x="{_LEFT}" y="{_TOP - 4}">{safe(unit)}</text>']
        for value in ticks(*self._y):
            y = self.y(value)
            found.append(
                f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
            found.append(f'<text class="tick end" x="{_LEFT - 6}" y="{y + 4:.1f}">{value:.6g}</text>')
        bottom = _HEIGHT - _BOTTOM
        found.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>')
        return found

    def label(self, value: float, text: str) -> str:
        x, y = self.x(value), _HEIGHT - _BOTTOM + 16
        return f'<text class="tick middle" x="{x:.1f}" y="{y}">{safe(text)}</text>'


def _widened(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = (high - low) * 0.08 or max(abs(high) * 0.01, 1e-6)
    return low - room, high + room


def _plot(name: str, title: str, parts: Sequence[str], *, height: int = _HEIGHT) -> str:
    return (
        f'<figure><svg class="plot" id="{name}" role="img" aria-label="{safe(title)}" '
        f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">'
        + "".join(parts)
        + f'</svg><figcaption class="quiet">{safe(title)}</figcaption></figure>'
    )


def loss_plot(losses: TrainingLosses) -> str:
    """The losses of a training by step."""
    steps, values = losses.steps, losses.losses
    frame = _Frame((min(steps), max(losses.max_steps or 0, *steps)), _padded(values))
    points = [(frame.x(step), frame.y(value)) for step, value in zip(steps, values, strict=True)]
    parts = frame.grid("loss, nats per token")
    parts += [frame.label(step, str(step)) for step in _step_labels(steps)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts.append(f'<polyline class="p-curve" points="{path}"/>')
    parts += [
        f'<circle class="p-point" cx="{x:.1f}" cy="{y:.1f}" r="3">'
        f"<title>step {step}: {value:.6f}</title></circle>"
        for (x, y), step, value in zip(points, steps, values, strict=True)
    ]
    return _plot("losses", f"Loss of the training, {len(steps)} of its steps", parts)


def _step_labels(steps: Sequence[int]) -> list[int]:
    """Steps to be labelled: round ones, and the last one, not too near to each other."""
    first, last = steps[0], steps[-1]
    near = (last - first) / 20
    return [int(step) for step in ticks(first, last) if step == int(step) and last - step > near] + [last]


def paired_plot(losses: PairedLosses) -> str:
    """Each held-out row: baseline as a circle, candidate as a diamond, joined by what changed."""
    count = len(losses.rows)
    frame = _Frame((-0.5, count - 0.5), _padded([*losses.baseline, *losses.candidate]))
    parts = frame.grid("loss, nats per token")
    every = max(1, count // 16)
    parts += [frame.label(index, str(index + 1)) for index in range(0, count, every)]
    for index, (before, after) in enumerate(zip(losses.baseline, losses.candidate, strict=True)):
        x, old, new = frame.x(index), frame.y(before), frame.y(after)
        kind = "p-worse" if after > before else "p-better"
        parts.append(
            f'<g class="row-pair"><title>row {index + 1}: {before:.6f} before, {after:.6f} after</title>'
            f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{old:.1f}" y2="{new:.1f}"/>'
            f'<circle class="p-baseline" cx="{x:.1f}" cy="{old:.1f}" r="4"/>'
            f'<path class="p-candidate" d="M{x:.1f} {new - 5:.1f}l5 5l-5 5l-5 -5z"/></g>'
        )
    return _plot("paired", f"{count} held-out rows: baseline (circle) and candidate (diamond)", parts)


def latency_plot(rounds: Sequence[tuple[str, CanaryRound]], limit_ms: int | None) -> str:
    """A bar for each answer of the canaries, by phase and condition; what is allowed as a line."""
    bars = [(phase, told, time) for phase, told in rounds for time in told.latency_ms]
    longest = max(time for _, _, time in bars)
    # A limit far above everything would leave no room for the bars.
    shown = limit_ms is not None and limit_ms <= 4 * max(longest, 1)
    frame = _Frame((-0.5, len(bars) - 0.5), (0, max(longest, limit_ms or 0) if shown else longest))
    parts = frame.grid("ms")
    width = min(36.0, 0.7 * (frame.x(1) - frame.x(0)))
    for index, (phase, told, time) in enumerate(bars):
        kind = "p-idle" if told.condition == "idle" else "p-loaded"
        top = frame.y(time)
        parts.append(
            f'<rect class="bar {kind}" x="{frame.x(index) - width / 2:.1f}" y="{top:.1f}" '
            f'width="{width:.1f}" height="{max(1.0, frame.y(0) - top):.1f}">'
            f"<title>{safe(phase)}, {safe(told.condition)}: {time} ms</title></rect>"
        )
    at = 0
    for phase, told in rounds:
        middle = at + (len(told.latency_ms) - 1) / 2
        parts.append(frame.label(middle, f"{phase}, {told.condition}"))
        at += len(told.latency_ms)
    if shown and limit_ms is not None:
        y = frame.y(limit_ms)
        parts.append(f'<line class="p-limit" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    allowed = "" if limit_ms is None else f"; at most {limit_ms} ms are allowed"
    return _plot("latency", f"Latency of the canary's answers{allowed}", parts)


def phases_plot(phases: Sequence[PhaseView], now_ms: int) -> str:
    """The phases in time; short ones keep a visible width."""
    drawn = [(view, *_times(view, now_ms)) for view in phases if view.started_unix_ms is not None]
    if not drawn:
        return ""
    instants = [time for _, start, end in drawn for time in (start, end)]
    axis = axis_of(instants, narrowest=_WIDTH, widest=_WIDTH, margin=_LEFT + 30.0)
    parts = []
    for index, (view, start, end) in enumerate(drawn):
        y = _TOP + index * _ROW
        left, right = axis.at(start), axis.at(end)
        words = f"{view.phase.value} {view.standing.value}: {stamp(start)}, {span(max(0, end - start))}"
        parts.append(
            f'<text class="end" x="{_LEFT + 20}" y="{y + 14}">{view.phase.value}</text>'
            f'<rect class="phase p-{view.standing.value}" x="{left:.1f}" y="{y + 3}" '
            f'width="{max(_NARROWEST, right - left):.1f}" height="{_ROW - 8}">'
            f"<title>{safe(words)}</title></rect>"
            f'<text class="tick" x="{max(right, left + _NARROWEST) + 4:.1f}" y="{y + 14}">'
            f"{span(max(0, end - start))}</text>"
        )
    title = "Phases in their order; longer stretches of time are drawn shorter"
    return _plot("phases", title, parts, height=2 * _TOP + len(drawn) * _ROW)


def _times(view: PhaseView, now_ms: int) -> tuple[int, int]:
    start = view.started_unix_ms or 0
    return start, max(start, view.ended_unix_ms if view.ended_unix_ms is not None else now_ms)
