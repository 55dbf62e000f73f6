"""Writes that take less than they are given: said or not, cut by a limit, with a fault in between."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from crash_failure import RECORD, fail, failures_of
from crash_process import KILL, Call, Launcher, boundaries
from crash_scene import recorded, scene
from crash_sweep import TIMEOUT_S, Run, met, require_clean, struck, sweep
from journal_support import KEY, open_store, record_file, resume

from ticket_agent.exits import Exit
from ticket_agent.journal.transitions import State
from ticket_agent.journal.view import read_journal, verify

if TYPE_CHECKING:
    from pathlib import Path

SHORT = 400
"""Bytes of one write; a record takes two to seven of them."""
LIMIT = 80
"""Most runs of one sweep unless all are asked for."""
ERRORS = ("EIO", "ENOSPC")
AMPLE = 160 * 1024
"""More than the agent reserves for one ticket."""


# -- writes that lie -----------------------------------------------------------------------------------------


def _lie(launcher: Launcher, home: Path, call: Call, how: str, then: str = "") -> Run:
    """A write that reports what it did not store.

    Args:
        how: ``byte`` or ``half`` of the data are reported once, or ``always`` one byte from then on, so that
            files stay empty.
        then: one more fault, as the tracer takes it.
    """
    taken = call.answer // 2 if how == "half" else 1
    with scene("grant", home) as stage:
        when = f"{call.ordinal}{'+' if how == 'always' else ''}"
        inject = f"{call.name}:retval={taken}:when={when} {then}"
        life = launcher.once(stage.state_dir, stage.server.port, inject=inject)
        hit = struck(life, call)
        lives = stage.recover(launcher)
        found = stage.oracle.verdict(lied_to=True)
        quarantined = stage.oracle.quarantined
        damaged = any(not verdict.ok for verdict in verify(stage.state_dir))
        if lives[-1].code != (Exit.DEGRADED if damaged else Exit.OK):
            found.append(f"exit code {lives[-1].code} with {quarantined}: {lives[-1].output}")
        if (then or (how == "always" and RECORD in call.what)) and not quarantined:
            found.append("the damaged record went unnoticed")
        return Run(hit, found)


def _writes(calls: tuple[Call, ...]) -> list[Call]:
    return [call for call in boundaries(calls) if call.owned and call.name == "write"]


def test_a_write_that_lies(launchers: list[Launcher], workspace: Path) -> None:
    """The digest finds it; a damaged record is never executed, overwritten or published."""
    writes = _writes(recorded(launchers[0], "grant", workspace / "recording").calls)
    assert len(writes) == 6
    points = [(call, how) for call in writes for how in ("byte", "half", "always")]
    report = sweep(
        "a write that stores less than it says",
        points,
        lambda launcher, home, point: _lie(launcher, home, *point),
        launchers=launchers,
        tmp=workspace,
        limit=len(points),
        faults=("a byte too few", "half too few", "nothing stored"),
        shown=lambda point: f"{point[1]} at {point[0].label}",
    )
    require_clean(report)


def test_a_damaged_record_is_not_executed_again(launchers: list[Launcher], workspace: Path) -> None:
    """Death right after each damaged write became the record's name."""
    calls = recorded(launchers[0], "grant", workspace / "recording").calls
    points = [call for call in calls if call.name == "write" and RECORD in call.what]

    def lie_and_die(launcher: Launcher, home: Path, call: Call) -> Run:
        behind = calls[calls.index(call) :]
        synced = next(later for later in behind if later.name == "fsync" and later.what == "state/ops")
        after = next(later for later in behind[behind.index(synced) + 1 :] if later in boundaries((later,)))
        # What was left out by the lie is written by a call of its own.
        ordinal = after.ordinal + (after.name == "write")
        return _lie(launcher, home, call, "byte", f"{after.name}:{KILL}:when={ordinal}")

    report = sweep(
        "a write that lies, then death",
        points,
        lie_and_die,
        launchers=launchers,
        tmp=workspace,
        limit=len(points),
        faults=("a byte too few and SIGKILL",),
        shown=lambda point: point.label,
    )
    require_clean(report)


# -- short writes that say so --------------------------------------------------------------------------------


@pytest.mark.timeout(TIMEOUT_S)
def test_death_between_short_writes(launchers: list[Launcher], workspace: Path) -> None:
    points = _writes(recorded(launchers[0], "grant", workspace / "recording", short=SHORT).calls)
    assert len(points) > 20

    def kill(launcher: Launcher, home: Path, point: Call) -> Run:
        with scene("grant", home) as stage:
            inject = f"{point.name}:{KILL}:when={point.ordinal}"
            dead = launcher.once(stage.state_dir, stage.server.port, inject=inject, short=SHORT)
            lives = stage.recover(launcher)
            found = stage.oracle.verdict()
            if not stage.oracle.settled() or lives[-1].code != 0:
                found.append(f"not settled: {lives[-1].code} {lives[-1].output}")
            return Run(met(dead, point), found)

    report = sweep(
        "death between short writes",
        points,
        kill,
        launchers=launchers,
        tmp=workspace,
        limit=LIMIT,
        shown=lambda point: point.label,
    )
    require_clean(report)


@pytest.mark.timeout(TIMEOUT_S)
def test_a_failure_between_short_writes(launchers: list[Launcher], workspace: Path) -> None:
    """As a disk fails or fills up: in the middle of a file."""
    calls = recorded(launchers[0], "grant", workspace / "recording", short=SHORT).calls
    failures = [it for it in failures_of(calls, ERRORS, (False, True)) if it.call.name == "write"]
    report = sweep(
        "failure between short writes",
        failures,
        lambda launcher, home, failure: fail(launcher, "grant", home, failure, short=SHORT),
        launchers=launchers,
        tmp=workspace,
        limit=LIMIT,
        faults=tuple(f"short write, then {error}{more}" for error in ERRORS for more in ("", "+")),
        shown=lambda failure: failure.label,
    )
    require_clean(report)


@pytest.mark.timeout(TIMEOUT_S)
def test_the_kernel_cuts_a_write_short(launchers: list[Launcher], workspace: Path) -> None:
    """A limit on the size of files lets a write take a part, and refuses the rest: that poisons."""
    written = [
        call.answer for call in _writes(recorded(launchers[0], "grant", workspace / "recording").calls)
    ]
    records = written[:5]
    assert records == sorted(records)
    shorter = [100, *records]
    points = [
        (number, limit)
        for number in range(5)
        for limit in (shorter[number] + 1, (shorter[number] + records[number]) // 2, records[number] - 1)
        if limit < records[number]
    ]

    def cut(launcher: Launcher, home: Path, point: tuple[int, int]) -> Run:
        number, limit = point
        with scene("grant", home) as stage:
            _reserve_amply(stage.state_dir)
            life = launcher.once(stage.state_dir, stage.server.port, file_limit=limit)
            found = [] if life.code == Exit.POISONED else [f"exit code {life.code}"]
            # Neither `prepared` nor `executing` was stored: nothing may have been dispatched.
            if stage.oracle.effects() != (number > 1):
                found.append(f"{stage.oracle.effects()} effects")
            lives = stage.recover(launcher)
            found += stage.oracle.verdict()
            if not stage.oracle.settled() or lives[-1].code != 0:
                found.append(f"not repaired: {lives[-1].code} {lives[-1].output}")
            return Run(hit=True, violations=found)

    report = sweep(
        "a write cut short by the kernel",
        points,
        cut,
        launchers=launchers,
        tmp=workspace,
        limit=len(points),
        faults=("EFBIG",),
        shown=lambda point: f"record {point[0]}, {point[1]} bytes",
    )
    require_clean(report)


def _reserve_amply(state_dir: Path) -> None:
    """Space as an earlier life would have left it, so that the limit strikes records only."""
    state_dir.mkdir(mode=0o700)
    fd = os.open(state_dir / "reserve", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(fd, 0, AMPLE)
    finally:
        os.close(fd)


@pytest.mark.parametrize("most", [1, 7, 4096])
def test_short_writes_are_continued(workspace: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """The system may take fewer bytes than it is given; the file is whole all the same."""
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, memoryview(data)[:most]))
        with open_store(workspace / "short") as store:
            assert resume(store).state is State.TERMINAL
    with open_store(workspace / "whole") as store:
        resume(store)
    assert all(verdict.ok for verdict in verify(workspace / "short"))
    assert KEY in read_journal(workspace / "short").records
    assert record_file(workspace / "short").read_bytes() == record_file(workspace / "whole").read_bytes()
