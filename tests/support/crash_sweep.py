"""Doing something at every boundary of a recording, on as many launchers as there are."""

from __future__ import annotations

import os
import queue
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from crash_report import SWEEPS, Sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from crash_process import Call, Launcher, Life

_T = TypeVar("_T")

EVERYTHING = os.environ.get("TICKET_AGENT_CRASH") == "all"
TIMEOUT_S = 3600 if EVERYTHING else 300
"""Of one sweep."""
SHARE = 0.35
"""Part of the limit that is visited where there are more points than that."""
SEED = 4711
ATTEMPTS = 3


@dataclass(frozen=True)
class Run:
    """One run's end: whether the boundary was met, and what was wrong."""

    hit: bool
    violations: list[str]


def sampled(points: Sequence[_T], limit: int) -> list[_T]:
    """All points, or evenly spread ones with a fixed offset when there are more than ``limit``."""
    if EVERYTHING or len(points) <= limit:
        return list(points)
    limit = max(1, round(limit * SHARE))
    stride = len(points) / limit
    offset = random.Random(SEED).random() * stride
    return [points[int(offset + index * stride)] for index in range(limit)]


def sweep(
    name: str,
    points: Sequence[_T],
    run: Callable[[Launcher, Path, _T], Run],
    *,
    launchers: Sequence[Launcher],
    tmp: Path,
    limit: int,
    faults: tuple[str, ...] = ("SIGKILL",),
    shown: Callable[[_T], str] = str,
) -> Sweep:
    """Run every point, or a sample; a run that misses its boundary is repeated.

    Args:
        name: where the points are.
        points: every boundary, once for each of ``faults``.
        run: does one of them.
        launchers: one for each run at a time.
        tmp: for the homes of the runs; those of clean runs are removed.
        limit: most runs unless all are asked for.
        faults: what is done at each boundary.
        shown: a point in words.
    """
    report = Sweep(name=name, faults=faults, possible=len(points))
    SWEEPS.append(report)
    free: queue.SimpleQueue[Launcher] = queue.SimpleQueue()
    for launcher in launchers:
        free.put(launcher)

    def one(numbered: tuple[int, _T]) -> Run:
        number, point = numbered
        launcher = free.get()
        try:
            for attempt in range(ATTEMPTS):
                home = tmp / f"run-{number}-{attempt}"
                found = run(launcher, home, point)
                if found.hit or found.violations:
                    break
                shutil.rmtree(home, ignore_errors=True)
        finally:
            free.put(launcher)
        if not found.violations:
            shutil.rmtree(home, ignore_errors=True)
        return Run(found.hit, [f"{shown(point)}: {text}" for text in found.violations])

    started = time.monotonic()
    with ThreadPoolExecutor(max_workers=len(launchers)) as pool:
        chosen = sampled(points, limit)
        for point, found in zip(chosen, pool.map(one, enumerate(chosen)), strict=True):
            report.runs += 1
            if not found.hit:
                report.missed.append(shown(point))
            report.violations += found.violations
    report.seconds = time.monotonic() - started
    print(report.line())
    return report


def require_clean(report: Sweep) -> None:
    """The assertion of every sweep."""
    assert not report.violations, "\n".join([report.line(), *report.violations])
    assert report.runs > 0
    # A run that met another boundary was judged as well; but a sweep that aims past everything proves little.
    assert len(report.missed) <= max(1, report.runs // 20), "\n".join([report.line(), *report.missed])


def met(life: Life, point: Call) -> bool:
    """Whether a killed process died at the call that was meant."""
    return life.killed and bool(life.calls) and same_boundary(life.calls[-1], point)


def struck(life: Life, point: Call) -> bool:
    """Whether the first call that failed was the one that was meant."""
    first = next((call for call in life.calls if call.injected), None)
    return first is not None and same_boundary(first, point)


def same_boundary(found: Call, meant: Call) -> bool:
    return (found.name, found.what, found.nth) == (meant.name, meant.what, meant.nth)
