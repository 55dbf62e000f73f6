"""One control phase of a release, in its own process.

``python -m ticket_agent.peft.release.control {stage|load|canary|promote|rollback} --job DIR``

It works on the private root and talks to servers on the host's loopback. So it is our own code alone, without
the libraries that train and serve, and it is not confined. Exit code 0 when ``out/<phase>.json`` was written,
whatever it says; otherwise 1 or 2, and nothing is known.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.control_canary import canary
from ticket_agent.peft.release.control_errors import ControlJobError
from ticket_agent.peft.release.control_job import CONTROL_FILE, CONTROL_PHASES
from ticket_agent.peft.release.control_load import load
from ticket_agent.peft.release.control_promote import promote
from ticket_agent.peft.release.control_rollback import rollback
from ticket_agent.peft.release.control_stage import stage
from ticket_agent.peft.release.control_work import ControlJob
from ticket_agent.peft.release.observing import observe_and_leave
from ticket_agent.peft.release.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ticket_agent.peft.release.observation import PhaseObservation

__all__ = ["main", "run_control"]

_WORKS: Mapping[Phase, Callable[[ControlJob], dict[str, Any]]] = {
    Phase.STAGE: stage,
    Phase.LOAD: load,
    Phase.CANARY: canary,
    Phase.PROMOTE: promote,
    Phase.ROLLBACK: rollback,
}


def run_control(phase: Phase, path: Path, *, now_unix_ms: Callable[[], int]) -> PhaseObservation:
    """Do a control phase; see :func:`observe_and_leave`.

    Raises:
        PeftError: no observation was written.
    """
    with ControlJob(path, now_unix_ms=now_unix_ms) as job:
        if job.facts.phase is not phase:
            raise ControlJobError(f"{CONTROL_FILE} is of phase {job.facts.phase}, not of {phase}")
        return observe_and_leave(phase, job, job.facts, lambda: _WORKS[phase](job), now_unix_ms=now_unix_ms)


def main(arguments: list[str]) -> int:
    """Run the phase that the arguments name; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ticket_agent.peft.release.control")
    parser.add_argument("phase", choices=[phase.value for phase in CONTROL_PHASES])
    parser.add_argument("--job", type=Path, required=True, help="absolute path of the job directory")
    chosen = parser.parse_args(arguments)
    # What is written here is for the same account only, whatever the caller's mask is.
    os.umask(0o077)
    try:
        observation = run_control(
            Phase(chosen.phase), chosen.job, now_unix_ms=lambda: time.time_ns() // 1_000_000
        )
    except PeftError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{observation.phase} {'succeeded' if observation.succeeded else 'failed'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
