"""How much of a record's bounds an observation takes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ticket_agent.protocol.snapshot import (
    MAX_BOUNDS,
    HostSnapshot,
    SnapshotDomain,
    encode_snapshot,
    with_entries,
)
from ticket_agent.protocol.tokens import U64_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ticket_agent.protocol.snapshot import SnapshotBounds, SnapshotEntry

__all__ = ["Volume", "measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """What a record takes.

    Attributes:
        bytes: its canonical bytes, with the longest numbers that its other members could have.
        entries: how many.
        value_bytes: of its longest value.
    """

    bytes: int
    entries: int
    value_bytes: int

    def share(self, bounds: SnapshotBounds) -> float:
        """The largest part of a bound that is used up; 1 is all of it."""
        return max(
            self.bytes / bounds.max_bytes,
            self.entries / bounds.max_entries,
            self.value_bytes / bounds.max_value_bytes,
        )


def measured(entries: Iterable[SnapshotEntry], *, provider: str, source_id: str) -> Volume:
    """Measure the record that these entries make.

    Raises:
        SnapshotError: they make none, whatever the bounds.
    """
    snapshot = with_entries(
        HostSnapshot(
            provider=provider,
            source_id=source_id,
            epoch=U64_MAX,
            sequence=U64_MAX,
            observed_unix_ms=U64_MAX,
            ttl_ms=MAX_BOUNDS.max_ttl_ms,
        ),
        entries,
    )
    domain = SnapshotDomain(source_id=source_id, epoch=U64_MAX, providers=frozenset({provider}))
    data = encode_snapshot(snapshot, domain=domain, bounds=MAX_BOUNDS)
    return Volume(
        bytes=len(data),
        entries=len(snapshot.entries),
        value_bytes=max((len(entry.value.encode()) for entry in snapshot.entries), default=0),
    )
