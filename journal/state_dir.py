"""Opening, and where allowed creating, the directories that hold a journal.

::

    <state_dir>/agent.lock      the fence, and who held it
                cursor.json     where reading goes on
                takeover.json   whose state this was before, if it was somebody's
                reserve         space held for outcomes
                ops/            one record per operation
                archive/        segments of retired records
                gaps/           operators' acknowledgements
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ticket_agent.journal.errors import JournalIoError, StateDirError

if TYPE_CHECKING:
    from ticket_agent.journal.fs import Fs

__all__ = [
    "ARCHIVE",
    "CURSOR",
    "GAPS",
    "LOCK",
    "OPS",
    "RESERVE",
    "TAKEOVER",
    "StateDir",
    "create_state_dir",
    "open_gaps",
    "open_readable",
]

LOCK = "agent.lock"
CURSOR = "cursor.json"
RESERVE = "reserve"
TAKEOVER = "takeover.json"
OPS = "ops"
ARCHIVE = "archive"
GAPS = "gaps"

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ANCESTOR = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDir:
    """Descriptors of the open directories; close them with :meth:`close`."""

    root: int
    ops: int
    archive: int
    gaps: int

    def close(self) -> None:
        """Close all four."""
        for fd in (self.root, self.ops, self.archive, self.gaps):
            with suppress(OSError):
                os.close(fd)


def create_state_dir(path: Path, fs: Fs) -> StateDir:
    """Open a state directory for its owner; what is missing is created with mode 0700 and made durable.

    Raises:
        StateDirError: a component that we open is a symlink or no directory, belongs to somebody else, or can
            be written by group or others.
        JournalIoError: creating, opening or syncing failed.
    """
    opened: list[int] = []
    try:
        root = _create_path(path, fs)
        opened.append(root)
        _require_private(root, path)
        for name in (OPS, ARCHIVE, GAPS):
            opened.append(_open_or_create(root, name, path / name))
            _require_private(opened[-1], path / name)
        # Synced at every start: a process that died between creating and syncing must not leave this undone.
        fs.fsync_dir(root)
    except BaseException as error:
        for fd in opened:
            os.close(fd)
        if isinstance(error, OSError):
            raise JournalIoError(f"the state directory {path} cannot be prepared: {error}") from error
        raise
    return StateDir(root=root, ops=opened[1], archive=opened[2], gaps=opened[3])


def open_readable(path: Path) -> int:
    """Open a directory only for reading, whoever owns it.

    Raises:
        StateDirError: it is a symlink, no directory, or absent.
        OSError: it cannot be opened for another reason.
    """
    try:
        return os.open(path, _DIRECTORY)
    except OSError as error:
        _refuse(error, path)


def _create_path(path: Path, fs: Fs) -> int:
    parts = Path(os.path.abspath(path)).parts  # noqa: PTH100 - symlinks above the last component stay as they are
    depth = len(parts) - 1
    while depth > 1 and not os.path.isdir(os.path.join(*parts[:depth])):  # noqa: PTH112, PTH118
        depth -= 1
    _sync_parent(Path(*parts[:depth]), fs)
    here = os.open(os.path.join(*parts[:depth]), _ANCESTOR)  # noqa: PTH118
    for index in range(depth, len(parts)):
        parent = here
        try:
            here = _open_or_create(parent, parts[index], Path(*parts[: index + 1]))
            try:
                fs.fsync_dir(parent)
            except OSError:
                os.close(here)
                raise
        finally:
            os.close(parent)
    return here


def _sync_parent(existing: Path, fs: Fs) -> None:
    # An earlier process may have created ``existing`` and died before syncing; where we may not read the
    # parent it was not us who created something in it.
    try:
        fd = os.open(existing.parent, _ANCESTOR)
    except PermissionError:
        return
    try:
        fs.fsync_dir(fd)
    finally:
        os.close(fd)


def _open_or_create(parent: int, name: str, path: Path) -> int:
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError as error:
        _refuse(error, path)


def _refuse(error: OSError, path: Path) -> NoReturn:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        raise StateDirError(f"{path} is a symlink or not a directory; name the directory itself") from error
    if error.errno == errno.ENOENT:
        raise StateDirError(f"{path} does not exist; name the state directory of an agent") from error
    raise error


def _require_private(fd: int, path: Path) -> None:
    status = os.fstat(fd)
    if status.st_uid != os.geteuid():
        raise StateDirError(
            f"{path} belongs to user {status.st_uid}, not to {os.geteuid()}; run as its owner"
        )
    if status.st_mode & _OTHERS_WRITE:
        raise StateDirError(f"{path} can be written by others; run: chmod go-w {path}")


def open_gaps(path: Path, fs: Fs) -> int:
    """Open the directory of acknowledgements of an existing state directory for writing.

    Raises:
        StateDirError: see :func:`create_state_dir`; here the state directory itself must exist.
        OSError: it cannot be opened or created for another reason.
    """
    root = open_readable(path)
    try:
        _require_private(root, path)
        fd = _open_or_create(root, GAPS, path / GAPS)
        try:
            _require_private(fd, path / GAPS)
            fs.fsync_dir(root)
        except BaseException:
            os.close(fd)
            raise
        return fd
    finally:
        os.close(root)
