"""SIGKILL before every system call of `snapshots publish`, then a plain restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crash_process import KILL, boundaries
from crash_snapshots import PROVIDERS, recorded, snapshot_scene
from crash_sweep import TIMEOUT_S, Run, met, require_clean, sweep

if TYPE_CHECKING:
    from pathlib import Path

    from crash_process import Call, Launcher

LEAST_CHANGES = 12
"""Calls of a first publication that change the state directory; fewer would mean that they are not seen."""
CHANGES = frozenset({"mkdir", "mkdirat", "write", "fsync", "rename", "renameat", "renameat2", "flock"})


def _kill(launcher: Launcher, home: Path, point: Call, *, used: bool) -> Run:
    with snapshot_scene(launcher, home, used=used) as scene:
        before = len(scene.taken)
        dead = scene.publish(launcher, PROVIDERS[0], inject=f"{point.name}:{KILL}:when={point.ordinal}")
        again = scene.publish(launcher)
        found = scene.wrong()
        if again.code != 0 or "Traceback" in again.output:
            found.append(f"the restart ended with {again.code}: {again.output}")
        last = {provider: scene.status(provider).sequence for provider in PROVIDERS}
        restarted = scene.taken[-len(PROVIDERS) :]
        if sorted(last.values()) != [number for number, _, _ in restarted]:
            found.append(f"the receiver shows {last} after {scene.taken}")
        if len(scene.taken) < before + len(PROVIDERS):
            found.append(f"the restart published too little: {scene.taken}")
        return Run(met(dead, point), found)


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("used", [False, True], ids=["first", "again"])
def test_death_before_every_call(launchers: list[Launcher], workspace: Path, used: bool) -> None:
    """None is left out: numbers never repeat, never go back, and nobody has to put anything right."""
    calls = boundaries(recorded(launchers[0], workspace / "recording", used=used).calls)
    changes = [call for call in calls if call.owned and call.name in CHANGES]
    assert used or len(changes) >= LEAST_CHANGES, [call.label for call in changes]
    report = sweep(
        f"death, snapshots publish, {'again' if used else 'first'}",
        calls,
        lambda launcher, home, point: _kill(launcher, home, point, used=used),
        launchers=launchers,
        tmp=workspace / "runs",
        limit=len(calls),
        shown=lambda point: point.label,
    )
    require_clean(report)
