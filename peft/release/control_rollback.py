"""The phase ``rollback``: everything is as when the release began, whatever was half done. Safe to repeat."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.control_canary import bounded, incumbent_canary, require_passed
from ticket_agent.peft.release.control_errors import ControlJobError
from ticket_agent.peft.release.control_load import await_server
from ticket_agent.peft.release.control_promote import restore_files
from ticket_agent.peft.release.observing import PhaseFailedError
from ticket_agent.peft.release.root_errors import AcceptedConflictError
from ticket_agent.peft.release.serving_pointer import PointerConflictError, ServingPointer
from ticket_agent.peft.release.tcp_table import connections_to

if TYPE_CHECKING:
    from ticket_agent.peft.release.canary import CanaryReport
    from ticket_agent.peft.release.control_work import ControlJob
    from ticket_agent.peft.release.server_room import KnownServer

__all__ = ["rollback"]

PAUSE_S: Final = 0.02


def rollback(job: ControlJob) -> dict[str, Any]:
    """Have the incumbent answer, asked and deployed; then end the candidate's server, and see it gone.

    Raises:
        PhaseFailedError: the incumbent does not answer as it did, or the candidate cannot be ended.
        AcceptedConflictError, PointerConflictError: something newer is deployed; it was not touched.
        PeftError: the phase cannot be done now.
    """
    job.require_authority("anything was rolled back")
    _require_ours(job)
    incumbent, report = None, None
    if job.facts.incumbent is not None:
        incumbent = job.incumbent()
        await_server(job, incumbent)
        _point(job, incumbent)
        report = _canary(job, incumbent)
        with job.changing("restoring what is deployed"):
            restore_files(job, incumbent)
    else:
        _require_nothing_served(job)
    gone = _end_candidate(job)
    detail = {
        "accepted": job.root.control.accepted().members(),
        "canary": None if report is None else bounded(report),
        "incumbent": None if incumbent is None else incumbent.launch_id,
        "candidate_release": "failed",
        "candidate_gone": gone,
    }
    if not gone:
        raise PhaseFailedError(
            f"the candidate's server {job.facts.candidate} could not be ended; look at its processes",
            rule="candidate-not-gone",
            detail=detail,
        )
    return detail


def _require_ours(job: ControlJob) -> None:
    found, baseline = job.root.control.accepted(), job.request.baseline
    if found not in (baseline, job.promoted):
        raise AcceptedConflictError(
            f"generation {found.generation} ({found.served_artifact_sha256[:12]}) is deployed, which is not"
            " of this release; it is not taken back",
            found=found,
        )


def _point(job: ControlJob, incumbent: KnownServer) -> None:
    """Move the pointer from the candidate, or from an earlier server of the same, to the incumbent."""
    wanted = ServingPointer.of(incumbent.instance)
    with job.changing("moving the pointer back") as root:
        found = root.pointer.read()
        promoted = job.promoted
        ours = {(wanted.generation, wanted.artifact_sha256)}
        if promoted is not None:
            ours.add((promoted.generation, promoted.served_artifact_sha256))
        if found is not None and (found.generation, found.artifact_sha256) not in ours:
            raise PointerConflictError(f"{found.name} is served, which is not of this release; it stays")
        root.pointer.move(found, wanted)


def _canary(job: ControlJob, incumbent: KnownServer) -> CanaryReport | None:
    report = incumbent_canary(job, incumbent)
    if report is not None:
        require_passed(report, {})
    return report


def _require_nothing_served(job: ControlJob) -> None:
    found = job.root.pointer.read()
    if found is not None:
        raise ControlJobError(f"{found.name} is served; name its server, so that it can be looked at")
    with job.changing("restoring what is deployed") as root:
        root.control.restore(job.request.baseline, job.promoted)


def _end_candidate(job: ControlJob) -> bool:
    """End the candidate's server, where there is one; nobody is sent to it any more."""
    server = None if job.facts.candidate is None else job.room.known(job.facts.candidate)
    if server is None or job.room.gone(server):
        return True
    timing = job.facts.timing
    # Who has read the pointer just before it moved is answered.
    _settled(server.instance.port, settle_s=timing.settle_s, drain_s=timing.drain_s)
    return job.room.end(server, gone_s=timing.gone_s)


def _settled(port: int, *, settle_s: float, drain_s: float) -> None:
    """Wait until nobody was connected for ``settle_s``, at most ``drain_s``; both in seconds."""
    quiet_since = begun = time.monotonic()
    while (now := time.monotonic()) - begun < drain_s:
        try:
            busy = connections_to(port) > 0
        except OSError:
            busy = True
        # Only what was looked at counts: this process may have been kept waiting in between.
        if busy:
            quiet_since = now
        elif now - quiet_since >= settle_s:
            return
        time.sleep(PAUSE_S)
