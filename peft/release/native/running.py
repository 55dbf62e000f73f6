"""Which work each native phase is, and doing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.native.job import Job
from ticket_agent.peft.release.observing import observe_and_leave
from ticket_agent.peft.release.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ticket_agent.peft.release.observation import PhaseObservation

    Work = Callable[[Job], dict[str, Any]]
    """Does a phase; returns what it found, or raises."""

__all__ = ["NATIVE_PHASES", "run_phase", "works"]

NATIVE_PHASES: Final = (Phase.VALIDATE, Phase.TRAIN, Phase.EVALUATE, Phase.SCAN)


def works() -> Mapping[Phase, Work]:
    """What does each phase."""
    # Here, because the flags of the libraries must be set first, and they may import one at any time.
    from ticket_agent.peft.release.native.evaluate import evaluate  # noqa: PLC0415
    from ticket_agent.peft.release.native.scan import scan  # noqa: PLC0415
    from ticket_agent.peft.release.native.train import train  # noqa: PLC0415
    from ticket_agent.peft.release.native.validate import validate  # noqa: PLC0415

    return {Phase.VALIDATE: validate, Phase.TRAIN: train, Phase.EVALUATE: evaluate, Phase.SCAN: scan}


def run_phase(phase: Phase, path: Path, *, now_unix_ms: Callable[[], int]) -> PhaseObservation:
    """Do a phase; see :func:`observe_and_leave`.

    Raises:
        PeftError: no observation was written: the job has no ``job.json`` that could be read, it has been
            done already, or the file system failed.
    """
    with Job(path, now_unix_ms=now_unix_ms) as job:
        return observe_and_leave(phase, job, job.facts, lambda: works()[phase](job), now_unix_ms=now_unix_ms)
