"""Questions about the journal's records that only the agent asks; none of them is asked per transition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ticket_agent.agent.keys import base_of, reuse_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.journal.record import Record

__all__ = ["known_admission", "related"]


def related(records: Mapping[str, Record], key: str) -> list[Record]:
    """Other admissions of the same (id, idempotency key) pair, oldest first."""
    base, _ = base_of(key)
    # By name first: to look at a record that has ended means to decode it.
    names = [name for name in records if name != key and base_of(name)[0] == base]
    found = [records[name] for name in names]
    return sorted(found, key=lambda record: (record.epoch, record.sequence))


def known_admission(
    records: Mapping[str, Record],
    base: str,
    *,
    epoch: int,
    sequence: int | None,
    request: bytes | None = None,
    ended_epoch: int | None = None,
) -> tuple[str, Record | None]:
    """The name of an admission of the present life, and its record if there is one already.

    Args:
        records: the journal's records by name.
        base: name of the ticket at its first admission.
        epoch: number of the present life.
        sequence: the admission's sequence; None where tickets have none.
        request: what the admission says, in canonical form.
        ended_epoch: where a former agent's ended admissions stand, of this life as well as of earlier ones.
    """
    known = records.get(base)
    if known is None or (known.epoch == epoch and sequence in (None, known.sequence)):
        return base, known
    if known.epoch == ended_epoch and known.request == request:
        return base, known
    key = reuse_key(base, epoch, sequence)
    return key, records.get(key)
