"""The directory itself, held open: every path is walked from it, over no link and out of it by none."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import stat
from functools import cache
from typing import TYPE_CHECKING, Final, Self, cast

from ticket_agent.hive.mount.answers import MountIncompatibleError
from ticket_agent.protocol.namespace import HiveBusyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["ALLOWED", "Tree", "WriteEndedError"]

ALLOWED: Final = frozenset({"proc", "queen", "worker", "log", "gpu", "host", "shard"})
"""What a mounted hive shows at its root; everything else is refused there."""

MAX_CONTENT: Final = 1024 * 1024
BUFFER: Final = 128 * 1024
_WALK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
# A named pipe in a plain directory must not hold us up.
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_LOCKS: Final = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL})
_AT_EMPTY_PATH: Final = 0x1000
_AT_STATX_FORCE_SYNC: Final = 0x2000
_STATX_SIZE: Final = 0x200
_STATX_BYTES: Final = 256


class WriteEndedError(Exception):
    """The one write(2) of an append did not end well.

    Attributes:
        number: errno; None if only a part was written.
    """

    def __init__(self, number: int | None, text: str) -> None:
        super().__init__(text)
        self.number = number


class Tree:
    """An open directory. While it is held, nothing that takes its place can be mistaken for it.

    Every method raises OSError as the system call did; a link on the way is ELOOP.
    """

    def __init__(self, path: Path, *, exclusive: bool) -> None:
        """Open the directory.

        Args:
            path: absolute.
            exclusive: hold a lock on it, as one agent does; programs that only look or submit do not.

        Raises:
            OSError: it cannot be opened.
            HiveBusyError: another agent holds the lock.
            MountIncompatibleError: everybody may write to it.
        """
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(self._fd)
            _require_protection(path, found)
            if exclusive:
                self._lock()
        except BaseException:
            os.close(self._fd)
            raise
        self.identity: Final = (found.st_dev, found.st_ino)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory and of its lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def in_place(self) -> bool:
        """Whether the path still leads to the directory that is held."""
        found = self._path.lstat()
        return (found.st_dev, found.st_ino) == self.identity

    def names(self, path: str) -> list[str]:
        """Names in a directory, in order; at the root only those that a mounted hive shows."""
        with self._directory(path.split("/")[1:] if path != "/" else []) as parent:
            fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
            try:
                names = sorted(os.listdir(fd))  # noqa: PTH208 - a descriptor
            finally:
                os.close(fd)
        return [name for name in names if name in ALLOWED] if path == "/" else names

    def content(self, path: str) -> bytes:
        """All bytes of a file: one open, read until its end, whatever its size is said to be.

        A mounted hive answers each read(2) anew. What came in several pieces is therefore read until two
        readings agree, so that no two states are taken for one.

        Raises:
            OSError: EFBIG when there is no end, EAGAIN when it does not hold still.
        """
        data, whole = self._content_once(path)
        for _ in range(5):
            if whole:
                return data
            again, whole = self._content_once(path)
            if again == data:
                return data
            data = again
        raise OSError(errno.EAGAIN, "changes while it is read")

    def write(self, path: str, line: bytes) -> None:
        """Open the file anew and write a line and its newline with one system call.

        Raises:
            OSError: nothing was written: the file cannot be opened for writing.
            WriteEndedError: something may have been written.
        """
        *parents, leaf = path.split("/")[1:]
        with self._directory(parents) as parent:
            fd = self._open(leaf, os.O_WRONLY | os.O_APPEND, parent)
            _learn_size(fd)
            try:
                written = _write_uninterrupted(fd, line + b"\n")
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.close(fd)
                raise WriteEndedError(error.errno, str(error)) from error
            try:
                os.close(fd)
            except OSError as error:
                raise WriteEndedError(error.errno, f"closing failed: {error}") from error
        if written != len(line) + 1:
            raise WriteEndedError(None, f"{written} of {len(line) + 1} bytes were written")

    # -- inside ----------------------------------------------------------------------------------------------

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HiveBusyError(
                f"mount {self._path} is served by another agent of this host; stop it first"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise

    @contextlib.contextmanager
    def _directory(self, parts: list[str]) -> Iterator[int]:
        fd = os.dup(self._fd)
        try:
            for part in parts:
                fd, above = self._step(part, fd), fd
                os.close(above)
            yield fd
        finally:
            os.close(fd)

    def _step(self, part: str, fd: int) -> int:
        try:
            return os.open(part, _WALK, dir_fd=fd)
        except NotADirectoryError:
            if stat.S_ISLNK(os.stat(part, dir_fd=fd, follow_symlinks=False).st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
            raise

    @staticmethod
    def _open(leaf: str, flags: int, parent: int) -> int:
        fd = os.open(leaf, flags | _FILE, dir_fd=parent)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EISDIR, "is no file")
        return fd

    def _content_once(self, path: str) -> tuple[bytes, bool]:
        """The bytes, and whether they are one answer of whoever serves the file."""
        *parents, leaf = path.split("/")[1:]
        pieces: list[bytes] = []
        total = 0
        with self._directory(parents) as parent:
            fd = self._open(leaf, os.O_RDONLY, parent)
            try:
                while piece := os.read(fd, BUFFER):
                    pieces.append(piece)
                    total += len(piece)
                    if total > MAX_CONTENT:
                        raise OSError(errno.EFBIG, f"has more than {MAX_CONTENT} bytes")
            finally:
                os.close(fd)
        return b"".join(pieces), len(pieces) <= 1


def _require_protection(path: Path, found: os.stat_result) -> None:
    if found.st_mode & stat.S_IWOTH:
        raise MountIncompatibleError(
            f"mount {path} can be written by everybody, who could then order what is done here; "
            f"run: chmod o-w {path}"
        )


def _write_uninterrupted(fd: int, data: bytes) -> int:
    """One write(2). A signal must not end it early: the interpreter would write a second time."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        return os.write(fd, data)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _learn_size(fd: int) -> None:
    """Let the kernel ask for the node's size now, because it begins an append at the size it believes in.

    It would otherwise believe for a second what it was told last, and the mount refuses to write elsewhere
    than at the end. Where this cannot be asked for, the refusal is met and waited out.
    """
    statx = _statx()
    if statx is not None:
        answer = ctypes.create_string_buffer(_STATX_BYTES)
        statx(fd, b"", _AT_EMPTY_PATH | _AT_STATX_FORCE_SYNC, _STATX_SIZE, answer)


@cache
def _statx() -> Callable[..., int] | None:
    try:
        return cast("Callable[..., int]", ctypes.CDLL(None).statx)
    except (OSError, AttributeError):
        return None
