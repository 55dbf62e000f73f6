"""Checkpoints of a training run, and when another release may go on from one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ticket_agent.peft.release.canonical import decode_object, encode
from ticket_agent.peft.release.document_error import DocumentError, reading
from ticket_agent.peft.release.request import Entry, ReleaseRequest, request_digest
from ticket_agent.peft.release.rules import (
    check_operation_id,
    choice,
    digest_text,
    exact,
    field_names,
    integer,
    pairs,
)
from ticket_agent.protocol.json_strict import parse_object

__all__ = [
    "CHECKPOINT_FILES",
    "CHECKPOINT_SCHEMA",
    "MAX_STEP",
    "CheckpointManifest",
    "check_resume",
    "check_source_request",
    "check_trainer_state",
    "encode_checkpoint",
    "parse_checkpoint",
]

CHECKPOINT_SCHEMA: Final = "cohesix-peft-checkpoint/v1"
CHECKPOINT_FILES: Final = (
    "adapter_model.safetensors",
    "adapter_config.json",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "trainer_state.json",
)
MAX_STEP: Final = 100_000
MAX_TRAINER_STATE_BYTES: Final = 262_144


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointManifest:
    """The complete state of a training run after a step.

    Attributes:
        source_operation: the release that trained.
        request_sha256: its request.
        profile_sha256: its profile.
        input_sha256: its input.
        step: finished steps, at least 1.
        files: the six files by name, each with the digest of its content; sorted by name.

    Raises:
        DocumentError: a value that no manifest has.
    """

    source_operation: str
    request_sha256: str
    profile_sha256: str
    input_sha256: str
    step: int
    files: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        check_operation_id(self.source_operation, "source_operation")
        for name in ("request_sha256", "profile_sha256", "input_sha256"):
            digest_text(getattr(self, name), name)
        integer(self.step, "step", 1, MAX_STEP)
        files = exact(dict(self.files), CHECKPOINT_FILES, "files")
        for name, sha256 in files.items():
            digest_text(sha256, f"files.{name}")
        object.__setattr__(self, "files", pairs(files))

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        members = {name: getattr(self, name) for name in field_names(CheckpointManifest)}
        return members | {"schema": CHECKPOINT_SCHEMA, "files": dict(self.files)}


def parse_checkpoint(data: bytes) -> CheckpointManifest:
    """Read a canonical checkpoint manifest.

    Raises:
        DocumentError: anything else, or a value that no manifest has.
    """
    what = "checkpoint manifest"
    document = decode_object(data, what=what)
    with reading(what):
        exact(document, ("schema", *field_names(CheckpointManifest)))
        choice(document.pop("schema"), "schema", (CHECKPOINT_SCHEMA,), code="release-schema")
        files = exact(document.pop("files"), CHECKPOINT_FILES, "files")
        return CheckpointManifest(files=tuple(files.items()), **document)


def encode_checkpoint(manifest: CheckpointManifest) -> bytes:
    """Write the canonical bytes of a checkpoint manifest."""
    return encode(manifest.members())


def check_resume(
    manifest: CheckpointManifest,
    *,
    request: ReleaseRequest,
    max_steps: int,
    published: str | None,
    digest: str,
) -> None:
    """Refuse to go on from a checkpoint that this release may not use.

    Args:
        manifest: the checkpoint.
        request: the release that wants to go on from it.
        max_steps: at which step its training ends.
        published: digest of the newest checkpoint that the source operation says it has, or None.
        digest: digest of ``manifest``'s bytes.

    Raises:
        DocumentError: the release does not train, is the source itself, has another profile, nothing is left
            to train, or the source operation does not name this checkpoint.
    """
    with reading("checkpoint"):
        if request.entry is not Entry.TRAIN:
            raise DocumentError("only a release that trains can go on from one", rule="checkpoint")
        if manifest.source_operation == request.operation_id:
            raise DocumentError(
                "is of this very operation; going on from it takes a new operation", rule="checkpoint"
            )
        if manifest.profile_sha256 != request.profile_sha256:
            raise DocumentError("was made with another profile", rule="checkpoint")
        if manifest.step >= max_steps:
            raise DocumentError(
                f"is of step {manifest.step} of {max_steps}; nothing is left", rule="checkpoint"
            )
        if published != digest:
            raise DocumentError(
                f"is not the newest one that operation {manifest.source_operation} has published",
                rule="checkpoint",
            )


def check_source_request(manifest: CheckpointManifest, source: ReleaseRequest) -> None:
    """Refuse a checkpoint that is not of the release it names.

    Args:
        manifest: the checkpoint.
        source: the request stored under ``manifest.request_sha256``.

    Raises:
        DocumentError: the two differ, or the source did not train.
    """
    same = (
        source.operation_id == manifest.source_operation
        and request_digest(source) == manifest.request_sha256
        and source.profile_sha256 == manifest.profile_sha256
        and source.input_sha256 == manifest.input_sha256
    )
    with reading("checkpoint"):
        if source.entry is not Entry.TRAIN:
            raise DocumentError("comes from a release that did not train", rule="checkpoint")
        if not same:
            raise DocumentError("does not belong to the request that it names", rule="checkpoint")


def check_trainer_state(data: bytes, step: int) -> None:
    """Refuse a checkpoint whose trainer stood at another step than its manifest says.

    Raises:
        DocumentError: that, or ``data`` is not the state that a trainer writes.
    """
    with reading("trainer_state.json"):
        state = parse_object(data, what="the file", max_bytes=MAX_TRAINER_STATE_BYTES)
        found = state.get("global_step")
        if type(found) is not int or found != step:
            raise DocumentError(f"global_step must be {step}, as the checkpoint says", rule="checkpoint")
