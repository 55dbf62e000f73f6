"""SIGKILL before every system call of the PEFT actions, also inside a copy, then a plain restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crash_peft import PEFT_SCENES, peft_scene, recorded_peft
from crash_process import KILL, Call, Launcher, Life, boundaries
from crash_scene import Scene, as_meant, same_twice
from crash_sweep import TIMEOUT_S, Run, met, require_clean, sweep

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 14
"""Most boundaries of a scene that are visited, beside those that change a root, unless all are asked for."""
CHANGES = frozenset({"write", "fsync", "rename", "renameat", "renameat2", "mkdirat", "unlinkat"})
LEAST = {"export": 10, "import": 15, "activate": 8, "rollback": 8}
"""How many there are at least; fewer would mean that the recording does not see them."""


def _die(launcher: Launcher, stage: Scene, point: Call) -> Life:
    inject = f"{point.name}:{KILL}:when={point.ordinal}"
    return launcher.once(stage.state_dir, stage.server.port, inject=inject, options=stage.options)


def _recovered(stage: Scene, launcher: Launcher, dead: Life) -> list[str]:
    lives = stage.recover(launcher)
    found = stage.oracle.verdict()
    if not stage.oracle.settled():
        found.append(f"not settled after {len(lives)} lives: {lives[-1].output}")
    if lives[-1].code != 0:
        found.append(f"the last life ended with {lives[-1].code}: {lives[-1].output}")
    if any("Traceback" in life.output for life in [dead, *lives]):
        found.append("a life ended with a traceback")
    return found


def _kill(launcher: Launcher, kind: str, home: Path, point: Call) -> Run:
    with peft_scene(kind, home) as stage:
        dead = _die(launcher, stage, point)
        return Run(met(dead, point), _recovered(stage, launcher, dead))


def _changes(calls: list[Call]) -> list[Call]:
    return [call for call in calls if call.what.startswith("roots") and call.name in CHANGES]


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("kind", PEFT_SCENES)
def test_death_before_every_call(launchers: list[Launcher], workspace: Path, kind: str) -> None:
    """Of the calls that change a root none is left out; of all other ones there is a sample."""
    calls = boundaries(recorded_peft(launchers[0], kind, workspace / "recording").calls)
    changes = _changes(calls)
    assert len(changes) >= LEAST[kind], [call.label for call in changes]
    others = [call for call in calls if call not in changes]
    for name, points, limit in (("changes", changes, len(changes)), ("other calls", others, LIMIT)):
        report = sweep(
            f"death, peft.{kind}, {name}",
            points,
            lambda launcher, home, point: _kill(launcher, kind, home, point),
            launchers=launchers,
            tmp=workspace / name,
            limit=limit,
            shown=lambda point: point.label,
        )
        require_clean(report)


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("kind", PEFT_SCENES)
def test_death_during_recovery(launchers: list[Launcher], workspace: Path, kind: str) -> None:
    """The first life dies right before the rename that counts, the second one before each of its calls."""
    first = _changes(boundaries(recorded_peft(launchers[0], kind, workspace / "recording").calls))
    counts = [call for call in first if call.name.startswith("rename")][-1]

    def kill(launcher: Launcher, home: Path, point: Call) -> Run:
        with peft_scene(kind, home) as stage:
            if not met(_die(launcher, stage, counts), counts):
                return Run(hit=False, violations=[])
            dead = _die(launcher, stage, point)
            return Run(met(dead, point), _recovered(stage, launcher, dead))

    def observe(home: Path) -> Life | None:
        with peft_scene(kind, home) as stage:
            if not met(_die(launchers[0], stage, counts), counts):
                return None
            life = launchers[0].once(stage.state_dir, stage.server.port, traced=True, options=stage.options)
            assert stage.oracle.settled()
            assert stage.oracle.verdict() == []
            # A half commit is finished; a tree that was not published is removed.
            assert stage.oracle.effects() == (kind in {"activate", "rollback"})
        return life

    calls = boundaries(same_twice(lambda home: as_meant(observe, home), workspace / "second").calls)
    changes = _changes(calls)
    assert changes
    others = [call for call in calls if call not in changes]
    for name, points, limit in (("changes", changes, len(changes)), ("other calls", others, LIMIT)):
        report = sweep(
            f"death during recovery, peft.{kind}, {name}",
            points,
            kill,
            launchers=launchers,
            tmp=workspace / name,
            limit=limit,
            shown=lambda point: point.label,
        )
        require_clean(report)
