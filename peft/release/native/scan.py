"""The phase ``scan``: the candidate once more, from its files, before it is staged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ticket_agent.peft.release.native.candidate import ScannedAdapter, scan_adapter
from ticket_agent.peft.release.native.native_errors import JobError

if TYPE_CHECKING:
    from ticket_agent.peft.release.native.job import Job

__all__ = ["scan", "scan_candidate", "scan_imported"]


def scan(job: Job) -> dict[str, Any]:
    """Scan the candidate; see :func:`scan_candidate`."""
    return scan_candidate(job).members()


def scan_candidate(job: Job) -> ScannedAdapter:
    """Scan ``in/adapter``, which must be the adapter that ``job.json`` names.

    Raises:
        PeftError: it is another one, or it is refused.
    """
    scanned = scan_named(job, "adapter", job.candidate_sha256)
    check_imported(job, scanned)
    return scanned


def scan_named(job: Job, name: str, adapter_sha256: str) -> ScannedAdapter:
    """Scan a directory below ``in`` that must have an adapter of this identity.

    Raises:
        PeftError: it is another one, or it is refused.
    """
    with job.open_input(name) as directory:
        scanned = scan_adapter(directory, job.profile, what=name)
    if scanned.adapter_sha256 != adapter_sha256:
        raise JobError(f"{name} is adapter {scanned.adapter_sha256}; it must be {adapter_sha256}")
    return scanned


def scan_imported(job: Job) -> ScannedAdapter | None:
    """Scan ``in/adapter`` of a release that imports, before anybody knows its identity; None if it trains.

    Raises:
        PeftError: it is not the bundle that the input names, or it is refused.
    """
    if job.release_input.adapter is None:
        return None
    with job.open_input("adapter") as directory:
        scanned = scan_adapter(directory, job.profile, what="adapter")
    check_imported(job, scanned)
    return scanned


def check_imported(job: Job, scanned: ScannedAdapter) -> None:
    """Refuse a candidate that is not the bundle which the input imports.

    Raises:
        JobError: it is not.
    """
    imported = job.release_input.adapter
    if imported is None:
        return
    manifest = job.bundle(imported.bundle_sha256)
    if manifest.files != scanned.files:
        raise JobError("adapter has other files than the bundle that the release input imports")
