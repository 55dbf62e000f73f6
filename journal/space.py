"""Space that is held back so that the outcome of everything dispatched can be stored on a full disk.

The reserve is a file of allocated blocks. It is given up in an emergency: removing it makes room for the
outcomes that are known but not yet durable, and the process then ends, because the next start can allocate it
afresh.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ticket_agent.journal.errors import StorageFullError
from ticket_agent.journal.fs import OUT_OF_SPACE
from ticket_agent.journal.state_dir import RESERVE

if TYPE_CHECKING:
    from ticket_agent.journal.fs import Fs

__all__ = ["Limits", "SpaceGuard"]

_KIB = 1_024
_WEEK_MS = 7 * 24 * 3_600 * 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a store holds back and how long it keeps things.

    Attributes:
        reserve_base: bytes of the reserve that do not depend on what is dispatched.
        reserve_per_operation: bytes of the reserve for each operation in ``executing``.
        free_bytes: free bytes that must be left before something new is begun.
        free_inodes: free inodes that must be left before something new is begun, where they are counted.
        retain_ms: a terminal record stays at least this long, in milliseconds.
        retain_records: at least so many of the newest terminal records stay.
        retire_batch: fewer records than this are not worth a segment.
        fenced_families: families whose sequences are the root's, so that only what the completion fence has
            passed may be retired and the cursor's fence applies to them; None means all families.
    """

    reserve_base: int = 64 * _KIB
    reserve_per_operation: int = 32 * _KIB
    free_bytes: int = 256 * _KIB
    free_inodes: int = 16
    retain_ms: int = _WEEK_MS
    retain_records: int = 1_024
    retire_batch: int = 256
    fenced_families: frozenset[str] | None = None

    def fenced(self, family: str) -> bool:
        """Tell whether the family's sequences are fenced by completion."""
        return self.fenced_families is None or family in self.fenced_families


class SpaceGuard:
    """Looks after the reserve and the free space of one state directory."""

    def __init__(self, fs: Fs, root_fd: int, limits: Limits) -> None:
        self._fs = fs
        self._root_fd = root_fd
        self._limits = limits

    def require_free(self, extra: int = 0) -> None:
        """Refuse to begin something new on a disk that is nearly full.

        Raises:
            StorageFullError: fewer free bytes or inodes than the limits (plus ``extra`` bytes) ask for.
        """
        free = self._fs.free_space(self._root_fd)
        wanted = self._limits.free_bytes + extra
        if free.bytes < wanted:
            raise StorageFullError(
                f"only {free.bytes} bytes are free and {wanted} are needed; make room on the disk"
            )
        if free.inodes is not None and free.inodes < self._limits.free_inodes:
            raise StorageFullError(f"only {free.inodes} inodes are free; remove files from the disk")

    def ensure_reserve(self, executing: int) -> None:
        """Hold enough space for the outcomes of ``executing`` operations.

        Raises:
            StorageFullError: it cannot be allocated now.
            OSError: the reserve cannot be opened or allocated for another reason.
        """
        size = self._limits.reserve_base + executing * self._limits.reserve_per_operation
        try:
            fd = self._fs.open_kept(self._root_fd, RESERVE)
            try:
                self._fs.reserve(fd, size)
            finally:
                self._fs.close(fd)
        except OSError as error:
            if error.errno in OUT_OF_SPACE:
                raise StorageFullError(
                    f"{size} bytes cannot be reserved for outcomes; make room on the disk"
                ) from error
            raise

    def release_reserve(self) -> None:
        """Give the reserve up.

        Some file systems reuse blocks only once the removal is durable, hence the sync.
        """
        with suppress(OSError):
            self._fs.unlink(self._root_fd, RESERVE)
            self._fs.fsync_dir(self._root_fd)
