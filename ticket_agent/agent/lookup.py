"""Questions about the journal's records that only the agent asks; none of them is asked per transition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ticket_agent.agent.keys import base_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.journal.record import Record

__all__ = ["related"]


def related(records: Mapping[str, Record], key: str) -> list[Record]:
    """Other admissions of the same (id, idempotency key) pair, oldest first."""
    base, _ = base_of(key)
    # By name first: to look at a record that has ended means to decode it.
    names = [name for name in records if name != key and base_of(name)[0] == base]
    found = [records[name] for name in names]
    return sorted(found, key=lambda record: (record.epoch, record.sequence))
