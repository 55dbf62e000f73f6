"""SIGKILL before every system call that matters of a real agent process, then a plain restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crash_process import KILL, Call, Launcher, Life, boundaries
from crash_scene import SCENES, Scene, as_meant, recorded, same_twice, scene
from crash_sweep import TIMEOUT_S, Run, met, require_clean, sweep

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = {
    "grant": 160,
    "renew": 50,
    "release": 50,
    "two-lanes": 70,
    "again": 50,
    "v1-grant": 50,
    "v1-renew": 30,
    "v1-release": 30,
    "recovery": 50,
}
"""Most boundaries of each scene that are visited unless all are asked for."""


def _recovered(stage: Scene, launcher: Launcher, dead: Life) -> list[str]:
    lives = stage.recover(launcher)
    found = stage.oracle.verdict()
    if not stage.oracle.settled():
        found.append(f"not settled after {len(lives)} lives: {lives[-1].output}")
    if lives[-1].code != stage.oracle.exit_code():
        found.append(f"the last life ended with {lives[-1].code}: {lives[-1].output}")
    if any("Traceback" in life.output for life in [dead, *lives]):
        found.append("a life ended with a traceback")
    return found


def _kill(launcher: Launcher, kind: str, home: Path, point: Call) -> Run:
    with scene(kind, home) as stage:
        inject = f"{point.name}:{KILL}:when={point.ordinal}"
        dead = launcher.once(stage.state_dir, stage.server.port, inject=inject)
        return Run(met(dead, point), _recovered(stage, launcher, dead))


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("kind", SCENES)
def test_death_before_every_call(launchers: list[Launcher], workspace: Path, kind: str) -> None:
    points = boundaries(recorded(launchers[0], kind, workspace / "recording").calls)
    assert len(points) > 80
    assert sum(point.is_effect for point in points) == (1 if kind == "again" else len(SCENES[kind]))
    report = sweep(
        f"death, {kind}",
        points,
        lambda launcher, home, point: _kill(launcher, kind, home, point),
        launchers=launchers,
        tmp=workspace,
        limit=LIMIT[kind],
        shown=lambda point: point.label,
    )
    require_clean(report)


def _died_after_the_effect(launcher: Launcher, stage: Scene, calls: tuple[Call, ...]) -> bool:
    """Leave an operation in `executing` with its effect applied, its answer unread; False: it died before."""
    sent = next(index for index, call in enumerate(calls) if call.is_effect)
    answer = next(call for call in calls[sent:] if call.name == "recvfrom")
    inject = f"{answer.name}:{KILL}:when={answer.ordinal}"
    return met(launcher.once(stage.state_dir, stage.server.port, inject=inject), answer)


@pytest.mark.timeout(TIMEOUT_S)
def test_death_during_recovery(launchers: list[Launcher], workspace: Path) -> None:
    """The second life observes what became of the effect; it dies too, before each of its calls."""
    first = recorded(launchers[0], "grant", workspace / "recording").calls

    def kill(launcher: Launcher, home: Path, point: Call) -> Run:
        with scene("grant", home) as stage:
            if not _died_after_the_effect(launcher, stage, first):
                return Run(hit=False, violations=[])
            inject = f"{point.name}:{KILL}:when={point.ordinal}"
            dead = launcher.once(stage.state_dir, stage.server.port, inject=inject)
            return Run(met(dead, point), _recovered(stage, launcher, dead))

    def observe(home: Path) -> Life | None:
        with scene("grant", home) as stage:
            if not _died_after_the_effect(launchers[0], stage, first):
                return None
            life = launchers[0].once(stage.state_dir, stage.server.port, traced=True)
            assert stage.oracle.settled()
            assert stage.oracle.verdict() == []
        return life

    second = same_twice(lambda home: as_meant(observe, home), workspace / "second")
    assert not any(call.is_effect for call in second.calls)
    report = sweep(
        "death during recovery",
        boundaries(second.calls),
        kill,
        launchers=launchers,
        tmp=workspace,
        limit=LIMIT["recovery"],
        shown=lambda point: point.label,
    )
    require_clean(report)


def test_a_launched_agent_makes_the_calls_of_a_new_interpreter(
    launchers: list[Launcher], workspace: Path
) -> None:
    """What the launcher has imported before the fork changes nothing that matters."""

    def start(home: Path) -> Life:
        with scene("grant", home) as stage:
            life = launchers[0].cold(stage.state_dir, stage.server.port)
            assert life.code == 0, life.output
            assert stage.oracle.verdict() == []
        return life

    cold = same_twice(start, workspace / "cold")
    warm = recorded(launchers[0], "grant", workspace / "warm")
    made = [(call.name, call.what) for call in boundaries(cold.calls)]
    assert made == [(call.name, call.what) for call in boundaries(warm.calls)]
