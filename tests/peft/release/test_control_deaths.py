"""A control phase is killed at each place where something changes; rollback repairs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from control_death import DIED
from control_scene import NEW, OLD, ControlScene, scene

from ticket_agent.peft.release.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

DEATH = Path(__file__).parents[2] / "support" / "control_death.py"
RELEASE = "ticket_agent.peft.release"
MOVE = f"{RELEASE}.serving_pointer:PointerFile.move"
SELECT = f"{RELEASE}.control_files:ControlFiles.select_runtime"
ACCEPT = f"{RELEASE}.control_files:ControlFiles.promote"
RESTORE = f"{RELEASE}.control_files:ControlFiles.restore"
SOAK = f"{RELEASE}.soak:Soak.run"
STOP = f"{RELEASE}.known_server:KnownServer.stop"
LEAVE = f"{RELEASE}.job_directory:JobDirectory.leave"
GONE = f"{RELEASE}.server_room:ServerRoom.gone"

PROMOTE = [
    (MOVE, "before"),
    (MOVE, "after"),
    (SELECT, "before"),
    (ACCEPT, "before"),
    (ACCEPT, "after"),
    (SOAK, "after"),
    (STOP, "before"),
    (STOP, "after"),
]
BACK = [(MOVE, "after"), (RESTORE, "after"), (SELECT, "after"), (GONE, "after")]


def names(case: tuple[str, str]) -> str:
    return f"{case[1]} {case[0].rpartition(':')[2]}"


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[ControlScene]:
    """Both serve; the candidate has passed its canary."""
    with scene(tmp_path) as made:
        made.point(made.start_old())
        made.start_new()
        made.ready(OLD, NEW)
        yield made


def died(served: ControlScene, phase: Phase, case: tuple[str, str], **facts: str) -> None:
    job = served.prepare(phase, **facts)
    command = [sys.executable, str(DEATH), phase, str(job), *case, "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == DIED, done.stderr
    assert not (job / "out" / f"{phase}.json").exists()


def incumbent(served: ControlScene) -> str:
    """What the agent names for a rollback: what runs, or a new instance of it."""
    if served.server(OLD).usable():
        return OLD
    return served.start_old("again.server").launch_id


def restored(served: ControlScene) -> None:
    found = served.run(Phase.ROLLBACK, incumbent=incumbent(served))
    assert found.succeeded, found.detail
    assert served.deployed() == (f"g{served.generation}", served.generation, True, True)
    assert served.server(NEW).running() is False


@pytest.mark.parametrize("case", PROMOTE, ids=names)
def test_a_promotion_that_was_killed_is_taken_back(case: tuple[str, str], loaded: ControlScene) -> None:
    with loaded.somebody_asks() as caller:
        died(loaded, Phase.PROMOTE, case)
        restored(loaded)
    assert caller.failures == []


@pytest.mark.parametrize("case", BACK, ids=names)
def test_a_rollback_that_was_killed_is_done_again(case: tuple[str, str], loaded: ControlScene) -> None:
    with loaded.somebody_asks() as caller:
        died(loaded, Phase.PROMOTE, (STOP, "after"))
        died(loaded, Phase.ROLLBACK, case, incumbent=incumbent(loaded))
        again = loaded.room.known("again.server")
        found = loaded.run(Phase.ROLLBACK, incumbent=OLD if again is None else again.launch_id)
    assert found.succeeded, found.detail
    assert loaded.deployed() == ("g1", 1, True, True)
    assert loaded.server(NEW).running() is False
    assert caller.failures == []


@pytest.mark.parametrize("phase", [Phase.LOAD, Phase.CANARY])
def test_a_rollback_before_anything_moved_only_ends_the_candidate(phase: Phase, loaded: ControlScene) -> None:
    died(loaded, phase, (LEAVE, "before"))
    restored(loaded)
    assert loaded.server(OLD).running() is True


@pytest.mark.parametrize("started", [True, False])
def test_a_rollback_repairs_what_a_promotion_left_for_the_base_model(started: bool, tmp_path: Path) -> None:
    with scene(tmp_path, generation=0) as made:
        made.point(made.start_old())
        if started:
            made.start_new()
            made.ready(OLD, NEW)
            died(made, Phase.PROMOTE, (SOAK, "after"))
            restored(made)
        else:
            found = made.run(Phase.ROLLBACK)
            assert found.succeeded, found.detail
            assert found.detail["candidate_gone"] is True
        assert made.deployed() == ("g0", 0, True, True)
