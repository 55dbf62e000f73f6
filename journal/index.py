"""What the owner knows about its operations without looking at the disk again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ticket_agent.journal.completion import CompletionFence
from ticket_agent.journal.record import Retained
from ticket_agent.journal.transitions import State
from ticket_agent.journal.values import key_digest, parse_record_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.journal.record import Record
    from ticket_agent.journal.scan import Quarantined, Scan
    from ticket_agent.journal.table import RecordTable

__all__ = ["Index"]


class Index:
    """Operations by key, what of them is open, and a completion fence for each family and epoch.

    Following one transition costs the same however many terminal operations are retained.

    Args:
        scan: what the directory held at the start.
        floor: where the completion fence of a family in an epoch stands by the cursor.
    """

    def __init__(self, scan: Scan, floor: Callable[[str, int], int]) -> None:
        self.records: RecordTable = scan.records
        self.quarantined: tuple[Quarantined, ...] = tuple(scan.quarantined)
        self._floor = floor
        self._fences: dict[tuple[str, int], CompletionFence] = {}
        self._executing: set[str] = set()
        parsed = [parse_record_name(entry.name) for entry in scan.quarantined]
        self._blocked = frozenset(found[1] for found in parsed if found is not None)
        for record in self.records.open.values():
            self._note(record)
        for retained in self.records.retained:
            self._fence_of(retained.family, retained.epoch).finished(retained.key, retained.sequence)

    @property
    def executing(self) -> int:
        """How many operations are dispatched and not settled."""
        return len(self._executing)

    def blocked(self, key: str) -> bool:
        """Tell whether a quarantined file is that of the key."""
        return key_digest(key) in self._blocked

    def follow(self, record: Record, data: bytes) -> None:
        """Take over a record that is durable now, and the bytes that hold it."""
        self.records.take(Retained.of(record, data) if record.terminal else record)
        self._note(record)

    def raise_floors(self) -> None:
        """Ask for the floors again, after the cursor was saved."""
        for (family, epoch), fence in self._fences.items():
            fence.raise_floor(self._floor(family, epoch))

    def open_records(self) -> tuple[Record, ...]:
        """Every operation that is not terminal, ordered by epoch and sequence."""
        return tuple(sorted(self.records.open.values(), key=lambda record: (record.epoch, record.sequence)))

    def newest(self, family: str, epoch: int) -> Record | None:
        """The record with the highest sequence of a family in an epoch; no other is decoded."""
        found = [entry for entry in self.records.entries() if (entry.family, entry.epoch) == (family, epoch)]
        newest = max(found, key=lambda entry: entry.sequence, default=None)
        return None if newest is None else self.records[newest.key]

    def between(self, family: str, epoch: int, after: int, before: int) -> tuple[Record, ...]:
        """Records whose sequence lies strictly between two others, in sequence order."""
        found = sorted(
            (entry.sequence, entry.key)
            for entry in self.records.entries()
            if (entry.family, entry.epoch) == (family, epoch) and after < entry.sequence < before
        )
        return tuple(self.records[key] for _, key in found)

    def highest_epoch(self) -> int:
        """Highest epoch of any record, 0 if there is none."""
        return max((epoch for _, epoch in self._fences), default=0)

    def highest_sequence(self, family: str, epoch: int) -> int:
        """Highest sequence of a family in an epoch that a record had in this process, 0 if none."""
        fence = self._fences.get((family, epoch))
        return 0 if fence is None else fence.highest

    def completed_through(self, family: str, epoch: int) -> int:
        """Completion fence of a family in an epoch."""
        fence = self._fences.get((family, epoch))
        return self._floor(family, epoch) if fence is None else fence.through()

    def _note(self, record: Record) -> None:
        fence = self._fence_of(record.family, record.epoch)
        if record.terminal:
            fence.finished(record.key, record.sequence)
        else:
            fence.opened(record.key, record.sequence)
        if record.state is State.EXECUTING:
            self._executing.add(record.key)
        else:
            self._executing.discard(record.key)

    def _fence_of(self, family: str, epoch: int) -> CompletionFence:
        fence = self._fences.get((family, epoch))
        if fence is None:
            blockers = [entry.sequence for entry in self.quarantined if entry.sequence is not None]
            fence = CompletionFence(floor=self._floor(family, epoch), blockers=blockers)
            self._fences[family, epoch] = fence
        return fence
