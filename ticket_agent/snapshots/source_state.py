"""Which number a source's next record has: reserved before anybody sees it, and given out once."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from ticket_agent.journal.atomic import ReplaceError, remove_temporaries, replace_file
from ticket_agent.protocol.tokens import U64_MAX
from ticket_agent.snapshots.cursor_text import Cursor, encode_cursor
from ticket_agent.snapshots.publish_errors import (
    CursorError,
    CursorFullError,
    CursorPoisonedError,
    DamagedCursorError,
    NoCursorError,
)
from ticket_agent.snapshots.source_place import (
    CURSOR,
    close_all,
    open_source,
    read_cursor,
    source_directory,
    words_of,
)

if TYPE_CHECKING:
    from ticket_agent.journal.fs import Fs

__all__ = ["SourceState"]


class SourceState:
    """The part of one source and epoch, held by this process until :meth:`close` or its end.

    1. A number is durable before anybody sees it, and is given out once.
    2. After a failed write it is not used again; after one whose end nobody knows nothing is.
    """

    def __init__(self, fs: Fs, dir_fd: int, lock_fd: int, cursor: Cursor) -> None:
        self._fs = fs
        self._dir_fd = dir_fd
        self._fds: tuple[int, ...] = (dir_fd, lock_fd)
        self._cursor = cursor
        self._poisoned: str | None = None

    @classmethod
    def open(
        cls, fs: Fs, root_fd: int, *, source_id: str, epoch: int, continue_after: int | None = None
    ) -> Self:
        """Open the part of a source, or make it when there is none.

        Args:
            fs: where.
            root_fd: the state directory, from :func:`open_state_root`; it stays open.
            source_id: the source.
            epoch: the writer epoch.
            continue_after: an operator's word that numbers up to this one are used; it only moves forward.

        Raises:
            SourceHeldError: another process publishes for it.
            CursorError: it is incomplete, damaged, or not private to this user.
        """
        name = source_directory(source_id, epoch)
        fresh = Cursor(source_id=source_id, epoch=epoch, sequence=continue_after or 0)
        try:
            dir_fd, lock_fd = open_source(fs, root_fd, fresh)
        except OSError as error:
            raise CursorError(f"{name} in the state directory cannot be used: {words_of(error)}") from error
        try:
            # Durable before the first number is: whoever made it may have died before this.
            fs.fsync_dir(root_fd)
            cursor = _read(fs, dir_fd, fresh, adopted=continue_after is not None)
            remove_temporaries(fs, dir_fd)
            state = cls(fs, dir_fd, lock_fd, cursor)
            if continue_after is not None and continue_after > cursor.sequence:
                state._write(replace(cursor, sequence=continue_after))
        except OSError as error:
            close_all(dir_fd, lock_fd)
            raise CursorError(f"{name} in the state directory cannot be used: {words_of(error)}") from error
        except BaseException:
            close_all(dir_fd, lock_fd)
            raise
        return state

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def cursor(self) -> Cursor:
        """The last reservation."""
        return self._cursor

    def reserve(self, observed_unix_ms: int) -> int:
        """Durably take the next number for an observation made at ``observed_unix_ms``.

        Raises:
            CursorFullError: the disk is full; the number is skipped.
            CursorPoisonedError: nobody knows what is on the disk, now or since an earlier call.
            CursorError: the numbers of this epoch are used up.
        """
        if self._poisoned is not None:
            raise CursorPoisonedError(self._poisoned)
        if self._cursor.sequence >= U64_MAX:
            raise CursorError("every sequence number of this epoch is used; the hive needs a new epoch")
        # Moved on before the write: whatever becomes of it, this number is never given out again.
        self._cursor = replace(
            self._cursor,
            sequence=self._cursor.sequence + 1,
            observed_unix_ms=max(self._cursor.observed_unix_ms, observed_unix_ms),
        )
        self._write(self._cursor)
        return self._cursor.sequence

    def close(self) -> None:
        """Let others publish for this source. Idempotent."""
        fds, self._fds = self._fds, ()
        close_all(*fds)
        self._poisoned = "the source's state is closed"

    def _write(self, cursor: Cursor) -> None:
        try:
            replace_file(self._fs, self._dir_fd, CURSOR, encode_cursor(cursor))
        except ReplaceError as error:
            if error.out_of_space:
                raise CursorFullError(
                    f"sequence {cursor.sequence} cannot be reserved, the disk is full ({error}); make room,"
                    " publishing goes on by itself"
                ) from error
            self._poisoned = (
                f"sequence {cursor.sequence} may not be durable ({error}); check the disk, restart"
            )
            raise CursorPoisonedError(self._poisoned) from error
        self._cursor = cursor


def _read(fs: Fs, dir_fd: int, fresh: Cursor, *, adopted: bool) -> Cursor:
    try:
        return read_cursor(fs, dir_fd, source_id=fresh.source_id, epoch=fresh.epoch)
    except (NoCursorError, DamagedCursorError) as error:
        if not adopted:
            raise
        if isinstance(error, DamagedCursorError):
            _keep_aside(fs, dir_fd)
        # Written at once, with the operator's number.
        return replace(fresh, sequence=0)


def _keep_aside(fs: Fs, dir_fd: int) -> None:
    taken = set(fs.list(dir_fd))
    kept = next(name for number in itertools.count() if (name := f"{CURSOR}.damaged-{number}") not in taken)
    fs.rename(dir_fd, CURSOR, kept)
