"""Locks on whole roots, shared with the other tools that work on them.

A lock is an advisory ``flock`` on a file with an agreed name in the root. The kernel gives it back whatever
happens to its holder, so the file is never removed and there is no stale lock; its content means nothing and
is never written. Who holds a lock is asked of the kernel, for people to read; nothing is decided by it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.errors import FileRefusedError, LockHeldError, PeftIoError
from ticket_agent.peft.limits import LOCK_PAUSE_S
from ticket_agent.peft.mounts import devices
from ticket_agent.peft.opened import Kind, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ticket_agent.peft.directory import Directory

__all__ = ["RootLock", "lock_holder", "locked"]

_OPEN_LOCK: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Private: whoever can open the file can hold the lock.
_LOCK_MODE: Final = 0o600
_MAX_PROC_LOCKS: Final = 1024 * 1024


class RootLock(StrEnum):
    """The locks in the order in which they are taken; the values are the names of the files."""

    REGISTRY = ".cohesix-registry.lock"
    ADAPTER = ".cohesix-adapter.lock"
    EXPORT = ".cohesix-export.lock"
    RELEASE = "lock"


@contextmanager
def locked(
    roots: Mapping[RootLock, Directory],
    *,
    wait_s: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Hold the locks of ``roots`` for the body, all or none, taken in the one order that all tools use.

    Args:
        roots: which lock in which root.
        wait_s: how long to go on trying, in seconds, for all of them together; 0 tries each once.
        clock: seconds that only grow.
        pause: waits that many seconds.

    Raises:
        LockHeldError: somebody else has one of them.
        FileRefusedError: a lock file is a link or no regular file.
        PeftIoError: the file system failed or cannot lock.
    """
    deadline = clock() + wait_s
    with ExitStack() as held:
        for lock in RootLock:
            if lock not in roots:
                continue
            while (fd := _try(roots[lock], lock)) is None:
                if clock() >= deadline:
                    raise _held(roots[lock], lock)
                pause(LOCK_PAUSE_S)
            held.callback(os.close, fd)
        yield


def lock_holder(root: Directory, lock: RootLock) -> tuple[int | None, str | None]:
    """Process id and command name of the holder; None for what the kernel does not tell us.

    The kernel reports the process that took the lock. A child that inherited it may be the one that is left.
    """
    try:
        inode = os.stat(lock, dir_fd=root.fd, follow_symlinks=False).st_ino
        with Path("/proc/locks").open(encoding="ascii", errors="replace") as file:
            table = file.read(_MAX_PROC_LOCKS)
    except OSError:
        return None, None
    places = {f"{major:02x}:{minor:02x}:{inode}" for major, minor in devices(root.fd)}
    for line in table.splitlines():
        # Number, kind, advisory, mode, process, file. A waiting process has an arrow in the second place.
        match line.split():
            case [_, "FLOCK", _, _, pid, place, *_] if place in places and pid.isdigit():
                return _named(int(pid))
    return None, None


def _named(pid: int) -> tuple[int | None, str | None]:
    if pid == 0:  # in a process-id namespace that we cannot see into
        return None, None
    with suppress(OSError):
        # The name and not the command line: arguments may hold secrets.
        return pid, Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip() or None
    return pid, None


def _held(root: Directory, lock: RootLock) -> LockHeldError:
    pid, command = lock_holder(root, lock)
    return LockHeldError(root.label, pid=pid, command=command)


def _try(root: Directory, lock: RootLock) -> int | None:
    """Take a lock; None when somebody has it."""
    while True:
        fd = _open(root, lock)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_named(fd, root, lock):
                return fd
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError as error:
            os.close(fd)
            raise PeftIoError(f"locking {root.path(lock)}", error) from error
        # The file was removed between opening and locking it: a lock on it would exclude nobody.
        os.close(fd)


def _open(root: Directory, lock: RootLock) -> int:
    found = root.kind(lock)
    if found not in (None, Kind.FILE):
        raise FileRefusedError(f"{root.path(lock)} is {found}, not {Kind.FILE}; remove it")
    try:
        fd = os.open(lock, _OPEN_LOCK, _LOCK_MODE, dir_fd=root.fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise FileRefusedError(f"{root.path(lock)} must be {Kind.FILE}; remove what is there") from error
        raise PeftIoError(f"opening {root.path(lock)}", error) from error
    status = os.fstat(fd)
    kind = kind_of(status.st_mode)
    if kind is Kind.FILE and status.st_nlink <= 1:
        return fd
    os.close(fd)
    what = f"{kind}, not {Kind.FILE}" if kind is not Kind.FILE else "known by a second name (a hard link)"
    raise FileRefusedError(f"{root.path(lock)} is {what}; remove it")


def _is_named(fd: int, root: Directory, lock: RootLock) -> bool:
    try:
        there = os.stat(lock, dir_fd=root.fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), there)
