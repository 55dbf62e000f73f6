"""What tests of collectors share: contexts, refusals, the rule of publishing, the shapes of the vectors."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from vector_files import VECTORS

from ticket_agent.protocol.collecting import CollectContext, CollectError, Deadline
from ticket_agent.protocol.snapshot import (
    DEFAULT_BOUNDS,
    HostSnapshot,
    SnapshotBounds,
    SnapshotEntry,
    decode_snapshot,
    encode_snapshot,
    with_entries,
)
from ticket_agent.protocol.tokens import U64_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

LONGEST_PROVIDER = "p" * 40
LONGEST_SOURCE = "s" * 32
PATIENCE_S = 60.0
SHORT_S = 0.4
"""A deadline that a test waits for."""
LATE_S = 20.0
"""What a collector with a short deadline may take on a busy machine; far less than without one."""


def context(
    environ: Mapping[str, str] | None = None,
    *,
    seconds: float = PATIENCE_S,
    bounds: SnapshotBounds = DEFAULT_BOUNDS,
) -> CollectContext:
    deadline = Deadline.after(seconds, time.monotonic)
    return CollectContext(deadline=deadline, bounds=bounds, environ=environ or {})


def refusal(collect: Callable[[CollectContext], object], given: CollectContext) -> CollectError:
    """The error of a collector, which is one line and comes soon after the deadline."""
    begun = time.monotonic()
    with pytest.raises(CollectError) as caught:
        collect(given)
    assert time.monotonic() - begun < LATE_S
    assert caught.value.detail
    assert caught.value.detail.isprintable()
    return caught.value


def late_context() -> CollectContext:
    """A context whose deadline is over."""
    return CollectContext(deadline=Deadline(5.0, lambda: 5.0))


def encoded(
    entries: Iterable[SnapshotEntry],
    bounds: SnapshotBounds = DEFAULT_BOUNDS,
    *,
    provider: str = LONGEST_PROVIDER,
) -> bytes:
    """The record of these entries with the longest frame there is; fails when it breaks a rule."""
    snapshot = with_entries(
        HostSnapshot(
            provider=provider,
            source_id=LONGEST_SOURCE,
            epoch=U64_MAX,
            sequence=U64_MAX,
            observed_unix_ms=U64_MAX,
            ttl_ms=bounds.max_ttl_ms,
        ),
        entries,
    )
    data = encode_snapshot(snapshot, domain=snapshot.source, bounds=bounds)
    assert decode_snapshot(data, domain=snapshot.source, bounds=bounds) == snapshot
    return data


def values(entries: Iterable[SnapshotEntry]) -> dict[str, Any]:
    """The entries' JSON values by path."""
    return {entry.path: json.loads(entry.value) for entry in entries}


def published(
    provider: str, entries: list[SnapshotEntry], bounds: SnapshotBounds = DEFAULT_BOUNDS
) -> dict[str, Any]:
    """The entries' values by path, after a record of them went out and in; its numbers are the longest."""
    encoded(entries, bounds, provider=provider)
    return values(entries)


def vector_entries(name: str) -> list[SnapshotEntry]:
    """The entries of one record among the conformance vectors."""
    document = json.loads((VECTORS / "snapshots.json").read_text("utf-8"))
    record = next(case["record"] for case in document["positive"] if case["name"] == name)
    return [SnapshotEntry(entry["path"], entry["value"]) for entry in record["entries"]]
