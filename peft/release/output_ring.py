"""Output of a phase on disk: its beginning and its end, never more than a bound, however much it writes.

Files are named by the place of their first byte in the whole output, so that what was left out between two
of them can be told from names and sizes alone:

    output-0000000000000000   the beginning
    output-<offset>           the last two pieces of everything after it

Nothing that goes wrong here stops the reader of the pipe: a phase must not block or fail because its log
cannot be written.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OUTPUT_NAME", "OutputBounds", "OutputRing", "output_name"]

OUTPUT_NAME: Final = re.compile(r"output-([0-9]{16})")
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_RETRY_S: Final = 1.0
"""How long after a failed write the next one is tried: a full disk must not cost a system call per line."""
_KEPT_PIECES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputBounds:
    """How much is kept, in bytes: the beginning, and between one and two pieces of the end."""

    head_bytes: int = 64 * 1024
    piece_bytes: int = 256 * 1024

    def __post_init__(self) -> None:
        if self.head_bytes < 1 or self.piece_bytes < 1:
            raise ValueError("the output's bounds are at least one byte each")

    @property
    def total_bytes(self) -> int:
        """What all files together never exceed."""
        return self.head_bytes + _KEPT_PIECES * self.piece_bytes


def output_name(offset: int) -> str:
    """Name of the file that begins at that place of the output."""
    return f"output-{offset:016d}"


class OutputRing:
    """Writes output into an open directory.

    Attributes:
        total: bytes that were offered.
        lost: bytes of them that could not be written when it was their turn, because the disk was full or
            failed. What was written and made room for later output does not count.
    """

    def __init__(
        self, dir_fd: int, bounds: OutputBounds, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total = 0
        self.lost = 0
        self._dir_fd = dir_fd
        self._bounds = bounds
        self._clock = clock
        self._fd: int | None = None
        self._room = 0
        self._pieces: list[int] = []
        self._retry_at = 0.0

    def write(self, data: bytes) -> None:
        """Keep ``data``, as far as the bounds and the disk allow. Never raises."""
        view = memoryview(data)
        while view:
            written = self._write_some(view)
            if written == 0:
                self.total += len(view)
                self.lost += len(view)
                return
            self.total += written
            view = view[written:]

    def close(self) -> None:
        """Close the file that is open."""
        if self._fd is not None:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = None

    def _write_some(self, view: memoryview) -> int:
        try:
            if self._fd is None or self._room == 0:
                if self._clock() < self._retry_at:
                    return 0
                self._open_next()
            assert self._fd is not None
            written = os.write(self._fd, view[: self._room])
        except OSError:
            self.close()
            self._retry_at = self._clock() + _RETRY_S
            return 0
        self._room -= written
        return written

    def _open_next(self) -> None:
        self.close()
        while len(self._pieces) >= _KEPT_PIECES:
            self._unlink(self._pieces.pop(0))
        offset = self.total
        self._fd = os.open(output_name(offset), _NEW, 0o600, dir_fd=self._dir_fd)
        self._room = self._bounds.piece_bytes if offset else self._bounds.head_bytes
        if offset:
            self._pieces.append(offset)

    def _unlink(self, offset: int) -> None:
        with suppress(OSError):
            os.unlink(output_name(offset), dir_fd=self._dir_fd)
