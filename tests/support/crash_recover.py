"""Recovery from one legal crash state: the directory made from it, a hive that took what had been sent."""

from __future__ import annotations

import random
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_faults import APPENDS, DyingAppends, Killed, drop
from agent_support import Bench, agent_on
from crash_log import AgentFs
from crash_scene import SCENES, Scene, scene
from crash_states import APPEND, CrashState, Mode, crash_states
from hive_support import ManualClock

from ticket_agent.journal.atomic import is_temporary
from ticket_agent.journal.cursor import decode_cursor
from ticket_agent.journal.errors import RecordError
from ticket_agent.journal.record import decode_record
from ticket_agent.journal.view import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from journal_support import Op

PATIENCE = 60
"""Passes after which a recovery counts as stuck."""

LATER_MS = 10_000
"""How long after the cut the agent starts again; nothing in the scenes expires by then."""


@dataclass(frozen=True)
class Recording:
    """What an agent did in one scene, and all that is needed to have the same hive again."""

    kind: str
    hive_ms: int
    log: tuple[Op, ...]
    earlier: int = 0
    """Operations of a life that had ended before."""

    @property
    def appends(self) -> list[Op]:
        return [op for op in self.log if op.name == APPEND]

    @property
    def earlier_appends(self) -> int:
        return sum(op.name == APPEND for op in self.log[: self.earlier])


def record_at_the_seam(
    kind: str, tmp: Path, *, lose: Iterable[str] = (), interrupted: bool = False
) -> Recording:
    """One whole life of an agent in this process.

    Args:
        kind: of the scene.
        tmp: a directory that does not exist yet.
        lose: operations of the seam that are forgotten.
        interrupted: the process dies when its effect was applied, and a second one observes and finishes.
    """
    clock, fs = ManualClock(), AgentFs(lose=lose)
    start = clock()
    with scene(kind, tmp, clock=clock, fs=fs) as stage:
        earlier = len(fs.log)
        if interrupted:
            with agent_on(stage.server, stage.state_dir, clock=clock, fs=fs) as bench:
                dying = DyingAppends(bench.namespace, APPENDS.index("effect"), sent=True)
                bench.namespace.append = dying  # type: ignore[method-assign]
                fs.listen(bench.namespace)
                try:
                    bench.passes(1)
                except Killed:
                    drop(bench)
        with agent_on(stage.server, stage.state_dir, clock=clock, fs=fs) as bench:
            fs.listen(bench.namespace)
            bench.settle()
            bench.agent.save_cursor()
        assert stage.oracle.effects() == len(SCENES[kind])
    return Recording(kind=kind, hive_ms=start, log=tuple(fs.log), earlier=earlier)


@contextmanager
def after_cut(recording: Recording, state: CrashState, home: Path) -> Iterator[tuple[Scene, ManualClock]]:
    """The hive as it was at the cut, and the directory as the cut left it."""
    clock = ManualClock(recording.hive_ms)
    with scene(recording.kind, home, clock=clock) as stage:
        for op in recording.appends[recording.earlier_appends : state.appends]:
            stage.hive.echo(op.file, op.data.decode())
        if recording.earlier:
            # The same life of the same hive, but its journal is the recorded one.
            shutil.rmtree(stage.state_dir)
            stage.oracle.forget()
        materialise(state, stage.state_dir)
        clock.advance(LATER_MS)
        yield stage, clock


def materialise(state: CrashState, state_dir: Path) -> None:
    """Make the directory that a state describes."""
    made = {name for _, name in state.folders}
    below = ("ops", "archive", "gaps")
    if not state.folders:
        # A log from the seam begins when the directories are there.
        made = {state_dir.name, *below} if state.files or state.promised else set()
    if state_dir.name not in made:
        return
    state_dir.mkdir(mode=0o700)
    for name in below:
        if name in made:
            (state_dir / name).mkdir(mode=0o700)
    for folder, name, data in state.files:
        directory = state_dir if folder == state_dir.name else state_dir / folder
        if directory.is_dir():
            path = directory / name
            path.touch(mode=0o600)
            path.write_bytes(data)


def broken_promises(state: CrashState, state_dir: Path) -> list[str]:
    """What was durable before the cut and is not there, or not as new, behind it."""
    found = []
    for folder, name, data in state.promised:
        path = state_dir / name if folder == state_dir.name else state_dir / folder / name
        if not path.is_file():
            found.append(f"{name} is gone")
            continue
        try:
            found += _older(name, data, path.read_bytes())
        except RecordError as error:
            found.append(f"{name} is torn: {error}")
    return found


def _older(name: str, then: bytes, now: bytes) -> list[str]:
    if name.endswith(".rec"):
        kept = decode_record(then).history
        return [] if decode_record(now).history[: len(kept)] == kept else [f"{name} went back"]
    was, found = decode_cursor(then), decode_cursor(now)
    return (
        []
        if (was.epoch, was.consumed_sequence) <= (found.epoch, found.consumed_sequence)
        else [f"{name} went back"]
    )


def recover(recording: Recording, state: CrashState, home: Path) -> list[str]:
    """Everything that is wrong with a state and with a real agent that starts on it."""
    with after_cut(recording, state, home) as (stage, clock):
        found = broken_promises(state, stage.state_dir)
        stage.oracle.after_power()
        if stage.state_dir.is_dir():
            found += [f"{bad.file}: {bad.reason}" for bad in verify(stage.state_dir) if not bad.ok]
        with agent_on(stage.server, stage.state_dir, clock=clock) as bench:
            left = [path.name for path in stage.state_dir.rglob(".*") if is_temporary(path.name)]
            found += [f"the temporary {name} is still there" for name in left]
            found += [f"{bad.name} is quarantined" for bad in bench.store.quarantined]
            if bench.store.cursor_problem is not None:
                found.append(f"the cursor cannot be read: {bench.store.cursor_problem}")
            found += _settled(bench, stage.oracle.settled)
        found += stage.oracle.verdict()
        if not stage.oracle.settled():
            found.append("not settled")
    shutil.rmtree(home)
    return found


def _settled(bench: Bench, settled: Callable[[], bool]) -> list[str]:
    try:
        bench.passes(1)
        bench.until(settled, limit=PATIENCE)
    except AssertionError as stuck:
        return [f"stuck: {stuck}"]
    return []


def distinct(recording: Recording, modes: Iterable[Mode]) -> list[CrashState]:
    """Every distinct state under any of the models."""
    return list(
        dict.fromkeys(
            state for mode in modes for state in crash_states(recording.log, mode, since=recording.earlier)
        )
    )


def one_of_each(states: Iterable[CrashState], seed: int) -> list[CrashState]:
    """One state for each content of the files that mean something, with the others as chance has it."""
    groups: dict[object, list[CrashState]] = {}
    for state in states:
        groups.setdefault(state.core, []).append(state)
    chance = random.Random(seed)
    return [chance.choice(group) for group in groups.values()]
