"""Everything that a request names, read from the object store and held against one another.

What comes out of here is one consistent release: each document is the one that the digest names, and they all
belong together. What is refused here is refused for ever, before anything native is started. That somebody
vouches for the inputs, and what is in the weights, are other questions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.errors import AbsentError
from ticket_agent.peft.release.bundle import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    BASE_CONFIG,
    BASE_WEIGHTS,
    BundleManifest,
    adapter_identity,
    file_limit,
    parse_bundle,
)
from ticket_agent.peft.release.checkpoint import (
    CheckpointManifest,
    check_resume,
    check_source_request,
    check_trainer_state,
    parse_checkpoint,
)
from ticket_agent.peft.release.data import check_disjoint, parse_rows
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.geometry import check_base_config
from ticket_agent.peft.release.inputs import ReleaseInput, check_input, parse_input
from ticket_agent.peft.release.profile import Profile, check_base, parse_profile
from ticket_agent.peft.release.request import MAX_REQUEST_BYTES, ReleaseRequest, parse_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.peft.release.cas import ObjectStore

__all__ = [
    "ResolvedRelease",
    "load_adapter",
    "load_base",
    "load_checkpoint",
    "load_documents",
    "load_rows",
    "resolve",
]

_ADAPTER_FILES: Final = {ADAPTER_CONFIG, ADAPTER_WEIGHTS}
_TRAINER_STATE: Final = "trainer_state.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRelease:
    """A release whose documents are complete and belong together.

    Attributes:
        request_sha256: digest of the request.
        request: what is asked for.
        profile: under which profile.
        input: what is trained or imported.
        base: the base model's bundle.
        train_rows: what is trained on.
        eval_rows: what is evaluated on.
        adapter: the imported adapter's bundle, or None.
        checkpoint: where training goes on from, or None.
    """

    request_sha256: str
    request: ReleaseRequest
    profile: Profile
    input: ReleaseInput
    base: BundleManifest
    train_rows: tuple[str, ...]
    eval_rows: tuple[str, ...]
    adapter: BundleManifest | None
    checkpoint: CheckpointManifest | None

    @property
    def adapter_sha256(self) -> str | None:
        """Identity of the imported adapter; a trained one has none yet."""
        if self.adapter is None:
            return None
        return adapter_identity(self.adapter.file(ADAPTER_CONFIG), self.adapter.file(ADAPTER_WEIGHTS))


def resolve(
    objects: ObjectStore,
    request_sha256: str,
    *,
    operation_id: str,
    model_id: str,
    published: Callable[[str], str | None],
) -> ResolvedRelease:
    """Read a request and everything it names.

    Args:
        objects: the store.
        request_sha256: the request, as the ticket names it.
        operation_id: of the ticket.
        model_id: the ticket's subject.
        published: the digest of the newest checkpoint that an operation has published, or None. It is asked
            only when training goes on from one.

    Raises:
        DocumentError: a document is not what it has to be, or two do not belong together.
        AbsentError: an object is missing.
        FileRefusedError: an object is damaged or too large.
        PeftIoError: the system failed; trying again is safe, nothing was changed.
    """
    request, profile, value = load_documents(
        objects, request_sha256, operation_id=operation_id, model_id=model_id
    )
    train_rows, eval_rows = load_rows(objects, profile)
    return ResolvedRelease(
        request_sha256=request_sha256,
        request=request,
        profile=profile,
        input=value,
        base=load_base(objects, profile),
        train_rows=train_rows,
        eval_rows=eval_rows,
        adapter=load_adapter(objects, profile, value),
        checkpoint=load_checkpoint(objects, request, profile, value, published),
    )


def load_documents(
    objects: ObjectStore, request_sha256: str, *, operation_id: str, model_id: str
) -> tuple[ReleaseRequest, Profile, ReleaseInput]:
    """Read the request, its profile and its input, and hold them against one another.

    Raises:
        PeftError: as :func:`resolve`.
    """
    request = parse_request(_load(objects, request_sha256, "the request", MAX_REQUEST_BYTES))
    for name, asked, told in (
        ("operation_id", request.operation_id, operation_id),
        ("model_id", request.model_id, model_id),
    ):
        if asked != told:
            raise DocumentError(
                f"release request: {name} is {asked}; the ticket says {told}", rule="release-ticket-binding"
            )
    profile = parse_profile(_load(objects, request.profile_sha256, "the profile"))
    value = parse_input(
        _load(objects, request.input_sha256, "the input"), entry=request.entry, schema=profile.schema
    )
    check_input(value, request=request, profile=profile)
    return request, profile, value


def _load(objects: ObjectStore, sha256: str, what: str, max_bytes: int | None = None) -> bytes:
    try:
        return objects.load(sha256) if max_bytes is None else objects.load(sha256, max_bytes=max_bytes)
    except AbsentError:
        raise _missing(sha256, what) from None


def _require(objects: ObjectStore, sha256: str, what: str, max_bytes: int) -> None:
    """A large object must be there and keep its bound; it is hashed where it is used."""
    try:
        objects.open(sha256, max_bytes=max_bytes).close()
    except AbsentError:
        raise _missing(sha256, what) from None


def _missing(sha256: str, what: str) -> AbsentError:
    return AbsentError(f"{what} is not in the object store ({sha256}); prepare the release again")


def load_rows(objects: ObjectStore, profile: Profile) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Read the rows that are trained and evaluated on.

    Raises:
        PeftError: as :func:`resolve`.
    """
    train = parse_rows(_load(objects, profile.train_data, "the training data"), what="training data")
    count = profile.stack.limits.eval_rows
    evaluation = parse_rows(
        _load(objects, profile.eval_data, "the evaluation data"),
        what="evaluation data",
        low=count,
        high=count,
    )
    check_disjoint(train, evaluation)
    return train, evaluation


def load_base(objects: ObjectStore, profile: Profile) -> BundleManifest:
    """Read the base model's manifest and configuration, and see that its files are there.

    Raises:
        PeftError: as :func:`resolve`.
    """
    manifest = parse_bundle(_load(objects, profile.base, "the base model's manifest"))
    check_base(profile, manifest)
    config = _load(objects, manifest.file(BASE_CONFIG), f"the base model's {BASE_CONFIG}")
    check_base_config(config, profile.stack.geometry)
    for name, sha256 in manifest.files:
        limit = profile.stack.limits.base_bytes if name == BASE_WEIGHTS else file_limit(name)
        _require(objects, sha256, f"the base model's {name}", limit)
    return manifest


def load_adapter(objects: ObjectStore, profile: Profile, value: ReleaseInput) -> BundleManifest | None:
    """Read the manifest of the adapter that is imported, and see that its files are there; None without one.

    Raises:
        PeftError: as :func:`resolve`.
    """
    if value.adapter is None:
        return None
    manifest = parse_bundle(_load(objects, value.adapter.bundle_sha256, "the adapter's manifest"))
    names = {name for name, _ in manifest.files}
    if names != _ADAPTER_FILES:
        raise DocumentError(
            f"adapter bundle must have exactly {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS}", rule="adapter-files"
        )
    if manifest.license_ref not in value.license_refs:
        raise DocumentError(
            f"adapter bundle is under {manifest.license_ref}, which the input does not name", rule="license"
        )
    _load(objects, manifest.file(ADAPTER_CONFIG), f"the adapter's {ADAPTER_CONFIG}")
    _require(
        objects,
        manifest.file(ADAPTER_WEIGHTS),
        f"the adapter's {ADAPTER_WEIGHTS}",
        profile.stack.limits.adapter_bytes,
    )
    return manifest


def load_checkpoint(
    objects: ObjectStore,
    request: ReleaseRequest,
    profile: Profile,
    value: ReleaseInput,
    published: Callable[[str], str | None],
) -> CheckpointManifest | None:
    """Read the checkpoint that training goes on from; None without one.

    Raises:
        PeftError: as :func:`resolve`.
    """
    if value.checkpoint is None:
        return None
    manifest = parse_checkpoint(_load(objects, value.checkpoint, "the checkpoint"))
    source = parse_request(
        _load(objects, manifest.request_sha256, "the checkpoint's request", MAX_REQUEST_BYTES)
    )
    check_source_request(manifest, source)
    check_resume(
        manifest,
        request=request,
        max_steps=profile.settings.max_steps,
        published=published(manifest.source_operation),
        digest=value.checkpoint,
    )
    files = dict(manifest.files)
    check_trainer_state(_load(objects, files[_TRAINER_STATE], _TRAINER_STATE), manifest.step)
    for name, sha256 in manifest.files:
        _require(objects, sha256, f"the checkpoint's {name}", profile.stack.caps.file_bytes)
    return manifest
