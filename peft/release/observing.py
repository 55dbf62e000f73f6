"""Doing the work of a phase and writing what it observed: every end of the work itself is an observation."""

from __future__ import annotations

import resource
import sys
import traceback
from typing import TYPE_CHECKING, Any, Final, Protocol

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.observation import PhaseObservation
from ticket_agent.protocol.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ticket_agent.peft.release.job_directory import JobDirectory
    from ticket_agent.peft.release.phases import Phase

__all__ = ["PhaseFacts", "PhaseFailedError", "observe", "observe_and_leave"]

MAX_REASON: Final = 512
MAX_KIND: Final = 64


class PhaseFacts(Protocol):
    """Whose phase it is."""

    @property
    def operation_id(self) -> str:
        """The release's."""

    @property
    def request_sha256(self) -> str:
        """Digest of its request."""

    @property
    def native_identity(self) -> str:
        """Which process does it."""


class PhaseFailedError(PeftError):
    """The phase did its work, and what it found is that the release cannot go on.

    Attributes:
        detail: what was found; members of the observation.
    """

    code = "phase-failed"

    def __init__(self, text: str, *, rule: str, detail: Mapping[str, Any]) -> None:
        super().__init__(text)
        self.rule = rule
        self.detail = detail


def observe_and_leave(
    phase: Phase,
    job: JobDirectory,
    facts: PhaseFacts,
    work: Callable[[], Mapping[str, Any]],
    *,
    now_unix_ms: Callable[[], int],
) -> PhaseObservation:
    """Do the work, and durably leave ``out/<phase>.json``.

    A refusal and a failure are observations too: only when there is none, nobody knows how the phase ended.

    Raises:
        PeftError: no observation was written: it has been done already, or the file system failed.
    """
    name = f"{phase}.json"
    if job.outputs.kind(name) is not None:
        raise PeftError(f"{name} is there already; a phase is done once in each job directory")
    observation = observe(phase, facts, work, now_unix_ms=now_unix_ms)
    job.leave(name, observation.encode())
    return observation


def observe(
    phase: Phase,
    facts: PhaseFacts,
    work: Callable[[], Mapping[str, Any]],
    *,
    now_unix_ms: Callable[[], int],
) -> PhaseObservation:
    """Do the work, and say how it ended."""

    def observation(detail: Mapping[str, Any], *, succeeded: bool) -> PhaseObservation:
        return PhaseObservation(
            operation_id=facts.operation_id,
            request_sha256=facts.request_sha256,
            phase=phase,
            native_identity=facts.native_identity,
            completed_unix_ms=now_unix_ms(),
            succeeded=succeeded,
            detail=dict(detail) | {"resources": _resources()},
        )

    try:
        return observation(work(), succeeded=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is how the phase ended
        # The log tells all; the observation has what fits into evidence.
        traceback.print_exc(file=sys.stderr)
        try:
            return observation(_found(error) | _failure(error), succeeded=False)
        except DocumentError:
            return observation(_failure(error), succeeded=False)


def _found(error: Exception) -> dict[str, Any]:
    return dict(error.detail) if isinstance(error, PhaseFailedError) else {}


def _failure(error: Exception) -> dict[str, Any]:
    detail = {"error": type(error).__name__[:MAX_KIND], "reason": one_line(str(error))[:MAX_REASON]}
    if isinstance(error, DocumentError | PhaseFailedError):
        return detail | {"rule": error.rule}
    return detail | ({"rule": error.code} if isinstance(error, PeftError) else {})


def _resources() -> dict[str, int]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "process_cpu_us": round((used.ru_utime + used.ru_stime) * 1_000_000),
        # Linux counts in units of 1024 bytes.
        "process_peak_host_rss_bytes": used.ru_maxrss * 1024,
    }
