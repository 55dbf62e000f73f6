"""A failing call at every boundary under the state directory of a real agent, then repair and restart."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from crash_process import KILL, Call, Launcher, Life, boundaries
from crash_scene import SCENES, Scene, recorded, scene
from crash_sweep import TIMEOUT_S, Run, require_clean, struck, sweep
from journal_support import KEY, open_store, record_file, resume

from ticket_agent.exits import Exit
from ticket_agent.journal.transitions import State
from ticket_agent.journal.view import read_journal, verify

if TYPE_CHECKING:
    from ticket_agent.journal.values import Record

ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EROFS")
FULL = frozenset({"ENOSPC", "EDQUOT"})
RECORD = ".rec"
LIMIT = {"grant": 160, "renew": 60, "release": 60, "two-lanes": 80}
"""Most failures of one scene that are tried unless all are asked for."""

OK = frozenset({int(Exit.OK)})
POISONED = frozenset({int(Exit.POISONED)})
START_UP = frozenset({int(Exit.OK), int(Exit.FAILURE), int(Exit.DEGRADED)})


@dataclass(frozen=True)
class Failure:
    """One call that fails, once or from then on, and what the recording knows about its place.

    Attributes:
        call: the one that fails.
        error: name of the error number.
        persistent: every later call of the same name fails too.
        effects: how many effects were dispatched before it.
        started: the agent had begun to talk to the hive.
        outcome: the file being written holds what became of an effect.
    """

    call: Call
    error: str
    persistent: bool
    effects: int
    started: bool
    outcome: bool

    @property
    def label(self) -> str:
        return f"{self.error}{'+' if self.persistent else ''} at {self.call.label}"

    @property
    def inject(self) -> str:
        when = f"{self.call.ordinal}{'+' if self.persistent else ''}"
        return f"{self.call.name}:error={self.error}:when={when}"

    @property
    def full(self) -> bool:
        return self.error in FULL

    @property
    def of_a_record(self) -> bool:
        """A step of writing a record, from creating its temporary to syncing its directory."""
        return RECORD in self.call.what or (self.call.name == "fsync" and self.call.what == "state/ops")

    def codes(self) -> frozenset[int]:
        """Exit codes that are right for it."""
        what, name = self.call.what, self.call.name
        if not self.started:
            if self.persistent:
                return START_UP | POISONED
            if what == "state/reserve" and not self.full:
                return POISONED
            return START_UP
        if name == "unlinkat":
            # The second name of a new record is only litter.
            return OK
        if self.of_a_record or what.startswith("state/cursor.json") or name == "fsync":
            waits = self.full and name == "openat" and not self.outcome
            return OK if waits else POISONED
        if what == "state/reserve":
            if self.full and self.persistent and name == "close":
                # What is waited for here poisons where a later file's descriptor cannot be closed.
                return OK | POISONED
            return OK if self.full else POISONED
        return OK


def _failures(calls: tuple[Call, ...], errors: tuple[str, ...], modes: tuple[bool, ...]) -> list[Failure]:
    found = []
    effects = 0
    executing: set[str] = set()
    renamed: list[str] = []
    for call in calls:
        effects += call.is_effect
        if call.is_effect:
            executing.add(renamed[-1])
        if call.name == "renameat":
            renamed.append(call.what)
        if call not in boundaries((call,)) or not call.owned:
            continue
        started = any(other.remote for other in calls[: calls.index(call)])
        outcome = call.what.removesuffix(".tmp") in executing
        found += [
            Failure(
                call=call,
                error=error,
                persistent=persistent,
                effects=effects,
                started=started,
                outcome=outcome,
            )
            for error in errors
            for persistent in modes
        ]
    return found


def _fail(launcher: Launcher, kind: str, home: Path, failure: Failure) -> Run:
    with scene(kind, home) as stage:
        life = launcher.once(stage.state_dir, stage.server.port, inject=failure.inject)
        hit = struck(life, failure.call)
        found = _judged(stage, life, failure) if hit else []
        lives = stage.recover(launcher)
        found += stage.oracle.verdict()
        if not stage.oracle.settled() or lives[-1].code != 0:
            found.append(f"not repaired: {lives[-1].code} {lives[-1].output}")
        if "Traceback" in life.output:
            found.append(f"a traceback: {life.output}")
        return Run(hit, found)


def _judged(stage: Scene, life: Life, failure: Failure) -> list[str]:
    """What the disturbed life itself must have done."""
    found = []
    if life.code not in failure.codes():
        found.append(f"exit code {life.code}: {life.output}")
    if life.code == Exit.POISONED:
        if stage.oracle.effects() != failure.effects:
            found.append(f"{stage.oracle.effects()} effects, {failure.effects} before the failure")
        if not failure.full:
            found += _written_after(life)
    elif not failure.outcome and failure.full and failure.of_a_record and failure.call.name == "openat":
        found += _waits(stage, failure)
    if (
        failure.full
        and failure.outcome
        and not failure.persistent
        and failure.call.name in ("openat", "write")
    ):
        found += [
            f"outcome lost: {record.state}" for record in _records(stage) if record.state is State.EXECUTING
        ]
    return found


def _written_after(life: Life) -> list[str]:
    """Nothing is put into the journal and nothing is told to the hive after a failure that leaves doubt."""
    at = next(index for index, call in enumerate(life.calls) if call.injected)
    return [
        f"after the failure: {call.label}"
        for call in life.calls[at + 1 :]
        if (call.owned and call.name in ("write", "linkat", "renameat"))
        or (call.name == "sendto" and "ECHO" in call.what)
    ]


def _waits(stage: Scene, failure: Failure) -> list[str]:
    """A disk that is full before the dispatch: the ticket is not begun, or waits in prepared."""
    file = Path(failure.call.what).name.removesuffix(".tmp")
    found = [
        f"went on to {record.state} on a full disk"
        for record in _records(stage)
        if record.name == file and record.state is not State.PREPARED
    ]
    if failure.persistent and stage.oracle.effects() != failure.effects:
        found.append(f"{stage.oracle.effects()} effects on a full disk")
    return found


def _records(stage: Scene) -> list[Record]:
    return list(read_journal(stage.state_dir).records.values())


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("kind", LIMIT)
def test_a_failing_call(launchers: list[Launcher], tmp_path: Path, kind: str) -> None:
    calls = recorded(launchers[0], kind, tmp_path / "recording").calls
    failures = _failures(calls, ERRORS, (False, True))
    assert len(failures) > 500
    assert {failure.effects for failure in failures} == set(range(len(SCENES[kind]) + 1))
    report = sweep(
        f"failing calls, {kind}",
        failures,
        lambda launcher, home, failure: _fail(launcher, kind, home, failure),
        launchers=launchers,
        tmp=tmp_path,
        limit=LIMIT[kind],
        faults=tuple(f"{error}{more}" for error in ERRORS for more in ("", "+")),
        shown=lambda failure: failure.label,
    )
    require_clean(report)


@pytest.mark.timeout(TIMEOUT_S)
def test_a_failed_step_of_a_record_poisons(launchers: list[Launcher], tmp_path: Path) -> None:
    """Every one of them, not a sample: fsync, write and close of a record, and the fsync of its directory."""
    calls = recorded(launchers[0], "grant", tmp_path / "recording").calls
    failures = [
        failure
        for failure in _failures(calls, ("EIO",), (False, True))
        if failure.of_a_record and failure.call.name in ("fsync", "write", "close")
    ]
    assert len(failures) == 4 * 5 * 2
    assert all(failure.codes() == POISONED for failure in failures)
    report = sweep(
        "write, fsync and close of records",
        failures,
        lambda launcher, home, failure: _fail(launcher, "grant", home, failure),
        launchers=launchers,
        tmp=tmp_path,
        limit=len(failures),
        faults=("EIO", "EIO+"),
        shown=lambda failure: failure.label,
    )
    require_clean(report)


def _lie(launcher: Launcher, home: Path, call: Call, then: str = "") -> Run:
    """A write that reports one byte and stores none: the file lacks its first byte."""
    with scene("grant", home) as stage:
        inject = f"{call.name}:retval=1:when={call.ordinal} {then}"
        life = launcher.once(stage.state_dir, stage.server.port, inject=inject)
        hit = struck(life, call)
        lives = stage.recover(launcher)
        found = stage.oracle.verdict(lied_to=True)
        quarantined = stage.oracle.quarantined
        damaged = any(not verdict.ok for verdict in verify(stage.state_dir))
        if lives[-1].code != (Exit.DEGRADED if damaged else Exit.OK):
            found.append(f"exit code {lives[-1].code} with {quarantined}: {lives[-1].output}")
        if then and not quarantined:
            found.append("the damaged record went unnoticed")
        return Run(hit, found)


def test_a_write_that_lies(launchers: list[Launcher], tmp_path: Path) -> None:
    """The digest finds it; a damaged record is never executed, overwritten or published."""
    calls = recorded(launchers[0], "grant", tmp_path / "recording").calls
    points = [call for call in boundaries(calls) if call.owned and call.name == "write"]
    assert len(points) == 6
    report = sweep(
        "a write that stores less than it says",
        points,
        _lie,
        launchers=launchers,
        tmp=tmp_path,
        limit=len(points),
        shown=lambda point: point.label,
    )
    require_clean(report)


def test_a_damaged_record_is_not_executed_again(launchers: list[Launcher], tmp_path: Path) -> None:
    """Death right after each damaged write became the record's name."""
    calls = recorded(launchers[0], "grant", tmp_path / "recording").calls
    points = [call for call in calls if call.name == "write" and RECORD in call.what]

    def lie_and_die(launcher: Launcher, home: Path, call: Call) -> Run:
        behind = calls[calls.index(call) :]
        synced = next(later for later in behind if later.name == "fsync" and later.what == "state/ops")
        after = next(later for later in behind[behind.index(synced) + 1 :] if later in boundaries((later,)))
        # What was left out by the lie is written by a call of its own.
        ordinal = after.ordinal + (after.name == "write")
        return _lie(launcher, home, call, f"{after.name}:{KILL}:when={ordinal}")

    report = sweep(
        "a write that lies, then death",
        points,
        lie_and_die,
        launchers=launchers,
        tmp=tmp_path,
        limit=len(points),
        shown=lambda point: point.label,
    )
    require_clean(report)


@pytest.mark.parametrize("most", [1, 7, 4096])
def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """The system may take fewer bytes than it is given; the file is whole all the same."""
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, memoryview(data)[:most]))
        with open_store(tmp_path / "short") as store:
            assert resume(store).state is State.TERMINAL
    with open_store(tmp_path / "whole") as store:
        resume(store)
    assert all(verdict.ok for verdict in verify(tmp_path / "short"))
    assert KEY in read_journal(tmp_path / "short").records
    assert record_file(tmp_path / "short").read_bytes() == record_file(tmp_path / "whole").read_bytes()
