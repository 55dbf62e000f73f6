"""The phase ``stage``: the candidate that was compared becomes a bundle that a server can load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.copying import hash_file
from ticket_agent.peft.names import shown
from ticket_agent.peft.release.bundle import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    BundleManifest,
    adapter_identity,
    encode_bundle,
    file_limit,
    parse_bundle,
)
from ticket_agent.peft.release.control_errors import CandidateChangedError
from ticket_agent.peft.release.inputs import ReleaseInput, check_input, parse_input
from ticket_agent.peft.release.layout import OperationFiles
from ticket_agent.peft.release.phases import Phase
from ticket_agent.peft.roots import open_to_read

if TYPE_CHECKING:
    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.release.control_work import ControlJob
    from ticket_agent.peft.release.private_root import PrivateRoot

__all__ = ["stage"]

_FILES: Final = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
_MAX_LICENSE: Final = 256


def stage(job: ControlJob) -> dict[str, Any]:
    """Store the candidate's files and bring them to their place. All bytes are hashed again on their way.

    Raises:
        CandidateChangedError: it is not the adapter that was compared.
        PeftError: it is missing or damaged, or this release may change nothing.
    """
    with job.changing("staging the candidate") as root:
        released = _input(job)
        if released.adapter is not None:
            bundle_sha256 = released.adapter.bundle_sha256
        else:
            bundle_sha256 = _store_trained(job, root, released)
        _require_same(job, dict(parse_bundle(root.objects.load(bundle_sha256)).files))
        job.require_authority("the candidate's bundle was made")
        root.materialise(bundle_sha256)
    return {
        "serving_bundle_sha256": bundle_sha256,
        "adapter_sha256": job.candidate_sha256,
        "path": root.bundle_path(bundle_sha256),
    }


def _input(job: ControlJob) -> ReleaseInput:
    data = job.root.objects.load(job.request.input_sha256)
    found = parse_input(data, entry=job.request.entry, schema=job.profile.schema)
    check_input(found, request=job.request, profile=job.profile)
    return found


def _store_trained(job: ControlJob, root: PrivateRoot, released: ReleaseInput) -> str:
    """Store what ``train`` left, and a manifest of it; return the manifest's digest."""
    files = OperationFiles(root=job.room.root, operation_id=job.facts.operation_id)
    with open_to_read(files.job(Phase.TRAIN) / "out" / "adapter", label="the trained adapter") as directory:
        for extra in sorted(set(directory.names()) - set(_FILES)):
            raise CandidateChangedError(f"the trained adapter has {shown(extra)}, which no adapter has")
        _require_same(job, {name: _hashed(directory, name) for name in _FILES})
        stored = {name: _stored(root, directory, name) for name in _FILES}
    _require_same(job, stored)
    manifest = BundleManifest(
        files=tuple(stored.items()),
        source=f"ticket-agent/{job.facts.operation_id}",
        revision=job.facts.request_sha256,
        license_ref=_license(job, released),
    )
    return root.objects.store(encode_bundle(manifest))


def _hashed(directory: Directory, name: str) -> str:
    with directory.open_file(name, max_bytes=file_limit(name)) as opened:
        return hash_file(opened).sha256


def _stored(root: PrivateRoot, directory: Directory, name: str) -> str:
    limit = file_limit(name)
    with directory.open_file(name, max_bytes=limit) as opened:
        return root.objects.store_file(opened, max_bytes=limit)


def _license(job: ControlJob, released: ReleaseInput) -> str:
    """Everything that it was trained under."""
    names = " AND ".join(released.license_refs)
    return names if len(names) <= _MAX_LICENSE else f"see release input {job.request.input_sha256}"


def _require_same(job: ControlJob, files: dict[str, str]) -> None:
    if set(files) != set(_FILES):
        raise CandidateChangedError(f"the candidate must have {' and '.join(_FILES)} and nothing else")
    found = adapter_identity(files[ADAPTER_CONFIG], files[ADAPTER_WEIGHTS])
    if found != job.candidate_sha256:
        raise CandidateChangedError(
            f"the candidate is adapter {found}; {job.candidate_sha256} is what was compared"
        )
