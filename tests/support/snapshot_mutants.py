"""Deliberate faults of a publisher's numbers, switched in one at a time from outside."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ticket_agent.journal.atomic import ReplaceError, replace_file
from ticket_agent.snapshots import source_place, source_state
from ticket_agent.snapshots.cursor_text import Cursor
from ticket_agent.snapshots.publish_errors import CursorError
from ticket_agent.snapshots.publisher import SnapshotPublisher
from ticket_agent.snapshots.source_state import SourceState

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from ticket_agent.journal.fs import Fs

    Apply = Callable[[pytest.MonkeyPatch], None]

WriteStep = Literal["write", "fsync", "rename", "fsync-dir"]


@dataclass(frozen=True)
class Mutant:
    """One fault, and the name of the check that must find it."""

    name: str
    check: str
    apply: Apply


def _in_memory(self: SourceState, observed_unix_ms: int) -> int:
    cursor = self.cursor
    self._cursor = replace(cursor, sequence=cursor.sequence + 1, observed_unix_ms=observed_unix_ms)
    return self._cursor.sequence


def _reserves_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SourceState, "reserve", _in_memory)


def _reserves_after_the_transfer(patch: pytest.MonkeyPatch) -> None:
    verify = SnapshotPublisher._verify

    def late(self: SnapshotPublisher, *arguments: Any) -> None:
        self._state._write(self._state.cursor)
        verify(self, *arguments)

    patch.setattr(SourceState, "reserve", _in_memory)
    patch.setattr(SnapshotPublisher, "_verify", late)


def _replace_by(*order: WriteStep) -> Apply:
    """Cursors are written by these steps, in this order."""

    def written(fs: Fs, dir_fd: int, name: str, data: bytes) -> None:
        temporary = f".{name}.0.0.tmp"
        fd = fs.create_new(dir_fd, temporary)
        for step in order:
            if step == "write":
                fs.write(fd, data)
            elif step == "fsync":
                fs.fsync(fd)
            elif step == "rename":
                fs.rename(dir_fd, temporary, name)
            else:
                fs.fsync_dir(dir_fd)
        fs.close(fd)

    def apply(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(source_state, "replace_file", written)
        patch.setattr(source_place, "replace_file", written)

    return apply


def _forgets_the_state_directory(patch: pytest.MonkeyPatch) -> None:
    """The new part's name is not made durable before its first number is."""
    opened = SourceState.open.__func__  # type: ignore[attr-defined]

    def forgetful(cls: type[SourceState], /, fs: Fs, root_fd: int, **options: Any) -> SourceState:
        real = fs.fsync_dir

        def skip(dir_fd: int) -> None:
            if dir_fd != root_fd:
                real(dir_fd)

        fs.fsync_dir = skip  # type: ignore[method-assign]
        state: SourceState = opened(cls, fs, root_fd, **options)
        fs.fsync_dir = real  # type: ignore[method-assign]
        return state

    patch.setattr(SourceState, "open", classmethod(forgetful))


def _names_the_part_first(patch: pytest.MonkeyPatch) -> None:
    def create(fs: Fs, root_fd: int, name: str, fresh: Cursor) -> tuple[int, int]:
        os.mkdir(name, 0o700, dir_fd=root_fd)
        return source_place._filled(fs, root_fd, name, fresh)

    patch.setattr(source_place, "_create", create)


def _resets_a_damaged_cursor(patch: pytest.MonkeyPatch) -> None:
    real = source_place.read_cursor

    def lenient(fs: Fs, dir_fd: int, *, source_id: str, epoch: int) -> Cursor:
        try:
            return real(fs, dir_fd, source_id=source_id, epoch=epoch)
        except CursorError:
            return Cursor(source_id=source_id, epoch=epoch)

    patch.setattr(source_state, "read_cursor", lenient)


def _rolls_back_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    real = SourceState.reserve

    def reserve(self: SourceState, observed_unix_ms: int) -> int:
        before = self._cursor
        try:
            return real(self, observed_unix_ms)
        except CursorError:
            self._cursor, self._poisoned = before, None
            raise

    patch.setattr(SourceState, "reserve", reserve)


def _gives_out_what_was_not_written(patch: pytest.MonkeyPatch) -> None:
    def write(fs: Fs, dir_fd: int, name: str, data: bytes) -> None:
        try:
            replace_file(fs, dir_fd, name, data)
        except ReplaceError:
            return

    patch.setattr(source_state, "replace_file", write)


def _takes_no_lock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(source_place, "try_lock", lambda _: True)


def _keeps_temporaries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(source_state, "remove_temporaries", lambda *_: None)


MUTANTS = (
    Mutant("a number is reserved in memory only", "deaths", _reserves_in_memory_only),
    Mutant("a number is reserved after its transfer", "deaths", _reserves_after_the_transfer),
    Mutant(
        "a cursor has its name before its bytes",
        "deaths",
        _replace_by("rename", "write", "fsync", "fsync-dir"),
    ),
    Mutant("a part has its name before it is filled", "deaths", _names_the_part_first),
    Mutant("unfinished cursors are never removed", "deaths", _keeps_temporaries),
    Mutant(
        "a cursor's bytes are not made durable", "power cuts", _replace_by("write", "rename", "fsync-dir")
    ),
    Mutant("a cursor's name is not made durable", "power cuts", _replace_by("write", "fsync", "rename")),
    Mutant("a part's name is not made durable", "power cuts", _forgets_the_state_directory),
    Mutant("a number is taken back after a failed write", "failures", _rolls_back_after_a_failure),
    Mutant("a number is given out though its write failed", "failures", _gives_out_what_was_not_written),
    Mutant("a damaged cursor begins anew", "damage", _resets_a_damaged_cursor),
    Mutant("the lock is not taken", "company", _takes_no_lock),
)
