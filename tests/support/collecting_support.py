"""Contexts for collectors, and the record that their entries have to fit."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from ticket_agent.protocol.collecting import CollectContext, Deadline
from ticket_agent.protocol.snapshot import (
    DEFAULT_BOUNDS,
    HostSnapshot,
    SnapshotBounds,
    encode_snapshot,
    with_entries,
)
from ticket_agent.protocol.tokens import U64_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ticket_agent.protocol.snapshot import SnapshotEntry

LONGEST_PROVIDER = "p" * 40
LONGEST_SOURCE = "s" * 32


def context(seconds: float = 30.0, bounds: SnapshotBounds = DEFAULT_BOUNDS, **environ: str) -> CollectContext:
    """A context on the real monotonic clock."""
    return CollectContext(deadline=Deadline.after(seconds, time.monotonic), bounds=bounds, environ=environ)


def late_context() -> CollectContext:
    """A context whose deadline is over."""
    return CollectContext(deadline=Deadline(5.0, lambda: 5.0))


def encoded(entries: Iterable[SnapshotEntry], bounds: SnapshotBounds = DEFAULT_BOUNDS) -> bytes:
    """The record of these entries with the longest frame there is; fails when it breaks a rule."""
    snapshot = HostSnapshot(
        provider=LONGEST_PROVIDER,
        source_id=LONGEST_SOURCE,
        epoch=U64_MAX,
        sequence=U64_MAX,
        observed_unix_ms=U64_MAX,
        ttl_ms=bounds.max_ttl_ms,
    )
    return encode_snapshot(with_entries(snapshot, entries), domain=snapshot.source, bounds=bounds)


def values(entries: Iterable[SnapshotEntry]) -> dict[str, Any]:
    """The entries' JSON values by path."""
    return {entry.path: json.loads(entry.value) for entry in entries}
