"""The hand that writes to one state directory, and what it makes of a failure.

* A failed fsync, close, rename or directory fsync, and any other error that is not a full disk, **poisons**:
  the disk may hold the old or the new file, and asking again proves nothing, because a failed fsync reports
  success the next time. Nothing is written any more; the next process trusts what it can read.
* A disk that is full before anything is begun is an ordinary refusal, and the same call works later.
* A disk that is full when an **outcome** must be stored is an **emergency**: the reserve is given up, the
  write is tried once more, and then nothing new is begun in this process, but further outcomes may still be
  stored.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from ticket_agent.journal.atomic import ReplaceError, Step, replace_file
from ticket_agent.journal.errors import JournalPoisonedError, QuarantinedRecordError, StorageFullError
from ticket_agent.journal.space import SpaceGuard

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.journal.fs import Fs
    from ticket_agent.journal.space import Limits

__all__ = ["Writer"]

_RESTART = "end this process and start it again"


class Writer:
    """Writes files of a state directory until the first failure that leaves doubt."""

    def __init__(self, fs: Fs, root_fd: int, limits: Limits) -> None:
        self._fs = fs
        self._space = SpaceGuard(fs, root_fd, limits)
        self._poison: str | None = None
        self._emergency: str | None = None

    @property
    def poisoned(self) -> str | None:
        """Why nothing new is begun any more, or None."""
        return self._poison or self._emergency

    def require_usable(self) -> None:
        """Refuse when nothing may be written.

        Raises:
            JournalPoisonedError: with the first failure's reason.
        """
        if self._poison is not None:
            raise JournalPoisonedError(f"the journal is closed for writing ({self._poison}); {_RESTART}")

    def require_clean(self) -> None:
        """Refuse when nothing new may be begun.

        Raises:
            JournalPoisonedError: with the first failure's reason.
        """
        self.require_usable()
        if self._emergency is not None:
            raise JournalPoisonedError(f"nothing new is begun ({self._emergency}); {_RESTART}")

    def require_free(self, extra: int = 0) -> None:
        """Refuse to begin something on a full disk; see :meth:`SpaceGuard.require_free`."""
        try:
            self._space.require_free(extra)
        except OSError as error:
            self._fail(f"the free space cannot be told: {error}", error)

    def hold_reserve(self, executing: int) -> None:
        """Hold space for outcomes; see :meth:`SpaceGuard.ensure_reserve`."""
        try:
            self._space.ensure_reserve(executing)
        except OSError as error:
            self._fail(f"the reserve cannot be allocated: {error}", error)

    def put(
        self,
        dir_fd: int,
        name: str,
        data: bytes,
        apply: Callable[[], None],
        *,
        new: bool = False,
        outcome: bool = False,
    ) -> None:
        """Durably write a file, then let memory follow.

        Args:
            dir_fd: the directory, open.
            name: the file.
            data: its content.
            apply: what memory does once the file is durable; must not fail.
            new: the name must be free.
            outcome: the file holds a decision that must not be lost: the reserve may be spent on it.

        Raises:
            StorageFullError: full before anything was written, and not an outcome.
            QuarantinedRecordError: ``new``, and there is a file of this name.
            JournalPoisonedError: any other failure.
        """
        self.require_usable()
        # Poisoned until proven otherwise: an interrupt between here and the end leaves disk and memory apart.
        self._poison = f"writing {name} was interrupted"
        try:
            replace_file(self._fs, dir_fd, name, data, new=new)
        except ReplaceError as error:
            if outcome:
                self._put_again(dir_fd, name, data, error)
            else:
                self._sort_failure(name, error)
        apply()
        self._poison = None

    def remove(self, dir_fd: int, names: list[str], apply: Callable[[str], None]) -> None:
        """Durably remove files that nobody needs any more; one that cannot be removed stays, in memory too.

        Raises:
            JournalPoisonedError: the directory could not be synced.
        """
        self.require_usable()
        self._poison = "removing files was interrupted"
        for name in names:
            try:
                with suppress(FileNotFoundError):
                    self._fs.unlink(dir_fd, name)
            except OSError:
                continue
            apply(name)
        try:
            self._fs.fsync_dir(dir_fd)
        except OSError as error:
            self._fail(f"removed files could not be synced: {error}", error)
        self._poison = None

    def close(self) -> None:
        """Write nothing any more; the descriptors may be gone."""
        if self._poison is None:
            self._poison = "it was closed"

    def _sort_failure(self, name: str, error: ReplaceError) -> NoReturn:
        if error.step is Step.CREATE and error.out_of_space:
            self._poison = None
            raise StorageFullError(f"{error}; make room on the disk, nothing was lost") from error
        if error.step is Step.RENAME and error.errno == errno.EEXIST:
            self._poison = None
            raise QuarantinedRecordError(
                f"{name} exists although it was not there at the start; restart to read it"
            ) from error
        self._fail(str(error), error)

    def _put_again(self, dir_fd: int, name: str, data: bytes, error: ReplaceError) -> None:
        if self._emergency is not None or not error.out_of_space:
            self._fail(str(error), error)
        self._space.release_reserve()
        try:
            replace_file(self._fs, dir_fd, name, data)
        except ReplaceError as second:
            self._fail(str(second), second)
        self._emergency = "the reserve was spent on an outcome because the disk is full"

    def _fail(self, reason: str, error: Exception) -> NoReturn:
        self._poison = reason
        raise JournalPoisonedError(f"{reason}; {_RESTART}") from error
