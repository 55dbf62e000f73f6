"""Every retained operation by key: open ones as values, terminal ones as the bytes of their files.

Terminal records are many and rarely asked for. As bytes they take a quarter of the memory, and they were
checked when they were read or written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from sys import intern
from typing import TYPE_CHECKING

from ticket_agent.journal.record import Record, decode_record

if TYPE_CHECKING:
    from collections.abc import ValuesView

__all__ = ["RecordTable", "Retained"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """A terminal record: what retention needs to know, and the file's bytes."""

    key: str
    family: str
    epoch: int
    sequence: int
    changed_unix_ms: int
    data: bytes


class RecordTable(Mapping[str, Record]):
    """Records by key. Looking up a terminal one decodes it afresh."""

    def __init__(self) -> None:
        self._open: dict[str, Record] = {}
        self._retained: dict[str, Retained] = {}

    def put(self, record: Record, data: bytes) -> None:
        """Take over a record and the bytes it was decoded from."""
        if record.terminal:
            self._open.pop(record.key, None)
            self._retained[record.key] = Retained(
                key=record.key,
                family=intern(record.family),
                epoch=record.epoch,
                sequence=record.sequence,
                changed_unix_ms=record.changed_unix_ms,
                data=data,
            )
        else:
            self._open[record.key] = record

    def drop(self, key: str) -> None:
        """Forget a record, if it is there."""
        self._open.pop(key, None)
        self._retained.pop(key, None)

    def data_of(self, key: str) -> bytes:
        """The file's bytes of a terminal record; KeyError for any other key."""
        return self._retained[key].data

    @property
    def open(self) -> Mapping[str, Record]:
        """Operations that are not terminal."""
        return self._open

    def entries(self) -> Iterator[Record | Retained]:
        """Everything that there is, as far as it can be had without decoding."""
        yield from self._open.values()
        yield from self._retained.values()

    @property
    def retained(self) -> ValuesView[Retained]:
        """Terminal operations."""
        return self._retained.values()

    def __getitem__(self, key: str) -> Record:
        record = self._open.get(key)
        return decode_record(self._retained[key].data) if record is None else record

    def __contains__(self, key: object) -> bool:
        return key in self._open or key in self._retained

    def __iter__(self) -> Iterator[str]:
        yield from self._open
        yield from self._retained

    def __len__(self) -> int:
        return len(self._open) + len(self._retained)
