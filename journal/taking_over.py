"""Filling an empty state directory with the state of another program: all of it, or a directory nobody opens.

The order makes a crash at any point harmless. ``takeover.json`` comes first and says "not finished", which
keeps every agent out; then each record in its final state; then the cursor; then ``takeover.json`` again,
finished. Every step is durable before the next one. A second run from the same bytes goes on where the first
one stopped, and one from other bytes is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ticket_agent.journal.atomic import is_temporary, remove_temporaries, replace_file
from ticket_agent.journal.cursor import Cursor, encode_cursor
from ticket_agent.journal.errors import JournalIoError, StateDirError, TakeoverError
from ticket_agent.journal.fence import Fence
from ticket_agent.journal.fs import RealFs
from ticket_agent.journal.record import encode_record
from ticket_agent.journal.state_dir import CURSOR, TAKEOVER, create_state_dir
from ticket_agent.journal.takeover import Takeover, encode_takeover, load_takeover
from ticket_agent.journal.values import MAX_RECORD_BYTES
from ticket_agent.journal.view import read_journal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ticket_agent.journal.fs import Fs
    from ticket_agent.journal.record import Record
    from ticket_agent.journal.state_dir import StateDir

__all__ = ["require_empty", "take_over"]


def require_empty(state_dir: Path) -> None:
    """Refuse, without touching it, a directory that holds operations or a cursor of ours.

    One with an unfinished takeover passes: :func:`take_over` decides whether that can go on.

    Raises:
        TakeoverError: what it holds, and what to do.
        StateDirError: it is a symlink or no directory.
        JournalIoError: it cannot be read.
    """
    try:
        view = read_journal(state_dir)
    except StateDirError:
        if state_dir.is_symlink() or state_dir.exists():
            raise
        return
    if view.takeover is not None:
        _require_unfinished(view.takeover)
        return
    if view.takeover_problem is not None:
        raise TakeoverError(view.takeover_problem)
    held = len(view.records) + len(view.quarantined)
    what = f"{held} records" if held else "an archive" if view.segments else None
    if what is None and ((state_dir / CURSOR).exists() or view.acknowledgements):
        what = "a cursor or acknowledgements"
    if what is not None:
        raise TakeoverError(f"{state_dir} already holds {what}; name a new --state-dir")


def take_over(
    state_dir: Path,
    *,
    takeover: Takeover,
    build: Callable[[Takeover], Sequence[Record]],
    cursor: Callable[[Takeover], Cursor],
    fs: Fs | None = None,
) -> Takeover:
    """Write the whole state durably, under the fence of the directory.

    Args:
        state_dir: new, empty, or left by an earlier run of this function.
        takeover: what is taken over; time and boot of an earlier run's beginning win over the ones given.
        build: makes the records, always the same ones for the same takeover.
        cursor: makes the cursor, as above.
        fs: the file system; the operating system's if None.

    Returns:
        The takeover as it is on disk now.

    Raises:
        TakeoverError: the directory is not empty, or was begun from another state.
        FenceHeldError: another process owns the directory.
        StateDirError: the directory is not one to trust.
        RecordError: something cannot stand in a record; nothing is executed from what was written.
        ReplaceError: a file could not be written; run again.
        JournalIoError: the directory cannot be read or prepared.
    """
    require_empty(state_dir)
    seam = fs or RealFs()
    dirs = create_state_dir(state_dir, seam)
    try:
        fence = Fence.acquire(seam, dirs.root, boot_id=takeover.boot_id, now_unix_ms=takeover.unix_ms)
        try:
            require_empty(state_dir)
            return _write(seam, dirs, takeover, build, cursor)
        finally:
            fence.release()
    except OSError as error:
        raise JournalIoError(f"{state_dir} cannot be read: {error}") from error
    finally:
        dirs.close()


def _write(
    fs: Fs,
    dirs: StateDir,
    takeover: Takeover,
    build: Callable[[Takeover], Sequence[Record]],
    cursor: Callable[[Takeover], Cursor],
) -> Takeover:
    for fd in (dirs.root, dirs.ops):
        remove_temporaries(fs, fd)
    begun = _begin(fs, dirs, takeover)
    # Everything is made before the first record is written, so that a refusal leaves no half.
    files = {record.name: encode_record(record) for record in build(begun)}
    saved = encode_cursor(cursor(begun))
    finished = replace(begun, finished=True)
    there = {name for name in fs.list(dirs.ops) if not is_temporary(name)}
    foreign = sorted(there - files.keys())
    if foreign:
        raise TakeoverError(f"ops/{foreign[0]} does not belong to this takeover; name a new --state-dir")
    for name, data in files.items():
        if name not in there:
            replace_file(fs, dirs.ops, name, data, new=True)
        elif fs.read(dirs.ops, name, MAX_RECORD_BYTES) != data:
            raise TakeoverError(f"ops/{name} differs from what is taken over; name a new --state-dir")
    # An earlier run may have died between naming its last record and syncing that.
    fs.fsync_dir(dirs.ops)
    replace_file(fs, dirs.root, CURSOR, saved)
    replace_file(fs, dirs.root, TAKEOVER, encode_takeover(finished))
    return finished


def _begin(fs: Fs, dirs: StateDir, takeover: Takeover) -> Takeover:
    earlier = load_takeover(fs, dirs.root)
    if earlier is None:
        begun = replace(takeover, finished=False)
        replace_file(fs, dirs.root, TAKEOVER, encode_takeover(begun))
        return begun
    _require_unfinished(earlier)
    same = replace(takeover, unix_ms=earlier.unix_ms, boot_id=earlier.boot_id, finished=False)
    if same != earlier:
        raise TakeoverError(
            f"an unfinished takeover from {earlier.source} is here, and that state has changed since; "
            f"name a new --state-dir"
        )
    return earlier


def _require_unfinished(takeover: Takeover) -> None:
    if takeover.finished:
        raise TakeoverError(
            f"this directory took over from {takeover.source} before; it is ready for `ticket-agent run`"
        )
