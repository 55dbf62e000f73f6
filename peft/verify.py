"""Checking a registry: every file against what its manifest says, one verdict each.

Checking needs neither a lock nor ownership, so it works on a copy. Files are hashed in pieces, whatever their
size, and what is changed while it is hashed is never found to be right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.control import (
    POINTER_FILE,
    STATE_FILE,
    Control,
    parse_pointer,
    parse_state,
    read_optional,
)
from ticket_agent.peft.copying import hash_file
from ticket_agent.peft.errors import (
    AbsentError,
    ArtifactRefusedError,
    FileChangedError,
    FileRefusedError,
    PeftError,
    RegistryError,
)
from ticket_agent.peft.leftovers import is_unfinished_write
from ticket_agent.peft.limits import MAX_POINTER_BYTES, MAX_STATE_BYTES
from ticket_agent.peft.manifest import MANIFEST_FILE, MODEL_FILES, BaseManifest, Manifest
from ticket_agent.peft.names import is_reserved, is_staging
from ticket_agent.peft.registry import AVAILABLE, brief, load_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.manifest import Artifact
    from ticket_agent.peft.registry import Contents, Model, Registry

__all__ = ["Intact", "Verdict", "require_intact", "verify", "verify_model"]

_LEFT_BEHIND: Final = "left by an unfinished write; never used, and `peft gc` removes it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether one file is what it should be.

    Attributes:
        file: its path from the registry's root.
        ok: nothing is wrong with it.
        reason: what is wrong, or what else is to be known about it; usually empty when nothing is wrong.
    """

    file: str
    ok: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intact:
    """A model all of whose files were found to be what its manifest says."""

    manifest: Manifest | BaseManifest
    manifest_sha256: str


def require_intact(registry: Registry, model: str) -> Intact:
    """Hash a model's files, and refuse the model unless each is what the manifest says.

    Raises:
        RegistryError: there is no such model, or it has no manifest.
        ArtifactRefusedError: the manifest cannot be used, or a file is missing, damaged, or no plain file.
        NameRefusedError: no model can have that name.
        FileChangedError: a file was changed meanwhile; a later try may find it at rest.
        PeftIoError: the system failed.
    """
    with registry.open_model(model) as folder:
        try:
            manifest, digest = load_manifest(folder, model)
        except AbsentError:
            raise RegistryError(f"model {model} is not available: its import was not finished") from None
        except FileChangedError:
            raise
        except (RegistryError, FileRefusedError) as error:
            raise ArtifactRefusedError(f"model {model} is damaged: {error}") from error
        if isinstance(manifest, BaseManifest) and (found := MODEL_FILES.keys() & set(folder.names())):
            raise ArtifactRefusedError(f"model {model} is damaged: its manifest is silent about {min(found)}")
        for name, artifact in manifest.files.items():
            try:
                _check_file(folder, name, artifact)
            except FileChangedError:
                raise
            except (ArtifactRefusedError, FileRefusedError) as error:
                raise ArtifactRefusedError(f"model {model} is damaged: {error}") from error
    return Intact(manifest=manifest, manifest_sha256=digest)


def verify(registry: Registry) -> Iterator[Verdict]:
    """Check everything, one file after the other.

    Raises:
        PeftError: the root or ``available`` cannot be listed.
    """
    contents = registry.contents()
    ready = frozenset(model.id for model in contents.models if model.manifest is not None)
    yield from _control(registry.root, ready)
    yield from _root(registry.root)
    yield from _foreign(contents)
    for model in contents.models:
        yield from _model(registry, model)


def verify_model(registry: Registry, model: str) -> Iterator[Verdict]:
    """Check the files of one model.

    Raises:
        PeftError: there is no such model, or it cannot be listed.
    """
    yield from _model(registry, registry.model(model))


def _control(root: Directory, ready: frozenset[str]) -> Iterator[Verdict]:
    """The control files that are there, each by itself and then against the other and the models."""
    problems = {POINTER_FILE: "", STATE_FILE: ""}
    pointer = current = previous = None
    try:
        pointer = parse_pointer(read_optional(root, POINTER_FILE, MAX_POINTER_BYTES))
    except PeftError as error:
        problems[POINTER_FILE] = brief(error, root, POINTER_FILE)
    try:
        current, previous = parse_state(read_optional(root, STATE_FILE, MAX_STATE_BYTES))
    except PeftError as error:
        problems[STATE_FILE] = brief(error, root, STATE_FILE)
    if pointer is not None and pointer not in ready:
        problems[POINTER_FILE] = f"names {pointer}, which is not an available model"
    control = Control(pointer=pointer, current=current, previous=previous)
    if not any(problems.values()) and not control.consistent:
        problems[STATE_FILE] = f"does not agree with {POINTER_FILE}, which counts ({control})"
    elif not problems[STATE_FILE] and previous is not None and previous not in ready:
        problems[STATE_FILE] = f"names {previous}, which is not an available model: no way back"
    for name, problem in problems.items():
        if problem or root.kind(name) is not None:
            yield Verdict(file=name, ok=not problem, reason=problem)


def _root(root: Directory) -> Iterator[Verdict]:
    for name in root.names():
        if is_staging(name) or is_unfinished_write(name):
            yield Verdict(file=name, ok=True, reason=_LEFT_BEHIND)
        elif name not in (POINTER_FILE, STATE_FILE, AVAILABLE) and not is_reserved(name):
            yield Verdict(file=name, ok=True, reason="not part of a registry; never used")


def _foreign(contents: Contents) -> Iterator[Verdict]:
    for entry in contents.foreign:
        yield Verdict(file=f"{AVAILABLE}/{entry.name}", ok=False, reason=entry.reason)
    for first, *others in contents.twins:
        for other in others:
            reason = f"differs from {first} only in upper and lower case"
            yield Verdict(file=f"{AVAILABLE}/{other}", ok=False, reason=reason)


def _model(registry: Registry, model: Model) -> Iterator[Verdict]:
    place = f"{AVAILABLE}/{model.id}"
    if model.unfinished:
        yield Verdict(file=place, ok=True, reason="an import that was not finished; not a model")
        return
    try:
        with registry.open_model(model.id) as folder:
            names = set(folder.names())
            yield Verdict(
                file=f"{place}/{MANIFEST_FILE}",
                ok=model.problem is None,
                reason=model.problem or _note(model),
            )
            files = {} if model.manifest is None else model.manifest.files
            for name in sorted((names | files.keys()) - {MANIFEST_FILE}):
                if name not in files:
                    ok, reason = _unnamed(name, damaged=model.manifest is None)
                else:
                    reason = _wrong(folder, name, files[name])
                    ok = not reason
                yield Verdict(file=f"{place}/{name}", ok=ok, reason=reason)
    except PeftError as error:
        yield Verdict(file=place, ok=False, reason=str(error))


def _note(model: Model) -> str:
    match model.manifest:
        case Manifest(newest=False):
            return "in the older layout, without a digest of the model"
        case BaseManifest():
            return "of a base model; names no files"
    return ""


def _unnamed(name: str, *, damaged: bool) -> tuple[bool, str]:
    if is_unfinished_write(name):
        return True, _LEFT_BEHIND
    if damaged and name in MODEL_FILES:
        return False, "cannot be checked: the manifest says what it must hold"
    return False, "foreign: the manifest does not name it"


def _wrong(folder: Directory, name: str, artifact: Artifact) -> str:
    try:
        _check_file(folder, name, artifact)
    except PeftError as error:
        return brief(error, folder, name)
    return ""


def _check_file(folder: Directory, name: str, artifact: Artifact) -> None:
    place = folder.path(name)
    try:
        with folder.open_file(name, max_bytes=MODEL_FILES[name]) as file:
            if file.size != artifact.bytes:
                raise ArtifactRefusedError(
                    f"{place} has {file.size} bytes; its manifest says {artifact.bytes}"
                )
            digest = hash_file(file).sha256
    except AbsentError:
        raise ArtifactRefusedError(f"{place} is missing; the manifest names it") from None
    if digest != artifact.sha256:
        raise ArtifactRefusedError(f"{place} has SHA-256 {digest}; its manifest says {artifact.sha256}")
