"""Gates about the documents of a release: each is read from the object store and held against the others."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ticket_agent.peft.copying import hash_file
from ticket_agent.peft.names import check_model_id
from ticket_agent.peft.release.attestation import trusted_keys, verify_attestations
from ticket_agent.peft.release.bundle import BASE_CONFIG, BASE_WEIGHTS, BundleManifest, file_limit
from ticket_agent.peft.release.claims import input_claim, profile_claim
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.evidence_limits import MAX_ATTESTATION_BYTES
from ticket_agent.peft.release.native.base_model import check_base_tensors
from ticket_agent.peft.release.native.candidate import scan_files
from ticket_agent.peft.release.native.weights import weights_header
from ticket_agent.peft.release.request import Entry
from ticket_agent.peft.release.resolve import (
    load_adapter,
    load_base,
    load_checkpoint,
    load_documents,
    load_rows,
)
from ticket_agent.peft.release.resume_choice import published_checkpoint
from ticket_agent.peft.release.root_errors import ObjectCorruptError
from ticket_agent.peft.release.rules import check_operation_id

if TYPE_CHECKING:
    from ticket_agent.peft.opened import OpenedFile
    from ticket_agent.peft.release.cas import ObjectStore
    from ticket_agent.peft.release.gate import Look

__all__ = ["BundleFiles", "adapter", "attestations", "base", "checkpoint", "ids", "request", "rows"]


class BundleFiles:
    """The files of a bundle, straight from the object store."""

    def __init__(self, objects: ObjectStore, manifest: BundleManifest) -> None:
        self._objects = objects
        self._manifest = manifest

    def open_file(self, name: str, *, max_bytes: int) -> OpenedFile:
        """Open one for reading."""
        return self._objects.open(self._manifest.file(name), max_bytes=max_bytes)

    def read_file(self, name: str, *, max_bytes: int) -> bytes:
        """The content of a small one."""
        return self._objects.load(self._manifest.file(name), max_bytes=max_bytes)


def ids(look: Look) -> str:
    """The ids have a form that everybody accepts who will use them as a name."""
    check_operation_id(look.asked.operation_id)
    check_model_id(look.asked.model_id, what="model id")
    return f"{look.asked.operation_id}, a release of {look.asked.model_id}"


def request(look: Look) -> str:
    """Request, profile and input are there, in their one spelling, and belong together."""
    asked = look.asked
    look.found = load_documents(
        look.root.objects,
        asked.request_sha256,
        operation_id=asked.operation_id,
        model_id=asked.model_id,
    )
    return f"{look.request.entry} {asked.request_sha256}"


def base(look: Look) -> str:
    """The base model is the one that the profile pins, and has the tensors of its geometry."""
    manifest = load_base(look.root.objects, look.profile)
    files = BundleFiles(look.root.objects, manifest)
    with files.open_file(BASE_WEIGHTS, max_bytes=look.profile.stack.limits.base_bytes) as weights:
        header = weights_header(weights, BASE_WEIGHTS)
    config = files.read_file(BASE_CONFIG, max_bytes=file_limit(BASE_CONFIG))
    check_base_tensors(header, config, look.profile.stack.geometry)
    if look.thorough:
        _hash_all(files, manifest)
    return f"{manifest.source} at {manifest.revision}, {len(header.tensors)} tensors"


def rows(look: Look) -> str:
    """The rows are as many as they have to be, and none is in both sets."""
    train, evaluation = load_rows(look.root.objects, look.profile)
    return f"{len(train)} to train on, {len(evaluation)} others to evaluate on"


def adapter(look: Look) -> str:
    """The imported adapter is a complete one for the profile's base model."""
    if look.request.entry is not Entry.IMPORT:
        return "none: one is trained"
    manifest = load_adapter(look.root.objects, look.profile, look.input)
    if manifest is None:
        raise DocumentError("the input imports no adapter")
    scanned = scan_files(BundleFiles(look.root.objects, manifest), look.profile)
    if scanned.files != manifest.files:
        raise ObjectCorruptError("the adapter's files are not what its manifest says; store them again")
    return (
        f"{scanned.adapter_sha256}, {scanned.tensors} tensors of {scanned.dtype},"
        f" {scanned.parameters} parameters, nothing differs from the profile"
    )


def checkpoint(look: Look) -> str:
    """The checkpoint that training goes on from may be gone on from."""
    manifest = load_checkpoint(
        look.root.objects, look.request, look.profile, look.input, partial(published_checkpoint, look.root)
    )
    if manifest is None:
        return "none: nothing is gone on from"
    return f"step {manifest.step} of {manifest.source_operation}"


def attestations(look: Look) -> str:
    """Everybody whom the profile trusts vouches for exactly these inputs."""
    keys = trusted_keys(look.profile)
    found = set()
    for references, expected in (
        (look.profile.attestations, profile_claim(look.profile)),
        (look.input.attestations, input_claim(look.input, look.profile)),
    ):
        records = [
            look.root.objects.load(reference, max_bytes=MAX_ATTESTATION_BYTES) for reference in references
        ]
        found |= {record.key_id for record in verify_attestations(records, keys=keys, expected=expected)}
    return f"by {', '.join(sorted(found))}"


def _hash_all(files: BundleFiles, manifest: BundleManifest) -> None:
    for name, wanted in manifest.files:
        with files.open_file(name, max_bytes=file_limit(name)) as file:
            if hash_file(file).sha256 != wanted:
                raise ObjectCorruptError(
                    f"{name} of {manifest.source} is damaged in the object store; store it again"
                )
