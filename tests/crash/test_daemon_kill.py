"""SIGKILL at the calls of a daemon that serves its hive: while it starts, works, and stops on SIGTERM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crash_process import KILL, Call, Launcher, Life, boundaries
from crash_scene import SCENES, same_twice, scene
from crash_sweep import TIMEOUT_S, Run, met, require_clean, sweep

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = {"grant": 50, "two-lanes": 40, "again": 30}
"""Most boundaries of each scene that are visited unless all are asked for."""


def _is_stop(call: Call) -> bool:
    """The handler of SIGTERM wakes the daemon through a pipe."""
    return call.name == "write" and "<pipe:" in call.line


def _served(launcher: Launcher, kind: str, home: Path, inject: str | None = None) -> Life:
    """A whole life of a daemon."""
    with scene(kind, home) as stage:
        life = launcher.serve(stage.state_dir, stage.server.port, until=stage.served, inject=inject)
        assert life.code == 0, life.output
        assert stage.oracle.settled()
        assert stage.oracle.verdict() == []
    return life


def _stop_at_the_end(life: Life) -> str:
    """SIGTERM at the last sync of a daemon's work: how often it looks afterwards is a matter of time."""
    last = [call for call in life.calls if call.name == "fsync"][-1]
    assert last.what == "state"
    return f"fsync:signal=SIGTERM:when={last.ordinal}"


def _points(life: Life) -> list[Call]:
    """The boundaries of its work and of its end; the one look in between may come or not."""
    calls = life.calls
    last = max(at for at, call in enumerate(calls) if call.name == "fsync")
    stopped = next(at for at, call in enumerate(calls) if _is_stop(call))
    return boundaries(calls[:last]) + [call for call in boundaries(calls[stopped:]) if not call.remote]


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("kind", LIMIT)
def test_death_of_a_daemon(launchers: list[Launcher], workspace: Path, kind: str) -> None:
    stop = _stop_at_the_end(_served(launchers[0], kind, workspace / "first"))
    life = same_twice(lambda home: _served(launchers[0], kind, home, stop), workspace / "recording")
    points = _points(life)
    assert sum(point.is_effect for point in points) == (1 if kind == "again" else len(SCENES[kind]))
    # It leaves its status when it starts and when it stops.
    assert sum(point.name == "renameat" and "agent-status" in point.what for point in points) == 2

    def kill(launcher: Launcher, home: Path, point: Call) -> Run:
        with scene(kind, home) as stage:
            inject = f"{stop} {point.name}:{KILL}:when={point.ordinal}"
            dead = launcher.serve(stage.state_dir, stage.server.port, until=stage.served, inject=inject)
            lives = stage.recover(launcher)
            found = stage.oracle.verdict()
            if not stage.oracle.settled() or lives[-1].code != 0:
                found.append(f"not settled: {lives[-1].code} {lives[-1].output}")
            if any("Traceback" in each.output for each in [dead, *lives]):
                found.append("a life ended with a traceback")
            return Run(met(dead, point), found)

    report = sweep(
        f"death of a daemon, {kind}",
        points,
        kill,
        launchers=launchers,
        tmp=workspace,
        limit=LIMIT[kind],
        shown=lambda point: point.label,
    )
    require_clean(report)
