"""The directory of the published Rust agent: read once, under that agent's own lock, and never written to."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

from ticket_agent.agent.foreign_journal import (
    MAX_CURSOR_BYTES,
    MAX_JOURNAL_BYTES,
    MAX_LANES,
    MAX_TOPOLOGY_BYTES,
    ForeignCursor,
    ForeignJournal,
    ForeignStateError,
    parse_cursor,
    parse_journal,
    parse_topology,
)
from ticket_agent.agent.foreign_relay import MAX_WAL_BYTES, ForeignRelay, parse_relay_wal
from ticket_agent.agent.takeover import ForeignState, Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ticket_agent.journal.fs import Fs

__all__ = ["ForeignDir", "StillRunningError", "opened", "read_state"]

T = TypeVar("T")

LOCK = "agent.lock"
JOURNAL = "execution-journal"
CURSOR = "cursor"
TOPOLOGY = "execution-journal.topology.json"
COMPAT = "execution-journal.compat.json"
RELAY = "relay-wal.json"
MAX_LOCK_BYTES = 256

_LANE_FILE = re.compile(r"(execution-journal|cursor)\.lane-([0-9]{2})-of-([0-9]{2})\.json")
_PID = re.compile(rb"pid=([0-9]{1,10})\n")


class StillRunningError(Exception):
    """The former agent holds its lock: its state may change under our eyes.

    Attributes:
        pid: its process as it wrote it down, or None when that is not readable.
    """

    code = "still-running"

    def __init__(self, pid: int | None) -> None:
        who = f"process {pid}" if pid is not None else "a process"
        super().__init__(f"{who} still holds {LOCK} there; stop the former agent first")
        self.pid = pid


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignDir:
    """What a directory of the former agent holds.

    Attributes:
        state: its lanes with their journals and cursors.
        files: names of the files that were read, in the order of ``sha256``.
        relay: its relay queue, empty where it relayed nothing.
        sha256: digest over names and bytes of all of them.
        notes: what is not taken over or could not be checked, in words for an operator.
    """

    state: ForeignState
    files: tuple[str, ...]
    relay: tuple[ForeignRelay, ...]
    sha256: str
    notes: tuple[str, ...]


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """The directory, open, with the former agent's lock held where there is one.

    Raises:
        StillRunningError: the former agent holds it.
        ForeignStateError: the lock cannot be used.
        OSError: the directory is a symlink, absent, or cannot be opened.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    lock: int | None = None
    try:
        lock = _lock(fd)
        yield fd
    finally:
        if lock is not None:
            os.close(lock)
        os.close(fd)


def _lock(dir_fd: int) -> int | None:
    # Opened for reading only: the file is the former agent's, and its bytes and times stay as they are.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(LOCK, flags, dir_fd=dir_fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ForeignStateError(f"{LOCK} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        written = _PID.fullmatch(os.pread(fd, MAX_LOCK_BYTES, 0))
        os.close(fd)
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            raise StillRunningError(int(written[1]) if written is not None else None) from None
        raise ForeignStateError(f"{LOCK} cannot be locked: {error.strerror}") from error
    return fd


def read_state(dir_fd: int, fs: Fs) -> ForeignDir:
    """Read and check every file that matters.

    Raises:
        ForeignStateError: a file is missing, no regular file, too long, or breaks a rule.
        OSError: the directory cannot be listed.
    """
    names = frozenset(fs.list(dir_fd))
    if COMPAT in names:
        raise ForeignStateError(
            f"{COMPAT} holds version-1 operations in a form that is not taken over; let the former agent end "
            f"them, then move the file away"
        )
    reading = _Reading(fs, dir_fd)
    lanes = [_lane(names, reading, journal, cursor) for journal, cursor in _lane_files(names, reading)]
    state = ForeignState(lanes=tuple(lanes))
    relay = reading.take(RELAY, MAX_WAL_BYTES, parse_relay_wal) if RELAY in names else ()
    return ForeignDir(
        state=state,
        files=tuple(reading.names),
        relay=relay,
        sha256=reading.digest.hexdigest(),
        notes=_notes(names, relay),
    )


def _lane(names: frozenset[str], reading: _Reading, journal: str, cursor: str) -> Lane:
    """One lane; a file that is not there is empty, as for the former agent."""
    empty = ForeignJournal(format=3, operations=(), completed_through=0)
    return Lane(
        journal=reading.take(journal, MAX_JOURNAL_BYTES, parse_journal) if journal in names else empty,
        cursor=reading.take(cursor, MAX_CURSOR_BYTES, parse_cursor) if cursor in names else ForeignCursor(),
    )


class _Reading:
    """Reads files and keeps one digest over all of them."""

    def __init__(self, fs: Fs, dir_fd: int) -> None:
        self._fs = fs
        self._fd = dir_fd
        self.digest = sha256()
        self.names: list[str] = []

    def take(self, name: str, limit: int, parse: Callable[[bytes], T]) -> T:
        """Read a file whole and parse it; a refusal names the file."""
        try:
            data = self._fs.read(self._fd, name, limit)
        except OSError as error:
            why = "it is a symlink" if error.errno == errno.ELOOP else error.strerror or str(error)
            raise ForeignStateError(f"{name} cannot be read: {why}") from error
        self.names.append(name)
        self.digest.update(f"{name}\0{len(data)}\0".encode() + data)
        try:
            return parse(data)
        except ForeignStateError as error:
            raise ForeignStateError(f"{name}: {error}") from None


def _lane_files(names: frozenset[str], reading: _Reading) -> list[tuple[str, str]]:
    """Journal and cursor of every lane, in the order of the lanes."""
    single = f"{JOURNAL}.json"
    found = [match for name in sorted(names) if (match := _LANE_FILE.fullmatch(name))]
    journals = [match for match in found if match[1] == JOURNAL]
    lanes = reading.take(TOPOLOGY, MAX_TOPOLOGY_BYTES, parse_topology) if TOPOLOGY in names else None
    if not journals:
        if single not in names:
            raise ForeignStateError(f"there is no {single}; name the directory that holds the former journal")
        if lanes not in {None, 1}:
            raise ForeignStateError(f"{TOPOLOGY} says {lanes} lanes, and there is no journal of any lane")
        return [(single, f"{CURSOR}.json")]
    if single in names:
        raise ForeignStateError(
            f"there are {single} and journals of lanes; move away what the former agent did not use last"
        )
    counts = sorted({int(match[3]) for match in found} | ({lanes} if lanes is not None else set()))
    if len(counts) != 1 or not 1 <= counts[0] <= MAX_LANES:
        shown = ", ".join(map(str, counts))
        raise ForeignStateError(f"the number of lanes must be one in 1..={MAX_LANES}, not {shown}")
    return _numbered({int(match[2]) for match in found}, counts[0])


def _numbered(indexes: set[int], count: int) -> list[tuple[str, str]]:
    # Whether files are numbered from 0 or from 1 is told by the files alone: a lane's fence must never count
    # for another lane.
    if (0 in indexes) == (count in indexes) or max(indexes) > count:
        have = ", ".join(f"{index:02d}" for index in sorted(indexes))
        raise ForeignStateError(
            f"files of the lanes {have} of {count} do not tell whether lanes count from 0 or from 1; copy "
            f"the missing ones here"
        )
    first = 0 if 0 in indexes else 1
    suffixes = [f"lane-{index:02d}-of-{count:02d}" for index in range(first, first + count)]
    return [(f"{JOURNAL}.{suffix}.json", f"{CURSOR}.{suffix}.json") for suffix in suffixes]


def _notes(names: frozenset[str], relay: tuple[ForeignRelay, ...]) -> tuple[str, ...]:
    notes = []
    if LOCK not in names:
        notes.append(f"there is no {LOCK}: make sure that the former agent does not run")
    if not any(name.startswith(f"{CURSOR}.") for name in names):
        notes.append("there is no cursor: version-1 tickets are told as done by their visible results only")
    pending = sum(entry.state == "pending" for entry in relay)
    if pending:
        notes.append(
            f"{RELAY} has {pending} pending tickets: that agent may have sent them; with --resend-pending "
            f"they are sent unless the peer shows them"
        )
    return tuple(notes)
