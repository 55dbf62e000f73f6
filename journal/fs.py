"""The seam to the file system: the few operations that durability depends on, relative to an open directory.

Another implementation may record them, fail the n-th one or keep everything in memory. What stands behind
:class:`RealFs` is exactly one system call per operation wherever possible; the order of calls is decided
elsewhere.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

__all__ = ["OUT_OF_SPACE", "FreeSpace", "Fs", "RealFs", "write_all"]

OUT_OF_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers that mean: later, when somebody made room, the same call can work."""

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a FIFO that somebody left in the directory would wait for ever.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_KEEP = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MODE = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSpace:
    """What an ordinary process can allocate; ``inodes`` is None where they are not counted."""

    bytes: int
    inodes: int | None


class Fs(Protocol):
    """Operations of a file system; every one raises :class:`OSError` when it fails."""

    def create_new(self, dir_fd: int, name: str) -> int:
        """Create a file that did not exist, private to its owner, and return it open for writing."""

    def open_kept(self, dir_fd: int, name: str) -> int:
        """Open a regular file for reading and writing; create it if absent, never truncate it."""

    def write(self, fd: int, data: bytes) -> None:
        """Write all of ``data``, however many calls that takes."""

    def fsync(self, fd: int) -> None:
        """Make the file's data durable."""

    def close(self, fd: int) -> None:
        """Close the descriptor."""

    def rename(self, dir_fd: int, src: str, dst: str) -> None:
        """Let ``dst`` name the file ``src``, replacing what was there."""

    def rename_new(self, dir_fd: int, src: str, dst: str) -> None:
        """Let ``dst`` name the file ``src``; FileExistsError when ``dst`` exists."""

    def fsync_dir(self, dir_fd: int) -> None:
        """Make the directory's entries durable."""

    def read(self, dir_fd: int, name: str, limit: int) -> bytes:
        """Read a whole regular file of at most ``limit`` bytes; never follows a symlink."""

    def list(self, dir_fd: int) -> list[str]:
        """Names in the directory."""

    def unlink(self, dir_fd: int, name: str) -> None:
        """Remove a name."""

    def reserve(self, fd: int, nbytes: int) -> None:
        """Make sure that the file's first ``nbytes`` bytes have space allocated on the device."""

    def free_space(self, dir_fd: int) -> FreeSpace:
        """Tell how much can still be allocated."""


class RealFs:
    """The operating system's file system."""

    def create_new(self, dir_fd: int, name: str) -> int:
        """See :class:`Fs`."""
        return os.open(name, _NEW_FILE, _MODE, dir_fd=dir_fd)

    def open_kept(self, dir_fd: int, name: str) -> int:
        """See :class:`Fs`."""
        fd = os.open(name, _KEEP, _MODE, dir_fd=dir_fd)
        try:
            _require_regular(fd, name)
        except OSError:
            os.close(fd)
            raise
        return fd

    def write(self, fd: int, data: bytes) -> None:
        """See :class:`Fs`."""
        write_all(fd, data)

    def fsync(self, fd: int) -> None:
        """See :class:`Fs`."""
        os.fsync(fd)

    def close(self, fd: int) -> None:
        """See :class:`Fs`."""
        os.close(fd)

    def rename(self, dir_fd: int, src: str, dst: str) -> None:
        """See :class:`Fs`."""
        os.rename(src, dst, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    def rename_new(self, dir_fd: int, src: str, dst: str) -> None:
        """See :class:`Fs`.

        A hard link is the only portable way to take a name only if it is free. Where links do not exist, the
        owner's fence is what keeps others out between the look and the rename.
        """
        try:
            os.link(src, dst, src_dir_fd=dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            self._rename_if_free(dir_fd, src, dst)
            return
        # The second name is only litter: it is removed at the next start if it stays.
        with suppress(OSError):
            os.unlink(src, dir_fd=dir_fd)

    def _rename_if_free(self, dir_fd: int, src: str, dst: str) -> None:
        try:
            os.stat(dst, dir_fd=dir_fd, follow_symlinks=False)
        except FileNotFoundError:
            self.rename(dir_fd, src, dst)
        else:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), dst)

    def fsync_dir(self, dir_fd: int) -> None:
        """See :class:`Fs`."""
        os.fsync(dir_fd)

    def read(self, dir_fd: int, name: str, limit: int) -> bytes:
        """See :class:`Fs`."""
        fd = os.open(name, _READ, dir_fd=dir_fd)
        try:
            size = _require_regular(fd, name)
            if size > limit:
                raise OSError(errno.EFBIG, f"the file has {size} bytes, and at most {limit} are read", name)
            return _read_all(fd, size, limit, name)
        finally:
            os.close(fd)

    def list(self, dir_fd: int) -> list[str]:
        """See :class:`Fs`."""
        return os.listdir(dir_fd)

    def unlink(self, dir_fd: int, name: str) -> None:
        """See :class:`Fs`."""
        os.unlink(name, dir_fd=dir_fd)

    def reserve(self, fd: int, nbytes: int) -> None:
        """See :class:`Fs`."""
        status = os.fstat(fd)
        # A file that only has the length may be a hole; its blocks, counted in 512 bytes, are what is
        # reserved.
        if status.st_size < nbytes or status.st_blocks * 512 < nbytes:
            os.posix_fallocate(fd, 0, nbytes)

    def free_space(self, dir_fd: int) -> FreeSpace:
        """See :class:`Fs`."""
        status = os.statvfs(dir_fd)
        inodes = status.f_favail if status.f_files else None
        return FreeSpace(bytes=status.f_bavail * status.f_frsize, inodes=inodes)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of ``data``, however many calls that takes."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _require_regular(fd: int, name: str) -> int:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", name)
    return status.st_size


def _read_all(fd: int, size: int, limit: int, name: str) -> bytes:
    data = os.read(fd, size + 1)
    if len(data) == size:
        return data
    # The file changed under our eyes, or the call was cut short: go on until its end.
    while len(data) <= limit and (chunk := os.read(fd, limit + 1 - len(data))):
        data += chunk
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"the file grew beyond {limit} bytes while it was read", name)
    return data
