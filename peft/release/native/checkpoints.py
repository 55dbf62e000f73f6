"""Checkpoints of a training: published as six files, and checked before a trainer may open them.

The trainer writes more than that; among it is a pickle of its own arguments, which is never taken over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.copying import copy_hashed
from ticket_agent.peft.release.bundle import MAX_BUNDLE_FILE_BYTES
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.checkpoint import (
    CHECKPOINT_FILES,
    MAX_TRAINER_STATE_BYTES,
    CheckpointManifest,
    check_resume,
    check_trainer_state,
    encode_checkpoint,
)
from ticket_agent.peft.release.native.libraries import library
from ticket_agent.peft.release.native.native_errors import CheckpointRefusedError
from ticket_agent.peft.roots import open_to_read

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.peft.release.native.job import Job

__all__ = ["KEPT", "NEWEST", "PUBLISHED", "check_checkpoint", "publish", "read_state"]

PUBLISHED: Final = "checkpoints"
"""Directory below ``out``, with a directory for each published one, named by its manifest's digest."""
NEWEST: Final = "checkpoint.json"
"""Manifest of the newest one."""
KEPT: Final = 2

STATE: Final = "trainer_state.json"
_MEMBERS: Final = {
    "optimizer.pt": frozenset({"state", "param_groups"}),
    "scheduler.pt": frozenset({"base_lrs", "last_epoch"}),
    "rng_state.pth": frozenset({"python", "numpy", "cpu"}),
}
"""What each file of tensors must have at its top."""


def check_checkpoint(job: Job, manifest: CheckpointManifest) -> None:
    """Refuse ``in/checkpoint`` unless training may go on from it.

    That the source operation exists, and names this checkpoint as its newest one, is for who prepared the job
    to find out.

    Raises:
        PeftError: another profile, operation, step or content; or a file holds more than tensors and numbers.
    """
    sha256 = digest(encode_checkpoint(manifest))
    max_steps = job.profile.settings.max_steps
    check_resume(manifest, request=job.request, max_steps=max_steps, published=sha256, digest=sha256)
    job.check_files("checkpoint", dict(manifest.files))
    with job.open_input("checkpoint") as directory:
        check_trainer_state(directory.read_file(STATE, max_bytes=MAX_TRAINER_STATE_BYTES), manifest.step)
    for name in _MEMBERS:
        read_state(job.input_path("checkpoint") / name)


def read_state(path: Path) -> dict[str, Any]:
    """Load a file of a trainer's state; nothing but tensors, numbers and their containers.

    Raises:
        CheckpointRefusedError: it needs more than that, is no such file, or lacks a member.
    """
    torch = library("torch")
    # Random states of numpy are kept as its arrays; the trainer lets these few names through, and no others.
    with library("transformers.trainer").safe_globals():
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise CheckpointRefusedError(
                f"{path.name} cannot be loaded as tensors and numbers alone: {type(error).__name__}"
            ) from error
    if not isinstance(state, dict):
        raise CheckpointRefusedError(f"{path.name} holds no state of a trainer")
    if missing := sorted(_MEMBERS[path.name] - state.keys()):
        raise CheckpointRefusedError(
            f"{path.name} has no {', '.join(missing)}; the checkpoint is not complete"
        )
    return state


def publish(job: Job, saved: Path, step: int) -> str:
    """Durably publish what the trainer has saved in ``saved``; return the digest of its manifest.

    ``out/checkpoint.json`` names it only when all of its files are there. Older ones than the last two go.

    Raises:
        PeftError: a file is missing or not as it must be, or the file system failed.
    """
    for name in _MEMBERS:
        read_state(saved / name)
    unfinished = f"{PUBLISHED}-{step}"
    with open_to_read(saved, label="saved checkpoint") as source:
        check_trainer_state(source.read_file(STATE, max_bytes=MAX_TRAINER_STATE_BYTES), step)
        with job.outputs.open_dir(unfinished, create=True) as copy:
            files = []
            for name in CHECKPOINT_FILES:
                with source.open_file(name, max_bytes=MAX_BUNDLE_FILE_BYTES) as opened:
                    copied = copy_hashed(opened, copy, name, max_bytes=MAX_BUNDLE_FILE_BYTES)
                files.append((name, copied.sha256))
    manifest = CheckpointManifest(
        source_operation=job.request.operation_id,
        request_sha256=job.facts.request_sha256,
        profile_sha256=job.request.profile_sha256,
        input_sha256=job.request.input_sha256,
        step=step,
        files=tuple(files),
    )
    data = encode_checkpoint(manifest)
    with job.outputs.open_dir(PUBLISHED, create=True) as published:
        job.outputs.rename(unfinished, published, digest(data), replace=False)
        job.leave(NEWEST, data)
    return digest(data)
