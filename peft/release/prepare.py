"""Preparing a release: from what an engineer chose to the request that a ticket names, with all it needs.

First everything is looked at and nothing is changed: what is refused leaves no trace in the root. Then the
objects are stored, the bundles are made, and last of all the operation's id is taken for this one request.
The same choice gives the same bytes, so doing it again, after a crash or by mistake, changes nothing.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ticket_agent.peft.errors import AbsentError, PeftError
from ticket_agent.peft.release.adapter_choice import choose_adapter, open_adapter, store_files
from ticket_agent.peft.release.base_choice import choose_base, open_folder
from ticket_agent.peft.release.bundle import MAX_BASE_WEIGHTS_BYTES
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.checkpoint import check_resume, check_source_request
from ticket_agent.peft.release.deployment import DeploymentState
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.draft import Draft
from ticket_agent.peft.release.inputs import check_input, encode_input
from ticket_agent.peft.release.keys import read_private_key
from ticket_agent.peft.release.layout import BEGUN_FILE
from ticket_agent.peft.release.markers import RuntimeSelection
from ticket_agent.peft.release.prepared import PREPARED_FILE, Preparation, find_preparation
from ticket_agent.peft.release.request import (
    MAX_REQUEST_BYTES,
    Entry,
    ReleaseRequest,
    encode_request,
    parse_request,
    request_digest,
)
from ticket_agent.peft.release.resolve import resolve
from ticket_agent.peft.release.resume_choice import (
    published_checkpoint,
    require_checkpoint,
    store_checkpoint,
)

if TYPE_CHECKING:
    from ticket_agent.peft.release.adapter_choice import AdapterChoice, ChosenAdapter
    from ticket_agent.peft.release.base_choice import ChosenBase
    from ticket_agent.peft.release.checkpoint import CheckpointManifest
    from ticket_agent.peft.release.keys import PrivateKey
    from ticket_agent.peft.release.private_root import PrivateRoot
    from ticket_agent.peft.release.profile import Profile
    from ticket_agent.peft.release.selection import Selection

__all__ = ["PreparedRelease", "first_deployment", "prepare_release"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRelease:
    """What was prepared.

    Attributes:
        request_sha256: what the ticket names.
        request: the request.
        profile_sha256: digest of the profile.
        profile: the profile.
        input_sha256: digest of the input.
        adapter_sha256: identity of the imported adapter; None where one is trained.
        adapter_bundle_sha256: its bundle.
        passed_over: files of the base model's directory that are not used.
        again: it had been prepared already, and nothing was changed.
    """

    request_sha256: str
    request: ReleaseRequest
    profile_sha256: str
    profile: Profile
    input_sha256: str
    adapter_sha256: str | None
    adapter_bundle_sha256: str | None
    passed_over: tuple[str, ...]
    again: bool


def prepare_release(
    root: PrivateRoot,
    selection: Selection,
    *,
    operation_id: str,
    model_id: str,
    entry: Entry,
    adapter: AdapterChoice | None = None,
    resume: str | None = None,
    key: PrivateKey | None = None,
) -> PreparedRelease:
    """Prepare a release; safe to repeat. The root's lock must be held.

    Args:
        root: where it is prepared.
        selection: what was chosen.
        operation_id: id of the release, for this request alone.
        model_id: the model that it is of.
        entry: whether an adapter is trained or imported.
        adapter: the one that is imported.
        resume: operation whose newest checkpoint training goes on from.
        key: of who vouches for the inputs; by default it is read from the file that the selection names.

    Raises:
        DocumentError: a choice that no release has, or the id was prepared for another request.
        ArtifactRefusedError, ModelMismatchError: base model or adapter do not fit.
        KeyFileError, CryptographyMissingError: nobody can vouch for the inputs.
        PeftError: a file cannot be read, or the root cannot be changed.
    """
    _check_entry(entry, adapter, resume)
    with ExitStack() as opened:
        base_folder = opened.enter_context(open_folder(selection.base))
        base = choose_base(base_folder, selection.base, selection.stack.target_modules)
        draft = Draft(selection, base, key or read_private_key(selection.private_key))
        imported, adapter_folder = None, None
        if adapter is not None:
            adapter_folder = opened.enter_context(open_adapter(adapter))
            imported = choose_adapter(adapter_folder, adapter, draft.profile)
        checkpoint = None if resume is None else require_checkpoint(root, resume)
        value = draft.release_input(imported, None if checkpoint is None else checkpoint[0])
        request = ReleaseRequest(
            operation_id=operation_id,
            model_id=model_id,
            entry=entry,
            profile_sha256=draft.profile_sha256,
            input_sha256=digest(encode_input(value)),
            evaluation_policy=selection.evaluation_policy,
            baseline=_baseline(root, draft.profile),
        )
        check_input(value, request=request, profile=draft.profile)
        if checkpoint is not None:
            _check_checkpoint(root, checkpoint, request, draft.profile)
        again = _known(root, request)
        store_files(base_folder, base.manifest, _storing(root), what="base model")
        if imported is not None and adapter_folder is not None:
            store_files(adapter_folder, imported.manifest, _storing(root), what="adapter")
    if resume is not None and checkpoint is not None:
        store_checkpoint(root, resume, *checkpoint)
    _store(root, draft, request, imported)
    return _prepared(draft, request, base, imported, again=again)


def _check_entry(entry: Entry, adapter: AdapterChoice | None, resume: str | None) -> None:
    if (entry is Entry.IMPORT) != (adapter is not None):
        raise DocumentError("an import takes an adapter, and a training takes none", rule="entry")
    if resume is not None and entry is not Entry.TRAIN:
        raise DocumentError("only a training can go on from a checkpoint", rule="checkpoint")


def first_deployment(profile: Profile) -> DeploymentState:
    """What is deployed before the first release: the base model alone."""
    return DeploymentState(
        generation=0,
        adapter_sha256=None,
        served_artifact_sha256=profile.base,
        runtime_sha256=profile.runtime_sha256,
        healthy=True,
        rollback_verified=True,
    )


def _prepared(
    draft: Draft, request: ReleaseRequest, base: ChosenBase, imported: ChosenAdapter | None, *, again: bool
) -> PreparedRelease:
    return PreparedRelease(
        request_sha256=request_digest(request),
        request=request,
        profile_sha256=draft.profile_sha256,
        profile=draft.profile,
        input_sha256=request.input_sha256,
        adapter_sha256=None if imported is None else imported.scanned.adapter_sha256,
        adapter_bundle_sha256=None if imported is None else imported.bundle_sha256,
        passed_over=base.passed_over,
        again=again,
    )


def _baseline(root: PrivateRoot, profile: Profile) -> DeploymentState:
    """What is deployed now, which the release has to start from; refused if it never can."""
    try:
        found = root.control.accepted()
    except AbsentError:
        return first_deployment(profile)
    if found.runtime_sha256 != profile.runtime_sha256:
        raise DocumentError(
            f"generation {found.generation} is deployed on another runtime (packages, device):"
            f" {found.runtime_sha256[:12]}, the selection's is {profile.runtime_sha256[:12]};"
            " select the deployed versions, or begin with a new root",
            rule="baseline-runtime",
        )
    if found.adapter_sha256 is None and found.served_artifact_sha256 != profile.base:
        raise DocumentError(
            f"another base model is deployed: {found.served_artifact_sha256[:12]}, the selection's is"
            f" {profile.base[:12]}; select the deployed one, or begin with a new root",
            rule="baseline-base",
        )
    return found


def _check_checkpoint(
    root: PrivateRoot,
    checkpoint: tuple[str, CheckpointManifest],
    request: ReleaseRequest,
    profile: Profile,
) -> None:
    sha256, manifest = checkpoint
    check_resume(
        manifest,
        request=request,
        max_steps=profile.settings.max_steps,
        published=sha256,
        digest=sha256,
    )
    source = root.objects.load(manifest.request_sha256, max_bytes=MAX_REQUEST_BYTES)
    check_source_request(manifest, parse_request(source))


def _known(root: PrivateRoot, request: ReleaseRequest) -> bool:
    """Whether the request was prepared already.

    Raises:
        DocumentError: its id belongs to another request.
    """
    known = find_preparation(root, request.operation_id)
    if known is None:
        _require_unused(root, request.operation_id)
        return False
    if known.request_sha256 == request_digest(request):
        return True
    raise DocumentError(
        f"operation {request.operation_id} was prepared for another request:"
        f" {_difference(root, known, request)}; choose a new operation id",
        rule="operation-used",
    )


def _require_unused(root: PrivateRoot, operation_id: str) -> None:
    try:
        with root.operation(operation_id) as directory:
            used = directory.kind(BEGUN_FILE) is not None
    except AbsentError:
        return
    if used:
        raise DocumentError(
            f"operation {operation_id} has begun, and was prepared elsewhere; choose a new operation id",
            rule="operation-used",
        )


def _difference(root: PrivateRoot, known: Preparation, request: ReleaseRequest) -> str:
    """What differs, for people."""
    try:
        other = parse_request(root.objects.load(known.request_sha256, max_bytes=MAX_REQUEST_BYTES)).members()
    except PeftError:
        return known.request_sha256
    own = request.members()
    names = [name for name in own if own[name] != other[name]]
    if names == ["baseline"]:
        return (
            f"generation {other['baseline']['generation']} was deployed then,"
            f" generation {request.baseline.generation} is now"
        )
    return f"another {', '.join(names)}"


def _storing(root: PrivateRoot) -> partial[str]:
    return partial(root.objects.store_file, max_bytes=MAX_BASE_WEIGHTS_BYTES)


def _store(root: PrivateRoot, draft: Draft, request: ReleaseRequest, imported: ChosenAdapter | None) -> None:
    for data in draft.documents.values():
        root.objects.store(data)
    request_sha256 = root.objects.store(encode_request(request))
    root.materialise(draft.profile.base)
    if imported is not None:
        root.materialise(imported.bundle_sha256)
    resolve(
        root.objects,
        request_sha256,
        operation_id=request.operation_id,
        model_id=request.model_id,
        published=partial(published_checkpoint, root),
    )
    _initialise(root, draft.profile)
    taken = Preparation(
        operation_id=request.operation_id, request_sha256=request_sha256, model_id=request.model_id
    )
    root.write_operation_file(request.operation_id, PREPARED_FILE, taken.encode())


def _initialise(root: PrivateRoot, profile: Profile) -> None:
    """Have a deployment state, in a root that never had one. What a server loads is said first."""
    try:
        root.control.accepted()
    except AbsentError:
        root.control.select_runtime(RuntimeSelection(bundle_sha256=profile.base, adapter_sha256=None))
        root.control.initialise(first_deployment(profile))
