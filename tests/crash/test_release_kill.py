"""SIGKILL of the agent at every durable step of a whole release, then a plain restart."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from crash_report import NOTES, SWEEPS, Sweep
from crash_sweep import EVERYTHING, TIMEOUT_S, sampled
from release_bench import benched
from release_cell import Player
from release_cells import Cell

from ticket_agent.peft.release.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from release_cells import Name

LIMIT = 8
"""Most steps that are visited unless all are asked for; half of them are."""
LEAST = 150
"""How many there are at least; fewer would mean that they are not seen."""
ALLOWED: tuple[Name, ...] = ("succeeded", "failed", "recovered")
"""What was dispatched and never begun is not begun later."""
CELL = Cell(phase=Phase.VALIDATE, name="agent-unbegun")


@pytest.fixture(scope="module")
def player(memory: Path) -> Iterator[Player]:
    with benched(memory / "kill") as bench:
        yield Player(bench)


@pytest.mark.timeout(TIMEOUT_S)
def test_death_before_every_durable_step(player: Player) -> None:
    bench, ticket = player.bench, player.tickets["train"]
    bench.back_to(bench.clean)
    assert bench.run(ticket, calls=-1) == 0, bench.output()
    calls = (bench.talk / "calls").read_text(encoding="utf-8").splitlines()
    assert len(calls) >= LEAST, calls
    report = Sweep(name="death of an agent, peft.release", faults=("SIGKILL",), possible=len(calls))
    SWEEPS.append(report)
    ends: Counter[str] = Counter()
    began = time.monotonic()
    for number in sampled(range(len(calls)), LIMIT):
        bench.back_to(bench.clean)
        label = f"{number} {calls[number]}"
        status = bench.run(ticket, calls=number)
        report.runs += 1
        if status != -9:
            report.missed.append(label)
        else:
            status = bench.run(ticket)
        report.violations += [f"{label}: {text}" for text in player.judge_any(CELL, status, ALLOWED)]
        record = bench.end()
        ends["none" if record is None else record.state.value] += 1
    report.seconds = time.monotonic() - began
    NOTES.append(f"{report.name}: ends {dict(ends)}")
    print(report.line())
    assert not report.violations, "\n".join(report.violations)
    assert len(report.missed) <= max(1, report.runs // 20), report.missed
    assert ends["succeeded"] * 2 > report.runs or not EVERYTHING
