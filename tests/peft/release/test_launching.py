"""A launch in a thread: what it comes to, and that phases give way to others."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from phase_support import CONFINEMENTS, WAIT_S, staged

from ticket_agent.peft.release.launch_errors import LaunchRefusedError, LaunchUnknownError
from ticket_agent.peft.release.launching import Launching
from ticket_agent.peft.release.phases import Phase

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.peft.release.confine import Confinement


def test_nobody_waits_for_it() -> None:
    answered, began = threading.Event(), threading.Event()

    def launch() -> None:
        began.set()
        assert answered.wait(WAIT_S)

    launching = Launching(Phase.TRAIN, launch)
    assert began.wait(WAIT_S)
    assert launching.goes_on
    answered.set()
    assert launching.finish() is None
    assert not launching.goes_on


@pytest.mark.parametrize(
    ("failure", "told"),
    [(LaunchRefusedError("no"), "no"), (LaunchUnknownError("look again"), None)],
)
def test_what_it_comes_to(failure: Exception, told: str | None) -> None:
    def launch() -> None:
        raise failure

    assert Launching(Phase.TRAIN, launch).finish() == told


def test_a_fault_is_not_taken_for_an_answer() -> None:
    def launch() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Launching(Phase.TRAIN, launch).finish()


@pytest.mark.parametrize("confinement", CONFINEMENTS)
@pytest.mark.parametrize("niceness", [0, 10])
def test_a_phase_gives_way(confinement: Confinement, niceness: int, tmp_path: Path) -> None:
    with staged(tmp_path.resolve(), confinement) as stage:
        phase = stage.start("import os; print(os.nice(0))", niceness=niceness)
        phase.wait(WAIT_S)
        assert phase.log().lines() == [str(niceness)]
