"""Reading a journal without owning it: beside a live daemon, after its death, on a copy, as another user.

Nothing is written, created or locked for longer than a moment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ticket_agent.journal.archive import MAX_SEGMENT_BYTES, Segment, is_segment, read_segment, segment_names
from ticket_agent.journal.atomic import is_temporary
from ticket_agent.journal.cursor import MAX_CURSOR_BYTES, Cursor, decode_cursor, load_cursor
from ticket_agent.journal.errors import JournalIoError, RecordError, StateDirError, TakeoverError
from ticket_agent.journal.fence import FenceOwner, fence_owner, read_starts
from ticket_agent.journal.fs import RealFs
from ticket_agent.journal.gaps import (
    MAX_GAP_BYTES,
    Acknowledgement,
    acknowledgements_in,
    decode_acknowledgement,
)
from ticket_agent.journal.index import Index
from ticket_agent.journal.scan import Quarantined, Scan, describe_read_error, scan_records
from ticket_agent.journal.state_dir import ARCHIVE, CURSOR, GAPS, OPS, TAKEOVER, open_readable
from ticket_agent.journal.takeover import (
    MAX_TAKEOVER_BYTES,
    Takeover,
    decode_takeover,
    load_takeover,
    require_finished,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ticket_agent.journal.fs import Fs
    from ticket_agent.journal.space import Limits
    from ticket_agent.journal.starts import Start
    from ticket_agent.journal.table import RecordTable

_T = TypeVar("_T")

__all__ = ["JournalView", "Verdict", "completed_through", "read_archive", "read_journal", "verify"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalView:
    """What a state directory held while it was read.

    Attributes:
        records: retained operations by key.
        quarantined: files in ``ops/`` that are no valid records.
        cursor: the cursor, or its initial value.
        cursor_problem: why the cursor cannot be read, or None.
        acknowledgements: valid acknowledgements of gaps.
        segments: names of the archive's segments, oldest first; their records are read by ``read_archive``.
        owner: who holds the fence now, or None.
        starts: who held it, oldest first, as far as the fence's file still says.
        takeover: whose state this was before, or None.
        takeover_problem: why that cannot be read or is only half there; no agent opens such a directory.
    """

    records: RecordTable
    quarantined: tuple[Quarantined, ...]
    cursor: Cursor
    cursor_problem: str | None
    acknowledgements: tuple[Acknowledgement, ...]
    segments: tuple[str, ...]
    owner: FenceOwner | None
    starts: tuple[Start, ...]
    takeover: Takeover | None = None
    takeover_problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether one file is what it should be.

    Attributes:
        file: path relative to the state directory.
        ok: it can be read and its digest is right.
        offset: first byte known to be wrong, 0 when all is well.
        reason: what is wrong, empty when all is well.
    """

    file: str
    ok: bool
    offset: int = 0
    reason: str = ""


def read_journal(state_dir: Path) -> JournalView:
    """Read what is retained.

    Raises:
        StateDirError: the directory is absent, a symlink or no directory.
        JournalIoError: it or its ``ops`` cannot be read.
    """
    fs = RealFs()
    root = _open(state_dir)
    try:
        scan = _in_directory(state_dir / OPS, lambda fd: scan_records(fs, fd, changing=True), Scan())
        cursor, problem = load_cursor(fs, root)
        takeover, takeover_problem = _takeover(fs, root)
        return JournalView(
            records=scan.records,
            quarantined=tuple(scan.quarantined),
            cursor=cursor,
            cursor_problem=problem,
            acknowledgements=_in_directory(state_dir / GAPS, lambda fd: acknowledgements_in(fs, fd), ()),
            segments=tuple(_in_directory(state_dir / ARCHIVE, lambda fd: segment_names(fs, fd), [])),
            owner=fence_owner(root),
            starts=read_starts(root),
            takeover=takeover,
            takeover_problem=takeover_problem,
        )
    finally:
        os.close(root)


def completed_through(view: JournalView, limits: Limits) -> Callable[[str, int], int]:
    """The completion fence of a family in an epoch, as the owner of what was read would have it."""
    index = Index(
        Scan(records=view.records, quarantined=list(view.quarantined)),
        lambda family, epoch: view.cursor.completed_through(epoch) if limits.fenced(family) else 0,
    )
    return index.completed_through


def _takeover(fs: Fs, root: int) -> tuple[Takeover | None, str | None]:
    found = None
    try:
        found = load_takeover(fs, root)
        require_finished(found)
    except TakeoverError as error:
        return found, str(error)
    return found, None


def read_archive(state_dir: Path) -> Iterator[Segment]:
    """Yield the archive's segments, oldest first, one at a time.

    Raises:
        StateDirError: the directory of the archive is a symlink or no directory.
        JournalIoError: it, or a segment, cannot be read.
    """
    fs = RealFs()
    try:
        fd = open_readable(state_dir / ARCHIVE)
    except OSError as error:
        raise JournalIoError(f"{state_dir / ARCHIVE} cannot be read: {error}") from error
    try:
        for name in segment_names(fs, fd):
            try:
                yield read_segment(name, fs.read(fd, name, MAX_SEGMENT_BYTES))
            except OSError as error:
                raise JournalIoError(f"{state_dir / ARCHIVE / name} cannot be read: {error}") from error
    finally:
        os.close(fd)


def verify(state_dir: Path) -> tuple[Verdict, ...]:
    """Check every file: records, cursor, acknowledgements, segments; leftovers are named and do no harm.

    Raises:
        StateDirError: the directory is absent, a symlink or no directory.
        JournalIoError: a directory in it cannot be read.
    """
    fs = RealFs()
    root = _open(state_dir)
    try:
        verdicts = _verify_root(fs, root)
    except OSError as error:
        raise JournalIoError(f"{state_dir} cannot be read: {error}") from error
    finally:
        os.close(root)
    verdicts += _in_directory(state_dir / OPS, lambda fd: _verify_records(fs, fd), [])
    verdicts += _in_directory(state_dir / GAPS, lambda fd: _verify_gaps(fs, fd), [])
    verdicts += _in_directory(state_dir / ARCHIVE, lambda fd: _verify_segments(fs, fd), [])
    return tuple(verdicts)


def _open(path: Path) -> int:
    try:
        return open_readable(path)
    except OSError as error:
        raise JournalIoError(f"{path} cannot be read: {error}") from error


def _in_directory(path: Path, read: Callable[[int], _T], absent: _T) -> _T:
    try:
        fd = open_readable(path)
    except StateDirError as error:
        # By now it may be there: an agent that starts is making it.
        if isinstance(error.__cause__, FileNotFoundError):
            return absent
        raise
    except OSError as error:
        raise JournalIoError(f"{path} cannot be read: {error}") from error
    try:
        return read(fd)
    except OSError as error:
        raise JournalIoError(f"{path} cannot be read: {error}") from error
    finally:
        os.close(fd)


def _verify_records(fs: Fs, fd: int) -> list[Verdict]:
    scan = scan_records(fs, fd, changing=True)
    verdicts = [Verdict(file=f"{OPS}/{record.name}", ok=True) for record in scan.records.values()]
    verdicts += [
        Verdict(file=f"{OPS}/{entry.name}", ok=False, offset=entry.offset, reason=entry.reason)
        for entry in scan.quarantined
    ]
    return sorted(verdicts + _leftovers(f"{OPS}/", scan.leftovers), key=lambda verdict: verdict.file)


def _verify_root(fs: Fs, fd: int) -> list[Verdict]:
    names = fs.list(fd)
    verdicts = _leftovers("", names)
    known = (
        (CURSOR, MAX_CURSOR_BYTES, _check_cursor),
        (TAKEOVER, MAX_TAKEOVER_BYTES, _check_takeover),
    )
    return [
        _verify_file(fs, fd, name, folder="", limit=limit, check=check)
        for name, limit, check in known
        if name in names
    ] + verdicts


def _verify_gaps(fs: Fs, fd: int) -> list[Verdict]:
    names = sorted(fs.list(fd))
    checked = [
        _verify_file(fs, fd, name, folder=f"{GAPS}/", limit=MAX_GAP_BYTES, check=_check_gap)
        for name in names
        if not is_temporary(name)
    ]
    return checked + _leftovers(f"{GAPS}/", names)


def _verify_segments(fs: Fs, fd: int) -> list[Verdict]:
    names = sorted(fs.list(fd))
    checked = [
        _verify_file(fs, fd, name, folder=f"{ARCHIVE}/", limit=MAX_SEGMENT_BYTES, check=_check_segment)
        for name in names
        if not is_temporary(name)
    ]
    return checked + _leftovers(f"{ARCHIVE}/", names)


def _leftovers(prefix: str, names: list[str]) -> list[Verdict]:
    reason = "left by an unfinished write; never used, removed at the next start"
    return [
        Verdict(file=f"{prefix}{name}", ok=True, reason=reason)
        for name in sorted(names)
        if is_temporary(name)
    ]


def _verify_file(
    fs: Fs, fd: int, name: str, *, folder: str, limit: int, check: Callable[[str, bytes], None]
) -> Verdict:
    shown = f"{folder}{name}"
    try:
        check(name, fs.read(fd, name, limit))
    except RecordError as error:
        return Verdict(file=shown, ok=False, offset=error.offset, reason=error.reason)
    except OSError as error:
        return Verdict(file=shown, ok=False, reason=describe_read_error(error))
    return Verdict(file=shown, ok=True)


def _check_cursor(_: str, data: bytes) -> None:
    decode_cursor(data)


def _check_takeover(_: str, data: bytes) -> None:
    if not decode_takeover(data).finished:
        raise RecordError("the takeover was not finished; run `ticket-agent journal import` again")


def _check_gap(name: str, data: bytes) -> None:
    decode_acknowledgement(data, name=name)


def _check_segment(name: str, data: bytes) -> None:
    if not is_segment(name):
        raise RecordError("the file's name is not that of a segment")
    segment = read_segment(name, data)
    if segment.problems:
        raise RecordError(segment.problems[0].reason, offset=segment.problems[0].offset)
