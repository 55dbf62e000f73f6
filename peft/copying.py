"""Copying a file between two open directories, hashed on the way."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ticket_agent.journal.atomic import ReplaceError, create_temporary
from ticket_agent.journal.fs import write_all
from ticket_agent.peft.directory import failed_replacement
from ticket_agent.peft.errors import FileRefusedError, PeftIoError
from ticket_agent.peft.limits import COPY_CHUNK_BYTES
from ticket_agent.peft.names import PARTIAL_SUFFIX, check_entry

if TYPE_CHECKING:
    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.opened import OpenedFile

__all__ = ["Copied", "copy_hashed", "hash_file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What was read, byte for byte: SHA-256 in lowercase hexadecimal digits, and the number of bytes."""

    sha256: str
    bytes: int


def hash_file(source: OpenedFile) -> Copied:
    """Hash a file in constant memory.

    Raises:
        FileChangedError: it was changed meanwhile.
        PeftIoError: reading failed.
    """
    digest = hashlib.sha256()
    for chunk in source.chunks(memoryview(bytearray(min(source.size + 1, COPY_CHUNK_BYTES)))):
        digest.update(chunk)
    return Copied(sha256=digest.hexdigest(), bytes=source.size)


def copy_hashed(source: OpenedFile, into: Directory, name: str, *, max_bytes: int) -> Copied:
    """Durably copy a file to a new name; the digest is that of the very bytes that were written.

    The name appears only when the copy is complete and synced. Constant memory, whatever the size.

    Args:
        source: the file, open.
        into: the directory to copy to.
        name: the copy's name in it, which must be free.
        max_bytes: the most that is copied.

    Raises:
        NameTakenError: the name exists.
        FileRefusedError: the file is larger than ``max_bytes``.
        FileChangedError: it was changed while it was copied.
        PeftIoError: reading or writing failed. In every case nothing new stays, except with ``applied``.
    """
    check_entry(name)
    if source.size > max_bytes:
        raise FileRefusedError(f"{source.label} has {source.size} bytes; at most {max_bytes} are copied")
    try:
        temporary, fd = create_temporary(into.fs, into.fd, name, suffix=PARTIAL_SUFFIX)
    except ReplaceError as error:
        raise failed_replacement(error, into.path(name)) from error
    moved = False
    try:
        try:
            copied = _copy(source, fd, into.path(name))
        finally:
            os.close(fd)
        into.rename(temporary, into, name, replace=False)
        moved = True
    except PeftIoError as error:
        moved = error.applied
        raise
    finally:
        if not moved:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=into.fd)
    return copied


def _copy(source: OpenedFile, fd: int, label: str) -> Copied:
    digest = hashlib.sha256()
    for chunk in source.chunks(memoryview(bytearray(min(source.size + 1, COPY_CHUNK_BYTES)))):
        digest.update(chunk)
        try:
            write_all(fd, chunk)
        except OSError as error:
            raise PeftIoError(f"writing {label}", error) from error
    try:
        os.fsync(fd)
    except OSError as error:
        raise PeftIoError(f"syncing {label}", error) from error
    return Copied(sha256=digest.hexdigest(), bytes=source.size)
