"""Taking an export job from the hive.

What arrives is what the transport can carry. The console carries lines of UTF-8 text, at most 64 for a file:
a file comes with a newline at its end whether it had one or not, and what is no text, or too long, does not
come at all. So sizes and digests can differ from those that another transport would show for the same job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ticket_agent.journal.outcome import PlanWaitsError
from ticket_agent.peft.errors import ArtifactRefusedError
from ticket_agent.peft.job import BASE_FILE, JOB_FILES, POLICY_FILE, TELEMETRY_FILE, ExportJob
from ticket_agent.peft.limits import MAX_LISTING_BYTES
from ticket_agent.peft.names import shown
from ticket_agent.protocol.namespace import HiveRefusedError, RefusalKind

if TYPE_CHECKING:
    from ticket_agent.protocol.namespace import Namespace

__all__ = ["EXPORT_JOBS", "take_job"]

EXPORT_JOBS: Final = "/queen/export/lora_jobs"
"""The hive's directory of jobs. A job that is not there cannot be listed either, so it is not looked for in a
listing of all: a hive with more jobs than a listing has room for would refuse that."""

_PASSING: Final = frozenset({RefusalKind.BUSY, RefusalKind.DENIED, RefusalKind.LIMIT})


def take_job(namespace: Namespace, job: str) -> ExportJob:
    """Read a job's files. Reads only, and in the same order as every tool.

    Args:
        namespace: the hive.
        job: the job's id, checked.

    Raises:
        ArtifactRefusedError: the job is not there, has not exactly the three files, or they are not
            acceptable; or the transport cannot carry one of them.
        PlanWaitsError: the hive does not show its jobs now.
        HiveError: the hive cannot be reached or broke the protocol.
    """
    place = f"{EXPORT_JOBS}/{job}"
    try:
        names = namespace.ls(place)
    except HiveRefusedError as error:
        if error.absent:
            raise ArtifactRefusedError(f"export job {job} not found on the hive") from error
        raise _refused(f"export job {job} cannot be listed", error) from error
    _require_complete(names, job)
    found = {name: _taken(namespace, place, name) for name in JOB_FILES}
    return ExportJob(telemetry=found[TELEMETRY_FILE], base_model=found[BASE_FILE], policy=found[POLICY_FILE])


def _require_complete(names: list[str], job: str) -> None:
    size = sum(len(name.encode()) + 1 for name in names)
    if size > MAX_LISTING_BYTES:
        raise ArtifactRefusedError(f"the listing of export job {job} has {size} bytes; that is no job")
    for name in JOB_FILES:
        if name not in names:
            raise ArtifactRefusedError(f"export job {job} on the hive: missing required file {name}")
    for name in names:
        if name not in JOB_FILES:
            raise ArtifactRefusedError(f"export job {job} on the hive: unexpected file {shown(name)}")


def _taken(namespace: Namespace, place: str, name: str) -> bytes:
    try:
        lines = namespace.read(f"{place}/{name}")
    except HiveRefusedError as error:
        raise _refused(f"{name} cannot be carried by this transport", error) from error
    return "".join(f"{line}\n" for line in lines).encode("utf-8")


def _refused(what: str, error: HiveRefusedError) -> Exception:
    text = f"{what}: {error.refusal.text}"
    return PlanWaitsError(text) if error.refusal.kind in _PASSING else ArtifactRefusedError(text)
