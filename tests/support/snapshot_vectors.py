"""The vectors of host snapshots, and records to publish."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from vector_files import VECTORS

from ticket_agent.protocol.snapshot import (
    HostSnapshot,
    SnapshotBounds,
    SnapshotDomain,
    SnapshotEntry,
    encode_snapshot,
)
from ticket_agent.protocol.snapshot_enrolment import SnapshotEnrolment, parse_manifest
from ticket_agent.protocol.snapshot_transfer import transfer_lines

if TYPE_CHECKING:
    from collections.abc import Callable

DOCUMENT: dict[str, Any] = json.loads((VECTORS / "snapshots.json").read_text("utf-8"))
POSITIVE: dict[str, dict[str, Any]] = {entry["name"]: entry for entry in DOCUMENT["positive"]}
NEGATIVE: dict[str, dict[str, Any]] = {entry["name"]: entry for entry in DOCUMENT["negative"]}
TRANSFERS: dict[str, dict[str, Any]] = {entry["name"]: entry for entry in DOCUMENT["transfer"]}
STATUSES: dict[str, dict[str, Any]] = {entry["name"]: entry for entry in DOCUMENT["status"]}

LINUX = "linux-reference"


def _enrolment() -> SnapshotEnrolment:
    found = parse_manifest(json.dumps(DOCUMENT["manifest"]).encode())
    assert found is not None
    return found


ENROLMENT = _enrolment()
"""What the vectors' manifest enrols, in writer epoch 7."""


def domain_of(entry: dict[str, Any]) -> SnapshotDomain:
    """Who may publish a vector's record: the source that it names, or the Linux one."""
    source_id = entry.get("record", {}).get("source_id", LINUX)
    publishers = entry.get("publishers", DOCUMENT["manifest"]["ecosystem"]["host"]["snapshots"]["publishers"])
    (providers,) = [one["providers"] for one in publishers if one["source_id"] == source_id]
    return SnapshotDomain(source_id=source_id, epoch=ENROLMENT.epoch, providers=frozenset(providers))


def record(sequence: int = 1, **changes: Any) -> HostSnapshot:
    """A small record of systemd at the Linux source."""
    members: dict[str, Any] = {
        "provider": "systemd",
        "source_id": LINUX,
        "epoch": ENROLMENT.epoch,
        "sequence": sequence,
        "observed_unix_ms": 1000 + sequence,
        "ttl_ms": 100,
        "entries": (SnapshotEntry("source", '"systemd"'),) if "reason" not in changes else (),
    }
    return HostSnapshot(**(members | changes))


def encoded(snapshot: HostSnapshot, bounds: SnapshotBounds | None = None) -> bytes:
    """The bytes of a record that would be accepted, whoever is enrolled."""
    return encode_snapshot(snapshot, domain=snapshot.source, bounds=bounds or ENROLMENT.bounds)


ODD = '\u2028\u0085\x7f"\\/é€😀'
"""What line splitters and strippers fall over; 1 to 4 bytes of UTF-8 each, and two escapes."""


def full_record(sequence: int = 1, **changes: Any) -> HostSnapshot:
    """A record of exactly 8192 bytes, full of characters that are sent raw."""
    most = ENROLMENT.bounds.max_bytes
    entries: list[SnapshotEntry] = []

    def missing() -> int:
        return most - len(encoded(record(sequence, entries=tuple(entries), **changes)))

    while missing() > 1000:  # what is left for the last value fits into its 1024 bytes
        entries.append(SnapshotEntry(f"values/{len(entries):02}", ODD * 40))
    entries.append(SnapshotEntry("values/zz", ""))
    entries[-1] = SnapshotEntry("values/zz", "\x7f" * missing())
    return record(sequence, entries=tuple(entries), **changes)


def publish(echo: Callable[[str, str], object], snapshot: HostSnapshot) -> bytes:
    """Transfer a record with one call of ``echo`` for each line; return its bytes."""
    data = encoded(snapshot)
    ctl = ENROLMENT.paths(snapshot.provider, snapshot.source_id).ctl
    for line in transfer_lines(data):
        echo(ctl, line)
    return data
