"""A file that was opened for reading and found to be what it has to be."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from ticket_agent.peft.errors import FileChangedError, FileRefusedError, PeftIoError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Identity", "Kind", "OpenedFile", "kind_of"]


class Kind(StrEnum):
    """What stands behind a name, links not followed; the values are words for error lines."""

    FILE = "a regular file"
    DIR = "a directory"
    LINK = "a symlink"
    OTHER = "a device, FIFO or socket"


def kind_of(mode: int) -> Kind:
    """Return the kind for ``st_mode``."""
    if stat.S_ISREG(mode):
        return Kind.FILE
    if stat.S_ISDIR(mode):
        return Kind.DIR
    return Kind.LINK if stat.S_ISLNK(mode) else Kind.OTHER


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which file it is and, as far as its metadata tell, which content it has."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        """The identity of the file with this status."""
        return cls(
            device=status.st_dev,
            inode=status.st_ino,
            size=status.st_size,
            mtime_ns=status.st_mtime_ns,
            ctime_ns=status.st_ctime_ns,
        )


class OpenedFile:
    """A regular file with exactly one name and 1..=``max_bytes`` bytes, open for reading.

    Attributes:
        fd: the descriptor; its offset is not used by anything here.
        label: what to call the file in an error line.
        size: bytes, as found at opening.
        identity: the file as found at opening.
    """

    def __init__(self, fd: int, *, label: str, max_bytes: int) -> None:
        """Take over ``fd``, or refuse it; a refused descriptor stays the caller's to close."""
        status = os.fstat(fd)
        kind = kind_of(status.st_mode)
        if kind is not Kind.FILE:
            raise FileRefusedError(f"{label} is {kind}, not a regular file")
        if status.st_nlink == 0:
            raise FileChangedError(f"{label} was replaced or removed while it was opened")
        if status.st_nlink != 1:
            raise FileRefusedError(
                f"{label} has {status.st_nlink} names (hard links); only a file with one name is used"
            )
        if status.st_size == 0:
            raise FileRefusedError(f"{label} is empty")
        if status.st_size > max_bytes:
            raise FileRefusedError(f"{label} has {status.st_size} bytes; at most {max_bytes} are accepted")
        self.fd: Final = fd
        self.label: Final = label
        self.size: Final = status.st_size
        self.identity: Final = Identity.of(status)
        self._closed = False

    def unchanged(self) -> bool:
        """Tell whether the file still has the size and the time stamps it was opened with.

        A writer who sets no trace in them (a mapping that is not written back yet, a clock tick that two
        writes share) is not seen: what counts is the digest of the bytes that were read.
        """
        status = os.fstat(self.fd)
        # Renaming or removing a file changes its ctime too, and takes none of its content away.
        return Identity.of(status) == self.identity

    def chunks(self, buffer: memoryview) -> Iterator[memoryview]:
        """Read the file from its beginning, each time into ``buffer``, and yield the part that was filled.

        Raises:
            FileChangedError: the file grew, shrank or was written to meanwhile; raised at the end, or as
                soon as more bytes come than the file had.
            PeftIoError: reading failed.
        """
        offset = 0
        while count := self._read(buffer, offset):
            offset += count
            if offset > self.size:
                raise self._changed()
            yield buffer[:count]
        if offset != self.size or not self.unchanged():
            raise self._changed()

    def close(self) -> None:
        """Close the descriptor."""
        if not self._closed:
            self._closed = True
            os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, buffer: memoryview, offset: int) -> int:
        try:
            return os.preadv(self.fd, [buffer], offset)
        except OSError as error:
            raise PeftIoError(f"reading {self.label}", error) from error

    def _changed(self) -> FileChangedError:
        return FileChangedError(f"{self.label} was changed while it was read; let its writer finish first")
