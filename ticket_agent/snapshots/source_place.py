"""The directory of one source and epoch: found, or made whole, and locked.

::

    <state_dir>/<source_id>-epoch-<epoch>/owner.lock     held for the publisher's life
                                          cursor.json    the last number that was reserved

A new one is made under another name and gets its own by one rename when it is complete, so that one with its
name and without a cursor is never left by a crash. Such a one is refused: with the cursor the numbers would
be lost that receivers know.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ticket_agent.journal.atomic import ReplaceError, replace_file
from ticket_agent.journal.errors import JournalError
from ticket_agent.journal.fence import is_locked, try_lock
from ticket_agent.journal.fs import RealFs
from ticket_agent.journal.state_dir import open_readable
from ticket_agent.snapshots.cursor_text import MAX_CURSOR_BYTES, decode_cursor, encode_cursor
from ticket_agent.snapshots.publish_errors import CursorError, NoCursorError, SourceHeldError

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.journal.fs import Fs
    from ticket_agent.snapshots.cursor_text import Cursor

__all__ = [
    "CURSOR",
    "LOCK",
    "close_all",
    "look_at_source",
    "open_source",
    "open_state_root",
    "read_cursor",
    "source_directory",
    "words_of",
]

LOCK: Final = "owner.lock"
CURSOR: Final = "cursor.json"
_NEW: Final = ".new-"
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ATTEMPTS: Final = 16
_counter = itertools.count()


class _TakenError(Exception):
    """Another publisher took what is being made for something left behind; never leaves this module."""


def source_directory(source_id: str, epoch: int) -> str:
    """Name of a source's part for one epoch."""
    return f"{source_id}-epoch-{epoch}"


def open_state_root(path: Path) -> int:
    """Open a state directory that exists; symlinks on the way to it are followed once, here.

    Raises:
        CursorError: it is relative, missing, no directory, somebody else's, or open to others.
    """
    if not path.is_absolute():
        raise CursorError(f"the state directory {path} must be an absolute path")
    try:
        fd = open_readable(path.resolve(strict=True))
    except (OSError, RuntimeError, JournalError) as error:
        raise CursorError(
            f"the state directory {path} cannot be opened ({words_of(error)}); create it for this user with"
            f" mode 0700: install -d -m 0700 {path}"
        ) from error
    try:
        require_own(fd, str(path), directory=True)
    except CursorError:
        os.close(fd)
        raise
    return fd


def open_source(fs: Fs, root_fd: int, fresh: Cursor) -> tuple[int, int]:
    """Open the directory of a source and take its lock; make it, with the cursor ``fresh``, if there is none.

    Returns:
        Descriptors of the directory and of its lock, which is held while the latter lives.

    Raises:
        SourceHeldError: another process has it.
        CursorError: it is incomplete or not private to this user.
        OSError: the system failed.
    """
    name = source_directory(fresh.source_id, fresh.epoch)
    _remove_unfinished(fs, root_fd, name)
    return _open_existing(fs, root_fd, name) or _create(fs, root_fd, name, fresh)


def look_at_source(root_fd: int, *, source_id: str, epoch: int) -> tuple[Cursor, bool] | None:
    """Read a source's cursor without taking anything; also tell whether somebody publishes for it.

    Returns:
        None: there is no directory for it yet, or an empty one.

    Raises:
        CursorError: it is incomplete, damaged, or not private to this user.
    """
    name = source_directory(source_id, epoch)
    try:
        dir_fd = os.open(name, _DIRECTORY, dir_fd=root_fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CursorError(f"{name} in the state directory cannot be used: {words_of(error)}") from error
    try:
        require_own(dir_fd, name, directory=True)
        if not RealFs().list(dir_fd):
            return None
        lock_fd = _open_lock(dir_fd, name)
        try:
            require_own(lock_fd, f"{name}/{LOCK}")
            held = is_locked(lock_fd)
        finally:
            os.close(lock_fd)
        return read_cursor(RealFs(), dir_fd, source_id=source_id, epoch=epoch), held
    except OSError as error:
        raise CursorError(f"{name} in the state directory cannot be used: {words_of(error)}") from error
    finally:
        os.close(dir_fd)


def read_cursor(fs: Fs, dir_fd: int, *, source_id: str, epoch: int) -> Cursor:
    """Read the cursor in a source's directory.

    Raises:
        NoCursorError: there is none.
        CursorError: it is damaged, or not private to this user.
    """
    try:
        fd = os.open(CURSOR, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=dir_fd)
    except FileNotFoundError:
        raise NoCursorError(
            f"{source_directory(source_id, epoch)} has no {CURSOR}: what was published is not known. Look at"
            " the receiver's status of every provider and start once with --continue-after the highest"
            " sequence it shows"
        ) from None
    except OSError as error:
        raise CursorError(f"{CURSOR} cannot be used: {words_of(error)}") from error
    try:
        require_own(fd, CURSOR)
        data = fs.read(dir_fd, CURSOR, MAX_CURSOR_BYTES)
    except OSError as error:
        raise CursorError(f"{CURSOR} cannot be used: {words_of(error)}") from error
    finally:
        os.close(fd)
    return decode_cursor(data, source_id=source_id, epoch=epoch)


def _open_existing(fs: Fs, root_fd: int, name: str) -> tuple[int, int] | None:
    try:
        dir_fd = os.open(name, _DIRECTORY, dir_fd=root_fd)
    except FileNotFoundError:
        return None
    try:
        require_own(dir_fd, name, directory=True)
        if not fs.list(dir_fd):
            # Somebody died right after making it; it is replaced by a whole one.
            os.close(dir_fd)
            return None
        lock_fd = _open_lock(dir_fd, name)
        try:
            if not _lock(lock_fd, name):
                raise SourceHeldError(  # noqa: TRY301 - both descriptors are closed for it
                    f"another process publishes for {name}; a source has one publisher: stop it, or publish"
                    " as another source"
                )
        except BaseException:
            os.close(lock_fd)
            raise
    except BaseException:
        close_all(dir_fd)
        raise
    return dir_fd, lock_fd


def _open_lock(dir_fd: int, name: str) -> int:
    try:
        return os.open(LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=dir_fd)
    except FileNotFoundError:
        raise CursorError(
            f"{name} in the state directory has no {LOCK}; it was not made by a publisher, or somebody"
            " removed files of it: move it away and start with --continue-after"
        ) from None


def _create(fs: Fs, root_fd: int, name: str, fresh: Cursor) -> tuple[int, int]:
    for _ in range(_ATTEMPTS):
        made = f"{_NEW}{name}.{os.getpid()}.{next(_counter)}"
        try:
            os.mkdir(made, 0o700, dir_fd=root_fd)
            found = _filled(fs, root_fd, made, fresh)
        except (FileExistsError, FileNotFoundError, _TakenError):
            continue
        try:
            # Never replaces one that has files: that fails, and the other one's is opened.
            os.rename(made, name, src_dir_fd=root_fd, dst_dir_fd=root_fd)
        except OSError as error:
            close_all(*found)
            _remove(fs, root_fd, made)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            existing = _open_existing(fs, root_fd, name)
            if existing is not None:
                return existing
            continue
        return found
    raise CursorError(f"{name} cannot be created in the state directory; somebody removes it again and again")


def _filled(fs: Fs, root_fd: int, made: str, fresh: Cursor) -> tuple[int, int]:
    dir_fd = os.open(made, _DIRECTORY, dir_fd=root_fd)
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        lock_fd = os.open(LOCK, flags, 0o600, dir_fd=dir_fd)
    except OSError:
        os.close(dir_fd)
        raise
    try:
        if not try_lock(lock_fd) or os.fstat(lock_fd).st_nlink == 0:
            # Somebody who looks for unfinished ones was quicker: it is being removed, or was.
            raise _TakenError(made)  # noqa: TRY301 - both descriptors are closed for it
        replace_file(fs, dir_fd, CURSOR, encode_cursor(fresh))
    except ReplaceError as error:
        close_all(dir_fd, lock_fd)
        _remove(fs, root_fd, made)
        raise CursorError(f"{CURSOR} cannot be created: {error}") from error
    except BaseException:
        close_all(dir_fd, lock_fd)
        raise
    return dir_fd, lock_fd


def _lock(lock_fd: int, name: str) -> bool:
    """Take the lock; False: somebody has it."""
    require_own(lock_fd, f"{name}/{LOCK}")
    return try_lock(lock_fd)


def _remove_unfinished(fs: Fs, root_fd: int, name: str) -> None:
    """Remove what a publisher left that died while it made the part."""
    with suppress(OSError):
        for found in fs.list(root_fd):
            if found.startswith(f"{_NEW}{name}."):
                _remove_if_free(fs, root_fd, found)


def _remove_if_free(fs: Fs, root_fd: int, made: str) -> None:
    with suppress(OSError):
        os.rmdir(made, dir_fd=root_fd)
        return
    with suppress(OSError, CursorError, SourceHeldError):
        found = _open_existing(fs, root_fd, made)
        if found is not None:
            _remove(fs, root_fd, made)
            close_all(*found)


def _remove(fs: Fs, root_fd: int, made: str) -> None:
    with suppress(OSError):
        dir_fd = os.open(made, _DIRECTORY, dir_fd=root_fd)
        try:
            # The lock last: while it is there, a part that is being removed is known as one.
            for name in sorted(fs.list(dir_fd), key=lambda name: name == LOCK):
                os.unlink(name, dir_fd=dir_fd)
        finally:
            os.close(dir_fd)
        os.rmdir(made, dir_fd=root_fd)


def require_own(fd: int, name: str, *, directory: bool = False) -> None:
    """Hold what is open to be this user's, closed to others, and the only name of its file.

    Raises:
        CursorError: it is not.
    """
    status = os.fstat(fd)
    if stat.S_IFMT(status.st_mode) != (stat.S_IFDIR if directory else stat.S_IFREG):
        raise CursorError(f"{name} is not the kind of file it must be; remove what stands in its place")
    if status.st_uid != os.geteuid():
        raise CursorError(f"{name} belongs to user {status.st_uid}, not to {os.geteuid()}; run as its owner")
    if status.st_mode & _OTHERS:
        raise CursorError(f"{name} is open to group or others; run: chmod go= on it")
    if not directory and status.st_nlink != 1:
        raise CursorError(f"{name} has {status.st_nlink} names; remove the other links")


def close_all(*fds: int) -> None:
    """Close descriptors, whatever becomes of it."""
    for fd in fds:
        with suppress(OSError):
            os.close(fd)


def words_of(error: Exception) -> str:
    """What the system says about an error."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
