"""The registry as it is on disk: which models there are, and what else.

Looking needs no lock: a model appears by one rename, and a file that changes under the eyes of a reader is
shown as one that cannot be read now. Nothing here writes.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from ticket_agent.peft.control import read_control
from ticket_agent.peft.errors import AbsentError, NameRefusedError, PeftError, RegistryError
from ticket_agent.peft.limits import MAX_LORA_BYTES, MAX_MANIFEST_BYTES
from ticket_agent.peft.manifest import LORA_FILE, MANIFEST_FILE, Manifest, parse
from ticket_agent.peft.names import case_twins, check_component, is_reserved
from ticket_agent.peft.opened import Kind
from ticket_agent.protocol.errors import JsonError
from ticket_agent.protocol.json_strict import parse_object

if TYPE_CHECKING:
    from ticket_agent.peft.control import Control
    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.manifest import BaseManifest

__all__ = ["AVAILABLE", "Contents", "Foreign", "Model", "Registry", "brief", "load_manifest"]

AVAILABLE: Final = "available"
"""The directory of the models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A directory that is, or was to become, a model.

    Attributes:
        id: the name of the directory.
        manifest: what the manifest says, or None if there is none or it cannot be used.
        manifest_sha256: digest of the manifest's bytes, or None likewise.
        problem: why there is no manifest to use; None when there is one.
        unfinished: there is no manifest at all: an import did not come to its end.
        rank: of the LoRA matrices, as ``lora.json`` says, or None when nobody says.
        bytes: of all its files together, on their face.
        changed_unix_ms: when the manifest was last changed, or the directory when there is no manifest.
    """

    id: str
    manifest: Manifest | BaseManifest | None
    manifest_sha256: str | None
    problem: str | None
    unfinished: bool
    rank: int | None
    bytes: int
    changed_unix_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """An entry beside the models that is none, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """All that is in ``available``, from one listing.

    Attributes:
        models: by id.
        foreign: by name; locks and unfinished work under their reserved names are passed over.
        twins: ids that are one where upper and lower case are not told apart, as on some file systems.
    """

    models: tuple[Model, ...]
    foreign: tuple[Foreign, ...]
    twins: tuple[tuple[str, ...], ...]


class Registry:
    """An opened registry; close it, or use it in a ``with`` statement. The root stays the caller's.

    Attributes:
        root: the registry's root.
        available: the directory of the models; None when there is none yet.
    """

    def __init__(self, root: Directory, available: Directory | None) -> None:
        self.root: Final = root
        self.available: Final = available

    @classmethod
    def open(cls, root: Directory) -> Self:
        """Open the registry in ``root``.

        Raises:
            FileRefusedError: ``available`` is a link or no directory.
            PeftIoError: the system failed.
        """
        try:
            return cls(root, root.open_dir(AVAILABLE))
        except AbsentError:
            return cls(root, None)

    def close(self) -> None:
        """Close the directory of the models."""
        if self.available is not None:
            self.available.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def control(self) -> Control:
        """Tell which model is active, and which was before; see :func:`read_control`."""
        return read_control(self.root)

    def open_model(self, model: str) -> Directory:
        """Open a model's directory.

        Raises:
            RegistryError: there is none.
            NameRefusedError: no model can have that name.
            FileRefusedError: it is a link or no directory.
        """
        check_component(model, what="the model")
        if self.available is None or self.available.kind(model) is None:
            raise RegistryError(f"model {model} is not available")
        return self.available.open_dir(model)

    def model(self, model: str) -> Model:
        """Look at one model; what is wrong inside it is told by the value.

        Raises:
            PeftError: see :meth:`open_model`.
        """
        with self.open_model(model) as folder:
            return _look(folder, model)

    def contents(self) -> Contents:
        """Look at everything in ``available``.

        Raises:
            FileRefusedError: there are more entries than a registry can have.
            PeftIoError: the system failed.
        """
        if self.available is None:
            return Contents(models=(), foreign=(), twins=())
        models: list[Model] = []
        foreign: list[Foreign] = []
        for name in self.available.names():
            if is_reserved(name):
                continue
            found = _model_or_foreign(self.available, name)
            if isinstance(found, Model):
                models.append(found)
            elif found is not None:
                foreign.append(found)
        twins = case_twins(model.id for model in models)
        return Contents(models=tuple(models), foreign=tuple(foreign), twins=tuple(twins))


def load_manifest(folder: Directory, model: str) -> tuple[Manifest | BaseManifest, str]:
    """Read the manifest in a model's directory.

    Returns:
        The manifest, and the SHA-256 of its bytes.

    Raises:
        AbsentError: there is none.
        RegistryError: it cannot be used, or belongs to another model.
        FileRefusedError: it is a link, empty, too large, or has a second name.
        PeftIoError: the system failed.
    """
    data = folder.read_file(MANIFEST_FILE, max_bytes=MAX_MANIFEST_BYTES)
    manifest = parse(data)
    if manifest.model != model:
        raise RegistryError(f"{MANIFEST_FILE}: is that of model {manifest.model}, not of {model}")
    return manifest, hashlib.sha256(data).hexdigest()


def brief(error: PeftError, folder: Directory, name: str) -> str:
    """What an error says about an entry, for a reader who sees the entry's name anyway."""
    return str(error).removeprefix(f"{folder.path(name)} ").removeprefix(f"{name}: ")


def _model_or_foreign(available: Directory, name: str) -> Model | Foreign | None:
    try:
        kind = available.kind(name)
        if kind is None:
            return None  # removed since it was listed
        if kind is not Kind.DIR:
            return Foreign(name=name, reason=f"is {kind}, not a model's directory")
        check_component(name, what="its name")
        with available.open_dir(name) as folder:
            return _look(folder, name)
    except NameRefusedError as error:
        return Foreign(name=name, reason=f"is no model: {error}")
    except PeftError as error:
        return Foreign(name=name, reason=brief(error, available, name))


def _look(folder: Directory, model: str) -> Model:
    size, changed = _measure(folder)
    manifest = digest = problem = None
    unfinished = False
    try:
        manifest, digest = load_manifest(folder, model)
    except AbsentError:
        unfinished, problem = True, "has no manifest: its import was not finished"
    except PeftError as error:
        problem = brief(error, folder, MANIFEST_FILE)
    return Model(
        id=model,
        manifest=manifest,
        manifest_sha256=digest,
        problem=problem,
        unfinished=unfinished,
        rank=_rank(folder) if isinstance(manifest, Manifest) else None,
        bytes=size,
        changed_unix_ms=changed,
    )


def _measure(folder: Directory) -> tuple[int, int]:
    """Bytes of all files, and when the manifest or else the directory was changed."""
    size = 0
    changed_ns = os.fstat(folder.fd).st_mtime_ns
    for name in folder.names():
        status = folder.status(name)
        if status is not None and stat.S_ISREG(status.st_mode):
            size += status.st_size
            if name == MANIFEST_FILE:
                changed_ns = status.st_mtime_ns
    return size, changed_ns // 1_000_000


def _rank(folder: Directory) -> int | None:
    try:
        data = folder.read_file(LORA_FILE, max_bytes=MAX_LORA_BYTES)
        members = parse_object(data, what=LORA_FILE, max_bytes=MAX_LORA_BYTES)
    except (PeftError, JsonError):
        return None
    rank = members.get("rank")
    return rank if type(rank) is int and rank > 0 else None
