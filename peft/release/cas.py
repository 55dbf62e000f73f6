"""The object store: immutable content, each file named by the SHA-256 of its bytes.

Nothing is believed because of its name: content is hashed whenever it is read, whoever wrote it. An object is
complete and durable before it has its name, and it is never replaced.
"""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.copying import copy_hashed, hash_file
from ticket_agent.peft.errors import FileRefusedError, NameTakenError
from ticket_agent.peft.names import IMPORT_STAGING, is_partial, is_staging, new_staging_name, shown
from ticket_agent.peft.release.bundle import MAX_BASE_WEIGHTS_BYTES, MAX_BUNDLE_FILE_BYTES
from ticket_agent.peft.release.canonical import MAX_JSON_BYTES, digest
from ticket_agent.peft.release.root_errors import CapacityError, ObjectCorruptError
from ticket_agent.protocol.tokens import SHA256_PATTERN

if TYPE_CHECKING:
    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.opened import OpenedFile
    from ticket_agent.peft.release.guard import Guard

__all__ = ["MAX_OBJECT_BYTES", "ObjectStore", "StoreLimits", "Usage"]

MAX_OBJECT_BYTES: Final = MAX_BUNDLE_FILE_BYTES
"""Of an object that is stored or loaded in one piece."""

_SHA256 = re.compile(SHA256_PATTERN)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """How much a store may hold: entries of any kind, and their bytes together."""

    entries: int = 4096
    bytes: int = 2 * 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How much a store holds, unfinished and foreign entries included."""

    entries: int
    bytes: int


class ObjectStore:
    """The objects in one open directory. Whoever changes something holds the root's lock."""

    def __init__(self, directory: Directory, guard: Guard, limits: StoreLimits | None = None) -> None:
        self._directory = directory
        self._guard = guard
        self._limits = limits or StoreLimits()

    def store(self, data: bytes) -> str:
        """Durably store an object and return its digest; one that is there already is compared.

        Raises:
            FileRefusedError: ``data`` is empty or longer than 32 MiB; or what has the name is no file.
            ObjectCorruptError: the object is there with another content.
            CapacityError: there is no room for it.
            PeftIoError: the system failed; nothing partial has the object's name.
            RootPoisonedError: an earlier change failed.
        """
        name = digest(data)
        if not 1 <= len(data) <= MAX_OBJECT_BYTES:
            raise FileRefusedError(f"an object has 1..={MAX_OBJECT_BYTES} bytes, not {len(data)}")
        with self._guard.changing():
            if self._directory.kind(name) is None:
                self._require_room(len(data))
                self._directory.write_file(name, data)
            else:
                self._compare(name, len(data))
        return name

    def store_file(self, source: OpenedFile, *, max_bytes: int = MAX_BASE_WEIGHTS_BYTES) -> str:
        """Durably store a file's content and return its digest, in constant memory.

        Raises:
            FileRefusedError: the file is longer than ``max_bytes``.
            FileChangedError: it was changed meanwhile.
            PeftError: as :meth:`store`.
        """
        if source.size > max_bytes:
            raise FileRefusedError(f"{source.label} has {source.size} bytes; at most {max_bytes} are stored")
        with self._guard.changing():
            name = hash_file(source).sha256
            if self._directory.kind(name) is not None:
                self._compare(name, source.size)
                return name
            self._require_room(source.size)
            # Under its final name only when the copy is known to be what was hashed.
            unfinished = new_staging_name(IMPORT_STAGING)
            copied = copy_hashed(source, self._directory, unfinished, max_bytes=max_bytes)
            try:
                self._directory.rename(unfinished, self._directory, copied.sha256, replace=False)
            except NameTakenError:
                self._directory.unlink(unfinished)
                self._compare(copied.sha256, copied.bytes)
        return copied.sha256

    def load(self, sha256: str, *, max_bytes: int = MAX_JSON_BYTES) -> bytes:
        """Return an object's bytes, after comparing them with its name.

        Raises:
            AbsentError: there is no such object.
            FileRefusedError: it is a link, no regular file, has a second name, is empty, or is longer than
                ``max_bytes``, which is known before anything is read.
            FileChangedError: somebody writes to it.
            ObjectCorruptError: it holds something else.
            PeftIoError: the system failed.
        """
        data = self._directory.read_file(_checked(sha256), max_bytes=max_bytes)
        if digest(data) != sha256:
            raise self._corrupt(sha256)
        return data

    def open(self, sha256: str, *, max_bytes: int) -> OpenedFile:
        """Open a large object for reading; whoever reads it has to hash it.

        Raises:
            AbsentError: there is no such object.
            FileRefusedError: as :meth:`load`.
        """
        return self._directory.open_file(_checked(sha256), max_bytes=max_bytes)

    def __contains__(self, sha256: str) -> bool:
        return self._directory.kind(_checked(sha256)) is not None

    def usage(self) -> Usage:
        """Count what is there.

        Raises:
            FileRefusedError: more entries than a directory may have.
        """
        sizes = []
        for name in self._directory.names():
            status = self._directory.status(name)
            if status is not None:
                sizes.append(status.st_size if stat.S_ISREG(status.st_mode) else 0)
        return Usage(entries=len(sizes), bytes=sum(sizes))

    def sweep(self) -> int:
        """Remove what interrupted processes have left unfinished; return how many entries that were.

        The root's lock keeps everybody out whose work could still be going on.
        """
        unfinished = [name for name in self._directory.names() if is_partial(name) or is_staging(name)]
        with self._guard.changing():
            for name in unfinished:
                self._directory.unlink(name)
        return len(unfinished)

    def _require_room(self, size: int) -> None:
        usage, limits = self.usage(), self._limits
        if usage.entries >= limits.entries:
            raise CapacityError(
                f"{self._directory.label} has {usage.entries} objects; at most {limits.entries} are kept,"
                " remove what no release needs"
            )
        if usage.bytes + size > limits.bytes:
            raise CapacityError(
                f"{self._directory.label} holds {usage.bytes} bytes; with {size} more it would exceed"
                f" {limits.bytes}, remove what no release needs"
            )

    def _compare(self, name: str, size: int) -> None:
        """An object that is there must be the one that it is called, and durable before we build on it."""
        with self._directory.open_file(name, max_bytes=MAX_BASE_WEIGHTS_BYTES) as file:
            if file.size != size or hash_file(file).sha256 != name:
                raise self._corrupt(name)
        # Whoever gave it its name may have died before the directory was synced.
        self._directory.sync()

    def _corrupt(self, sha256: str) -> ObjectCorruptError:
        return ObjectCorruptError(
            f"{self._directory.path(sha256)} does not have the content that its name says;"
            " move it away and store the right one again"
        )


def _checked(sha256: str) -> str:
    if _SHA256.fullmatch(sha256) is None:
        raise FileRefusedError(
            f"'{shown(sha256)}' is not the name of an object: 64 lowercase hexadecimal digits"
        )
    return sha256
