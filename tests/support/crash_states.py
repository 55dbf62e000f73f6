"""Every state that a power cut can legally leave behind, worked out from a log of what was done.

The model: a file's data is durable at its fsync, and before that its new part may be missing, half there,
half there and zeros behind it, zeros of full length, or whole. Names are durable at their directory's fsync,
and before that any prefix of all changes since (``ordered``: one journal for the file system), or any subset
of them (``subset``), may be there.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from journal_support import Op

from ticket_agent.journal.atomic import is_temporary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Mode = Literal["ordered", "subset"]
MODES: tuple[Mode, ...] = ("ordered", "subset")

Place = tuple[str, str]
"""A directory's name and a name in it."""
Files = tuple[tuple[str, str, bytes], ...]
"""Directory, name and content, sorted."""

APPEND = "append"
"""Mark in a log: a line went to the hive; ``file`` is the node, ``data`` the line."""
UNSYNCED = frozenset({"agent.lock", "reserve"})
"""Files whose content means nothing and is never forced to the disk."""


@dataclass(frozen=True)
class CrashState:
    """What is left after a cut, and what was known to the world before it.

    Attributes:
        files: regular files; a directory is there when it is in ``folders`` or was there from the start.
        folders: directories that the log had made and that are left.
        appends: lines that the hive has taken.
        begun: marks ``begin`` before the cut.
        done: marks ``done`` before the cut.
        promised: files whose replacement had returned, with their content then.
    """

    files: Files
    folders: frozenset[Place]
    appends: int
    begun: int
    done: int
    promised: Files

    @property
    def core(self) -> tuple[object, ...]:
        """The state without the files whose content means nothing."""
        kept = tuple(file for file in self.files if file[1] not in UNSYNCED)
        return (kept, self.folders, self.appends, self.begun, self.done, self.promised)

    def listed(self, folder: str) -> dict[str, bytes]:
        """Content by name in one directory."""
        return {name: data for where, name, data in self.files if where == folder}


@dataclass(frozen=True)
class _Change:
    """One atomic change of names in one directory."""

    folder: str
    gone: str | None = None
    there: str | None = None
    inode: int = -1

    def on(self, names: dict[Place, int]) -> None:
        if self.gone is not None:
            names.pop((self.folder, self.gone), None)
        if self.there is not None:
            names[self.folder, self.there] = self.inode


_FOLDER = -2
"""Stands for the inode of a directory."""


class _Disk:
    """What is durable and what is pending."""

    def __init__(self) -> None:
        self._data: list[bytes] = []
        self._forced: list[bytes] = []
        self._live: dict[Place, int] = {}
        self._durable: dict[Place, int] = {}
        self._pending: list[_Change] = []
        self.promised: dict[Place, bytes] = {}

    def do(self, op: Op, mode: Mode) -> None:
        place = (op.folder, op.file)
        match op.name:
            case "mkdir":
                self._change(_Change(op.folder, there=op.file, inode=_FOLDER))
            case "create":
                self._new(op)
            case "keep":
                if place not in self._live:
                    self._new(op)
            case "write":
                self._data[self._live[place]] += op.data
            case "truncate":
                self._data[self._live[place]] = self._forced[self._live[place]] = b""
            case "reserve":
                self._data[self._live[place]] = bytes(int(op.target))
            case "fsync":
                self._forced[self._live[place]] = self._data[self._live[place]]
            case "rename":
                self._change(_Change(op.folder, gone=op.file, there=op.target, inode=self._live[place]))
            case "link":
                self._change(_Change(op.folder, there=op.target, inode=self._live[place]))
            case "unlink":
                self._change(_Change(op.folder, gone=op.file))
            case "fsync_dir":
                self._force(op.folder, mode)

    def _new(self, op: Op) -> None:
        self._data.append(b"")
        self._forced.append(b"")
        self._change(_Change(op.folder, there=op.file, inode=len(self._data) - 1))

    def _change(self, change: _Change) -> None:
        self._pending.append(change)
        change.on(self._live)

    def _force(self, folder: str, mode: Mode) -> None:
        if mode == "ordered":
            last = max((at for at, it in enumerate(self._pending) if it.folder == folder), default=-1)
            forced, self._pending = self._pending[: last + 1], self._pending[last + 1 :]
        else:
            forced = [change for change in self._pending if change.folder == folder]
            self._pending = [change for change in self._pending if change.folder != folder]
        for change in forced:
            change.on(self._durable)
        for place, inode in self._live.items():
            if place[0] == folder and inode >= 0 and not is_temporary(place[1]) and place[1] not in UNSYNCED:
                self.promised[place] = self._data[inode]

    def cuts(self, mode: Mode) -> Iterator[tuple[Files, frozenset[Place]]]:
        """Every content that a power cut now can leave."""
        for changes in self._kept(mode):
            names = dict(self._durable)
            for change in changes:
                change.on(names)
            folders = frozenset(place for place, inode in names.items() if inode == _FOLDER)
            variants = [
                [(*place, data) for data in _contents(self._forced[inode], self._data[inode])]
                for place, inode in sorted(names.items())
                if inode >= 0
            ]
            for files in itertools.product(*variants):
                yield files, folders

    def _kept(self, mode: Mode) -> Iterator[Iterable[_Change]]:
        sizes = range(len(self._pending) + 1)
        for size in sizes:
            if mode == "ordered":
                yield self._pending[:size]
            else:
                yield from itertools.combinations(self._pending, size)


@lru_cache(maxsize=4096)
def _contents(forced: bytes, data: bytes) -> tuple[bytes, ...]:
    """What a file may hold of which a part was forced to the disk."""
    tail = data[len(forced) :]
    half = forced + tail[: len(tail) // 2]
    torn = half.ljust(len(data), b"\0")
    return tuple(dict.fromkeys([forced, half, torn, forced.ljust(len(data), b"\0"), data]))


def crash_states(log: Iterable[Op], mode: Mode, *, since: int = 0) -> Iterator[CrashState]:
    """Each distinct state after each prefix of a log that has at least ``since`` operations, once."""
    disk, seen = _Disk(), set[CrashState]()
    appends = begun = done = 0
    for number, op in enumerate([Op("start"), *log]):
        appends += op.name == APPEND
        begun += op.name == "begin"
        done += op.name == "done"
        disk.do(op, mode)
        if number < since:
            continue
        promised = tuple((*place, data) for place, data in sorted(disk.promised.items()))
        for files, folders in disk.cuts(mode):
            state = CrashState(files, folders, appends, begun, done, promised)
            if state not in seen:
                seen.add(state)
                yield state
