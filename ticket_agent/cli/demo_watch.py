"""Counting what appears in directories, as the kernel reports it and whoever did it."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Arrivals"]

_MOVED_TO: Final = 0x00000080
# The kernel reports two equal events in a row as one. Between two renames to one name there is always
# another event, if it is asked for: the making or the moving away of what is renamed.
_MOVED_FROM: Final = 0x00000040
_CREATED: Final = 0x00000100
_DELETED: Final = 0x00000200
_WATCHED: Final = _MOVED_TO | _MOVED_FROM | _CREATED | _DELETED
_OVERFLOWED: Final = 0x00004000
_EVENT: Final = struct.Struct("iIII")
_BUFFER: Final = 64 * 1024


class Arrivals:
    """What is renamed into directories while this is open; everything that counts here gets its name so."""

    def __init__(self, *folders: Path) -> None:
        """Begin to watch.

        Raises:
            OSError: the kernel offers no watch.
        """
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        try:
            self._folders = {
                self._checked(self._libc.inotify_add_watch(self._fd, os.fsencode(folder), _WATCHED)): folder
                for folder in folders
            }
        except BaseException:
            os.close(self._fd)
            raise

    def take(self) -> list[Path]:
        """What arrived since this was asked last, in order.

        Raises:
            OSError: so much that the kernel lost count.
        """
        found = []
        while data := self._read():
            offset = 0
            while offset < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, offset)
                offset += _EVENT.size
                name = data[offset : offset + length].rstrip(b"\0")
                offset += length
                if mask & _OVERFLOWED:
                    raise OSError("more was renamed than the kernel could count")
                if mask & _MOVED_TO:
                    found.append(self._folders[watch] / os.fsdecode(name))
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, _BUFFER)
        except BlockingIOError:
            return b""

    @staticmethod
    def _checked(value: int) -> int:
        if value < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return value
