"""The phases of a release, in their order."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ticket_agent.peft.release.request import Entry

__all__ = ["NATIVE_PHASES", "TERMINAL", "Phase", "ReleaseState", "forward_phases"]


class Phase(StrEnum):
    """One step of a release, done by a process of its own."""

    VALIDATE = "validate"
    TRAIN = "train"
    EVALUATE = "evaluate"
    SCAN = "scan"
    STAGE = "stage"
    LOAD = "load"
    CANARY = "canary"
    PROMOTE = "promote"
    ROLLBACK = "rollback"


NATIVE_PHASES: Final = (Phase.VALIDATE, Phase.TRAIN, Phase.EVALUATE, Phase.SCAN)
"""Those that are confined and work on the candidate alone; the others work on what is served."""


class ReleaseState(StrEnum):
    """Where a release stands; each value but the first two is an end."""

    RUNNING = "running"
    AMBIGUOUS = "ambiguous"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RECOVERED_FAILURE = "recovered_failure"
    ROLLBACK_FAILED = "rollback_failed"


TERMINAL: Final = frozenset(ReleaseState) - {ReleaseState.RUNNING, ReleaseState.AMBIGUOUS}


def forward_phases(entry: Entry) -> tuple[Phase, ...]:
    """All phases of a release that goes well; rollback is none of them, it only compensates."""
    left_out = {Phase.ROLLBACK} if entry is Entry.TRAIN else {Phase.ROLLBACK, Phase.TRAIN}
    return tuple(phase for phase in Phase if phase not in left_out)
