"""Questions about the journal's records that only the agent asks; none of them is asked per transition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ticket_agent.agent.keys import base_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ticket_agent.journal.record import Record

__all__ = ["admissions_of", "between", "newest", "related"]


def admissions_of(records: Iterable[Record], family: str, epoch: int) -> Iterator[Record]:
    """Records of one family and hive epoch, in no particular order."""
    return (record for record in records if record.family == family and record.epoch == epoch)


def newest(records: Iterable[Record], family: str, epoch: int) -> Record | None:
    """The record with the highest sequence of a family and epoch."""
    return max(admissions_of(records, family, epoch), key=lambda record: record.sequence, default=None)


def between(records: Iterable[Record], family: str, epoch: int, after: int, before: int) -> list[Record]:
    """Records whose sequence lies strictly between two others."""
    return [record for record in admissions_of(records, family, epoch) if after < record.sequence < before]


def related(records: Mapping[str, Record], key: str) -> list[Record]:
    """Other admissions of the same (id, idempotency key) pair, oldest first."""
    base, _ = base_of(key)
    found = [record for name, record in records.items() if name != key and base_of(name)[0] == base]
    return sorted(found, key=lambda record: (record.epoch, record.sequence))
