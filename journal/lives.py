"""Which processes wrote a journal, in which order, and how each ended. Pure.

Every entry of a record's history names the process that wrote it, and the fence's file the newest starts and
orderly ends. A process that left a trace in neither is not seen.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

from ticket_agent.journal.starts import has_start_id

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from ticket_agent.journal.starts import Start
    from ticket_agent.journal.values import HistoryEntry, Record

__all__ = ["End", "Life", "LifeName", "lives_of", "name_of"]

LifeName = tuple[str, str]
"""Boot id and agent, as a history's entry has them."""


class End(StrEnum):
    """How a process ended, as far as the journal tells."""

    RUNNING = "running"
    """It holds the fence now."""
    STOPPED = "stopped"
    """It gave the fence back in order."""
    CRASHED = "crashed"
    """Another process started and this one had not said its end: killed, crashed or cut off from power."""
    UNSAID = "unsaid"
    """Nothing is recorded about its end."""


@dataclass(slots=True, kw_only=True)
class Life:
    """One process, or, where agents drew no start id, all processes of one version and boot.

    Attributes:
        number: from 1, in order.
        boot_id: the host's boot.
        agent: version and start id; None where only the fence's file knows of it and does not say.
        first_unix_ms: its start if that is known, else its first entry.
        last_unix_ms: its last recorded sign of life.
        start_known: the first time is that of the start itself.
        end: how it ended.
        entries: how many entries of histories it wrote.
        rebooted: the host was booted anew between the life before and this one.
    """

    number: int = 0
    boot_id: str
    agent: str | None
    first_unix_ms: int
    last_unix_ms: int
    start_known: bool = False
    end: End = End.UNSAID
    entries: int = 0
    rebooted: bool = False

    @property
    def is_one_process(self) -> bool:
        """Whether it is known to be a single process."""
        return self.start_known or (self.agent is not None and has_start_id(self.agent))


def name_of(entry: HistoryEntry) -> LifeName:
    """The life that wrote an entry."""
    return (entry.boot_id, entry.agent)


def lives_of(
    records: Iterable[Record], starts: Sequence[Start], *, running: bool
) -> tuple[list[Life], dict[LifeName, int]]:
    """Return the lives in order, and for each name in a history its life's number.

    The order never contradicts a history or the fence's file unless these contradict each other; what they
    leave open is ordered by the clock.

    Args:
        records: the operations.
        starts: what the fence's file says, oldest first.
        running: somebody holds the fence now, so the last start has not ended.
    """
    found = _Found()
    for record in records:
        found.take_history(record.history)
    found.take_starts(starts, running=running)
    order = found.order()
    for number, index in enumerate(order, start=1):
        life = found.lives[index]
        life.number = number
        before = found.lives[order[number - 2]] if number > 1 else None
        life.rebooted = before is not None and before.boot_id != life.boot_id
    names = {name: found.lives[index].number for name, index in found.names.items()}
    return [found.lives[index] for index in order], names


@dataclass(slots=True)
class _Found:
    lives: list[Life] = field(default_factory=list)
    names: dict[LifeName, int] = field(default_factory=dict)
    later: dict[int, set[int]] = field(default_factory=dict)

    def take_history(self, history: Sequence[HistoryEntry]) -> None:
        path: list[int] = []
        for entry in history:
            index = self._named(name_of(entry), entry.unix_ms)
            life = self.lives[index]
            life.entries += 1
            life.first_unix_ms = min(life.first_unix_ms, entry.unix_ms)
            life.last_unix_ms = max(life.last_unix_ms, entry.unix_ms)
            path.append(index)
        self._follow(path)

    def take_starts(self, starts: Sequence[Start], *, running: bool) -> None:
        path: list[int] = []
        for at, start in enumerate(starts):
            index = self._started(start)
            life = self.lives[index]
            life.first_unix_ms, life.start_known = start.started_unix_ms, True
            life.last_unix_ms = max(life.last_unix_ms, start.started_unix_ms)
            if start.stopped_unix_ms is not None:
                life.end = End.STOPPED
                life.last_unix_ms = max(life.last_unix_ms, start.stopped_unix_ms)
            elif at + 1 < len(starts):
                life.end = End.CRASHED
            elif running:
                life.end = End.RUNNING
            path.append(index)
        self._follow(path)

    def _started(self, start: Start) -> int:
        # Without a start id the name is that of many processes, and this start is only one of them.
        if start.agent is not None and has_start_id(start.agent):
            return self._named((start.boot_id, start.agent), start.started_unix_ms)
        return self._new(start.boot_id, start.agent, start.started_unix_ms)

    def _named(self, name: LifeName, unix_ms: int) -> int:
        if name not in self.names:
            self.names[name] = self._new(*name, unix_ms)
        return self.names[name]

    def _new(self, boot_id: str, agent: str | None, unix_ms: int) -> int:
        self.lives.append(
            Life(boot_id=boot_id, agent=agent, first_unix_ms=unix_ms, last_unix_ms=unix_ms),
        )
        return len(self.lives) - 1

    def _follow(self, path: list[int]) -> None:
        for before, after in pairwise(path):
            if before != after:
                self.later.setdefault(before, set()).add(after)

    def order(self) -> list[int]:
        """Indices so that none comes before one that it follows; the earliest first where that is open."""
        waits = [0] * len(self.lives)
        for followers in self.later.values():
            for index in followers:
                waits[index] += 1
        ready = [(self.lives[index].first_unix_ms, index) for index, count in enumerate(waits) if not count]
        heapq.heapify(ready)
        done: dict[int, None] = {}
        while len(done) < len(self.lives):
            index = heapq.heappop(ready)[1] if ready else self._earliest(done)
            if index in done:
                continue
            done[index] = None
            for follower in self.later.get(index, ()):
                waits[follower] -= 1
                if waits[follower] == 0:
                    heapq.heappush(ready, (self.lives[follower].first_unix_ms, follower))
        return list(done)

    def _earliest(self, done: Container[int]) -> int:
        # Versions without start ids that took turns follow each other in a circle: the clock has to do.
        rest = (index for index in range(len(self.lives)) if index not in done)
        return min(rest, key=lambda index: (self.lives[index].first_unix_ms, index))
