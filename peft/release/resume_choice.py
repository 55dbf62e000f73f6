"""The newest checkpoint that an operation has published, and its files as objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ticket_agent.peft.errors import AbsentError
from ticket_agent.peft.release.bundle import MAX_BUNDLE_FILE_BYTES
from ticket_agent.peft.release.canonical import MAX_JSON_BYTES, digest
from ticket_agent.peft.release.checkpoint import CheckpointManifest, parse_checkpoint
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.native.checkpoints import NEWEST, PUBLISHED
from ticket_agent.peft.release.phases import Phase
from ticket_agent.peft.release.replaced import read_replaced

if TYPE_CHECKING:
    from ticket_agent.peft.release.private_root import PrivateRoot

__all__ = ["newest_checkpoint", "published_checkpoint", "require_checkpoint", "store_checkpoint"]


def newest_checkpoint(root: PrivateRoot, operation_id: str) -> bytes | None:
    """The manifest of the newest checkpoint that an operation's training has published; None without one.

    Raises:
        DocumentError: no operation has this id.
        FileRefusedError, PeftIoError: what is there cannot be used or read.
    """
    try:
        with (
            root.operation(operation_id) as operation,
            operation.open_dir(Phase.TRAIN.value) as job,
            job.open_dir("out") as out,
        ):
            return read_replaced(out, NEWEST, max_bytes=MAX_JSON_BYTES)
    except AbsentError:
        return None


def published_checkpoint(root: PrivateRoot, operation_id: str) -> str | None:
    """Digest of the newest checkpoint of an operation; see :func:`newest_checkpoint`."""
    data = newest_checkpoint(root, operation_id)
    return None if data is None else digest(data)


def require_checkpoint(root: PrivateRoot, operation_id: str) -> tuple[str, CheckpointManifest]:
    """The newest checkpoint of an operation and its digest.

    Raises:
        DocumentError: the operation has published none, or its manifest is damaged.
    """
    data = newest_checkpoint(root, operation_id)
    if data is None:
        raise DocumentError(
            f"operation {operation_id} has published no checkpoint to go on from", rule="checkpoint"
        )
    return digest(data), parse_checkpoint(data)


def store_checkpoint(root: PrivateRoot, operation_id: str, sha256: str, manifest: CheckpointManifest) -> None:
    """Store a checkpoint's files and its manifest as objects. The root's lock must be held.

    Raises:
        DocumentError: a file has another content than the manifest says.
        PeftError: a file cannot be read or stored.
    """
    data = newest_checkpoint(root, operation_id)
    if data is None or digest(data) != sha256:
        raise DocumentError(
            f"operation {operation_id} has published another checkpoint meanwhile; prepare again",
            rule="checkpoint",
        )
    with (
        root.operation(operation_id) as operation,
        operation.open_dir(Phase.TRAIN.value) as job,
        job.open_dir("out") as out,
        out.open_dir(PUBLISHED) as published,
        published.open_dir(sha256) as folder,
    ):
        for name, wanted in manifest.files:
            with folder.open_file(name, max_bytes=MAX_BUNDLE_FILE_BYTES) as file:
                if root.objects.store_file(file) != wanted:
                    raise DocumentError(
                        f"checkpoint: {name} is not what its manifest says; it cannot be gone on from",
                        rule="checkpoint",
                    )
    root.objects.store(data)
