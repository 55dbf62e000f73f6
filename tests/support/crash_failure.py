"""One failing call of an agent's file system: where, how, and what the agent must make of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crash_process import boundaries
from crash_scene import Scene, scene
from crash_sweep import Run, struck

from ticket_agent.exits import Exit
from ticket_agent.journal.transitions import State
from ticket_agent.journal.view import read_journal

if TYPE_CHECKING:
    from crash_process import Call, Launcher, Life

    from ticket_agent.journal.values import Record

ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EROFS")
"""What a call of a file system fails with."""
FULL = frozenset({"ENOSPC", "EDQUOT"})
RECORD = ".rec"
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


def failures_of(calls: tuple[Call, ...], errors: tuple[str, ...], modes: tuple[bool, ...]) -> list[Failure]:
    """Each error at each call about the state directory; ``modes`` tell whether it persists."""
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


def fail(launcher: Launcher, kind: str, home: Path, failure: Failure, *, short: int | None = None) -> Run:
    """One life with a failure in it, then lives without."""
    with scene(kind, home) as stage:
        life = launcher.once(stage.state_dir, stage.server.port, inject=failure.inject, short=short)
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
