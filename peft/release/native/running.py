"""Running one phase and writing what it observed: every end of the work itself becomes an observation."""

from __future__ import annotations

import resource
import sys
import traceback
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.native.job import Job
from ticket_agent.peft.release.observation import PhaseObservation
from ticket_agent.peft.release.phases import Phase
from ticket_agent.protocol.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Work = Callable[[Job], dict[str, Any]]
    """Does a phase; returns what it found, or raises."""

__all__ = ["NATIVE_PHASES", "observe_phase", "run_phase", "works"]

NATIVE_PHASES: Final = (Phase.VALIDATE, Phase.TRAIN, Phase.EVALUATE, Phase.SCAN)
MAX_REASON: Final = 512
MAX_KIND: Final = 64


def works() -> Mapping[Phase, Work]:
    """What does each phase."""
    # Here, because the flags of the libraries must be set first, and they may import one at any time.
    from ticket_agent.peft.release.native.evaluate import evaluate  # noqa: PLC0415
    from ticket_agent.peft.release.native.scan import scan  # noqa: PLC0415
    from ticket_agent.peft.release.native.train import train  # noqa: PLC0415
    from ticket_agent.peft.release.native.validate import validate  # noqa: PLC0415

    return {Phase.VALIDATE: validate, Phase.TRAIN: train, Phase.EVALUATE: evaluate, Phase.SCAN: scan}


def run_phase(phase: Phase, path: Path, *, now_unix_ms: Callable[[], int]) -> PhaseObservation:
    """Do a phase, and durably leave ``out/<phase>.json``.

    A refusal and a failure are observations too: only when there is none, nobody knows how the phase ended.

    Raises:
        PeftError: no observation was written: the job has no ``job.json`` that could be read, it has been
            done already, or the file system failed.
    """
    with Job(path, now_unix_ms=now_unix_ms) as job:
        name = f"{phase}.json"
        if job.outputs.kind(name) is not None:
            raise PeftError(f"{name} is there already; a phase is done once in each job directory")
        observation = observe_phase(phase, job, works()[phase])
        job.leave(name, observation.encode())
    return observation


def observe_phase(phase: Phase, job: Job, work: Work) -> PhaseObservation:
    """Do the work, and say how it ended."""

    def observation(detail: dict[str, Any], *, succeeded: bool) -> PhaseObservation:
        return PhaseObservation(
            operation_id=job.facts.operation_id,
            request_sha256=job.facts.request_sha256,
            phase=phase,
            native_identity=job.facts.native_identity,
            completed_unix_ms=job.now_unix_ms(),
            succeeded=succeeded,
            detail=detail | {"resources": _resources()},
        )

    try:
        return observation(work(job), succeeded=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is how the phase ended
        # The log tells all; the observation has what fits into evidence.
        traceback.print_exc(file=sys.stderr)
        return observation(_failure(error), succeeded=False)


def _failure(error: Exception) -> dict[str, Any]:
    detail = {"error": type(error).__name__[:MAX_KIND], "reason": one_line(str(error))[:MAX_REASON]}
    if isinstance(error, DocumentError):
        return detail | {"rule": error.rule}
    return detail | ({"rule": error.code} if isinstance(error, PeftError) else {})


def _resources() -> dict[str, int]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "process_cpu_us": round((used.ru_utime + used.ru_stime) * 1_000_000),
        # Linux counts in units of 1024 bytes.
        "process_peak_host_rss_bytes": used.ru_maxrss * 1024,
    }
