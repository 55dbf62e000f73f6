"""One owner per state directory, for as long as its process lives.

The kernel's lock is the fence, and the kernel releases it whatever happens to the process; there is nothing
to break and nothing to clean up. What the lock file says about its owner is information for people and
decides nothing: a process id can be that of somebody else by now.

The state directory itself is locked too, where the file system allows it. Removing ``agent.lock`` in the
belief that it is stale would otherwise let a second agent in beside the first.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ticket_agent.journal.errors import FenceHeldError, JournalIoError, StateDirError
from ticket_agent.journal.starts import MAX_CONTENT, Start, encode_starts, parse_starts
from ticket_agent.journal.state_dir import LOCK

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.journal.fs import Fs

__all__ = ["Fence", "FenceOwner", "fence_owner", "is_locked", "read_starts", "try_lock"]

# A reader that asks who the owner is holds the lock for microseconds; a second look tells it from an owner.
_ATTEMPTS = 3
# Unless it is stopped in between, on a busy machine for long. A reader shares its lock, an owner does not.
_ATTEMPTS_AT_READERS = 500
_PAUSE_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceOwner:
    """What the owner wrote down about itself; every member is None when that was not readable."""

    pid: int | None = None
    boot_id: str | None = None
    started_unix_ms: int | None = None


class Fence:
    """The held fence; :meth:`release` or the end of the process gives it back.

    The descriptors are not inherited over ``exec``. A child made by a bare ``fork`` would keep the fence
    alive.
    """

    def __init__(self, fds: tuple[int, ...], starts: tuple[Start, ...] = ()) -> None:
        self._fds = fds
        self._starts = starts

    @classmethod
    def acquire(
        cls,
        fs: Fs,
        root_fd: int,
        *,
        boot_id: str,
        now_unix_ms: int,
        agent_version: str | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> Fence:
        """Take the fence of the state directory that ``root_fd`` is open on, and write down who did.

        Raises:
            FenceHeldError: another process has it.
            StateDirError: the lock file is a symlink or not a regular file.
            JournalIoError: the lock file cannot be opened, locked or written.
        """
        fds: list[int] = []
        try:
            fds.append(_lock_directory(root_fd, pause))
            fds.append(_lock_file(fs, root_fd, pause))
            mine = Start(
                pid=os.getpid(), boot_id=boot_id, started_unix_ms=max(0, now_unix_ms), agent=agent_version
            )
            starts = (*parse_starts(os.pread(fds[-1], MAX_CONTENT, 0)), mine)
            _write_starts(fds[-1], starts)
        except BaseException as error:
            for fd in fds:
                os.close(fd)
            if isinstance(error, OSError):
                raise JournalIoError(f"the lock file {LOCK} cannot be used: {error}") from error
            raise
        return cls(tuple(fds), starts)

    def release(self, *, stopped_unix_ms: int | None = None) -> None:
        """Give the fence back; the file stays, because removing it could take it away from the next owner.

        Args:
            stopped_unix_ms: the process ends in order at this time; None leaves the end unsaid.
        """
        if self._fds and self._starts and stopped_unix_ms is not None:
            last = replace(self._starts[-1], stopped_unix_ms=max(0, stopped_unix_ms))
            # Nothing depends on this line, so nothing that was done may seem to fail because of it.
            with suppress(OSError):
                _write_starts(self._fds[-1], (*self._starts[:-1], last))
        for fd in self._fds:
            with suppress(OSError):
                os.close(fd)
        self._fds = ()


def fence_owner(root_fd: int) -> FenceOwner | None:
    """Tell who owns the state directory, or None when nobody does or nobody may ask.

    The lock is taken for a moment, shared, where it is free; nothing is written.
    """
    # An own open file description: closing or unlocking a duplicate would release what the caller holds.
    directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root_fd)
    try:
        held = is_locked(directory)
    finally:
        os.close(directory)
    try:
        fd = os.open(LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=root_fd)
    except OSError:
        return FenceOwner() if held else None
    try:
        return _read_owner(fd) if held or is_locked(fd) else None
    finally:
        os.close(fd)


def read_starts(root_fd: int) -> tuple[Start, ...]:
    """Return what the owners so far wrote down, oldest first; empty where that cannot be read."""
    try:
        fd = os.open(LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=root_fd)
    except OSError:
        return ()
    try:
        return parse_starts(os.pread(fd, MAX_CONTENT, 0))
    except OSError:
        return ()
    finally:
        os.close(fd)


def _write_starts(fd: int, starts: tuple[Start, ...]) -> None:
    content = encode_starts(starts)
    # Written before it is cut: a process that dies in between leaves whole lines in front.
    os.pwrite(fd, content, 0)
    os.ftruncate(fd, len(content))


def _lock_directory(root_fd: int, pause: Callable[[float], None]) -> int:
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root_fd)
    try:
        _take(fd, root_fd, pause)
    except OSError:
        # Some network file systems cannot lock a directory; the lock file is then the only fence.
        return fd
    except BaseException:
        os.close(fd)
        raise
    return fd


def _lock_file(fs: Fs, root_fd: int, pause: Callable[[float], None]) -> int:
    while True:
        fd = _open_lock(fs, root_fd)
        try:
            _take(fd, root_fd, pause)
            named = _is_named(fd, root_fd)
        except BaseException:
            os.close(fd)
            raise
        if named:
            return fd
        # The file was removed between opening and locking it: a lock on it would exclude nobody.
        os.close(fd)


def _open_lock(fs: Fs, root_fd: int) -> int:
    try:
        return fs.open_kept(root_fd, LOCK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENXIO):
            raise StateDirError(f"{LOCK} must be a regular file; remove what is in its place") from error
        raise


def _take(fd: int, root_fd: int, pause: Callable[[float], None]) -> None:
    if not try_lock(fd, pause):
        owner = fence_owner(root_fd) or FenceOwner()
        raise FenceHeldError(pid=owner.pid, boot_id=owner.boot_id)


def try_lock(fd: int, pause: Callable[[float], None] = time.sleep) -> bool:
    """Take the kernel's exclusive lock on an open file, for as long as the descriptor lives; False: held.

    Whoever only looks whether it is held is waited for, some seconds at most.

    Raises:
        OSError: the file system cannot lock.
    """
    import portalocker  # noqa: PLC0415 - costs more than the rest of a read-only command

    flags = portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING
    owned = 0
    for _ in range(_ATTEMPTS_AT_READERS):
        try:
            portalocker.lock(fd, flags)
        except portalocker.AlreadyLocked:
            owned += is_locked(fd)
            if owned == _ATTEMPTS:
                break
            pause(_PAUSE_S)
        except portalocker.LockException as error:
            raise OSError(errno.ENOLCK, f"the file system refused to lock: {error}") from error
        else:
            return True
    return False


def is_locked(fd: int) -> bool:
    """Tell whether somebody holds the exclusive lock of an open file; takes it shared for a moment."""
    # The same kernel lock as in ``try_lock``, without the import: asking must be cheap for status commands.
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _is_named(fd: int, root_fd: int) -> bool:
    try:
        there = os.stat(LOCK, dir_fd=root_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), there)


def _read_owner(fd: int) -> FenceOwner:
    starts = parse_starts(os.pread(fd, MAX_CONTENT, 0))
    if not starts:
        return FenceOwner()
    last = starts[-1]
    return FenceOwner(pid=last.pid, boot_id=last.boot_id, started_unix_ms=last.started_unix_ms)
