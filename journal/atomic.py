"""The only place where a file of the state directory is written; other trees may use the same steps.

Create a temporary with a fresh name in the same directory, write all, fsync, close, give it its name, fsync
the directory. Nothing less is durable: without the first fsync the name can come back after a power cut with
zeros in it, without the second the old file comes back with a complete temporary beside it. A temporary is
therefore never taken for a file, however complete it looks.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING

from ticket_agent.journal.errors import JournalError
from ticket_agent.journal.fs import OUT_OF_SPACE

if TYPE_CHECKING:
    from ticket_agent.journal.fs import Fs

__all__ = [
    "ReplaceError",
    "Step",
    "create_temporary",
    "is_temporary",
    "remove_temporaries",
    "replace_file",
]

_SUFFIX = ".tmp"
_TEMPORARY = re.compile(rf"\..*{re.escape(_SUFFIX)}", re.DOTALL)
_NAME_ATTEMPTS = 1_000
_counter = itertools.count()


class Step(StrEnum):
    """Where a replacement failed."""

    CREATE = "create"
    WRITE = "write"
    FSYNC = "fsync"
    CLOSE = "close"
    RENAME = "rename"
    FSYNC_DIR = "fsync-dir"


class ReplaceError(JournalError):
    """A file could not be replaced.

    Attributes:
        step: what failed; up to ``rename`` the old file is still the one on disk, after it nobody can tell.
        errno: the system's error number, or None.
    """

    code = "journal-io"

    def __init__(self, step: Step, name: str, error: OSError) -> None:
        super().__init__(f"{step} of {name} failed: {error.strerror or error}")
        self.step = step
        self.errno = error.errno

    @property
    def out_of_space(self) -> bool:
        """The disk or the quota is full, and nothing but that is wrong."""
        return self.errno in OUT_OF_SPACE and self.step in (Step.CREATE, Step.WRITE)


def is_temporary(name: str) -> bool:
    """Tell whether a name is that of an unfinished write, of this or of any earlier process."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_temporaries(fs: Fs, dir_fd: int) -> None:
    """Remove what unfinished writes left behind; what cannot be removed stays and disturbs nobody."""
    for name in fs.list(dir_fd):
        if is_temporary(name):
            with suppress(OSError):
                fs.unlink(dir_fd, name)


def replace_file(
    fs: Fs, dir_fd: int, name: str, data: bytes, *, new: bool = False, suffix: str = _SUFFIX
) -> None:
    """Durably let ``name`` hold ``data``: exactly two fsyncs.

    Args:
        fs: where to do it.
        dir_fd: the directory, open.
        name: the file's name in it.
        data: the complete content.
        new: the name must be free; an existing file stays untouched and ``rename`` fails with EEXIST.
        suffix: end of the temporary's name, for a tree whose readers know temporaries by another one.

    Raises:
        ReplaceError: which step failed. Nothing is repeated: a failed fsync or close is final, because the
            kernel may report success the next time although the data is gone.
    """
    temporary, fd = create_temporary(fs, dir_fd, name, suffix=suffix)
    _fill(fs, dir_fd, fd, name=name, temporary=temporary, data=data)
    try:
        if new:
            fs.rename_new(dir_fd, temporary, name)
        else:
            fs.rename(dir_fd, temporary, name)
    except OSError as error:
        _discard(fs, dir_fd, temporary)
        raise ReplaceError(Step.RENAME, name, error) from error
    try:
        fs.fsync_dir(dir_fd)
    except OSError as error:
        raise ReplaceError(Step.FSYNC_DIR, name, error) from error


def create_temporary(fs: Fs, dir_fd: int, name: str, *, suffix: str = _SUFFIX) -> tuple[str, int]:
    """Create a temporary for ``name`` in the same directory; returns its name and a descriptor to write to.

    Raises:
        ReplaceError: it cannot be created.
    """
    # A process id comes back after a reboot and is always the same in a container, so a leftover of an
    # earlier process may have the very name; the next number is as good.
    for _ in range(_NAME_ATTEMPTS):
        temporary = f".{name}.{os.getpid()}.{next(_counter)}{suffix}"
        try:
            return temporary, fs.create_new(dir_fd, temporary)
        except FileExistsError:
            continue
        except OSError as error:
            raise ReplaceError(Step.CREATE, name, error) from error
    raise ReplaceError(
        Step.CREATE, name, FileExistsError(errno.EEXIST, "every temporary name is taken", name)
    )


def _fill(fs: Fs, dir_fd: int, fd: int, *, name: str, temporary: str, data: bytes) -> None:
    step = Step.WRITE
    try:
        fs.write(fd, data)
        step = Step.FSYNC
        fs.fsync(fd)
    except OSError as error:
        with suppress(OSError):
            fs.close(fd)
        _discard(fs, dir_fd, temporary)
        raise ReplaceError(step, name, error) from error
    try:
        fs.close(fd)
    except OSError as error:
        _discard(fs, dir_fd, temporary)
        raise ReplaceError(Step.CLOSE, name, error) from error


def _discard(fs: Fs, dir_fd: int, temporary: str) -> None:
    with suppress(OSError):
        fs.unlink(dir_fd, temporary)
