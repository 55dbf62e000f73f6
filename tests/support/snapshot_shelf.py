"""A hive that shows given snapshot and status lines, and can change them between two reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ticket_agent.protocol.namespace import AppendAnswer, HiveRefusedError, Refusal, RefusalKind, Refused
from ticket_agent.protocol.snapshot import HostSnapshot, SnapshotEntry, encode_snapshot, snapshot_digest
from ticket_agent.protocol.snapshot_enrolment import DEFAULT_ENROLMENT, SnapshotEnrolment
from ticket_agent.protocol.snapshot_status import SnapshotStatus, Withdrawn, encode_status, status_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.protocol.snapshot import UnavailableReason

NOW_MS = 1_790_000_000_000
PROVIDER, SOURCE = "systemd", "linux-reference"


def record(
    sequence: int = 1,
    entries: dict[str, str] | None = None,
    *,
    provider: str = PROVIDER,
    source: str = SOURCE,
    reason: UnavailableReason | None = None,
    observed_unix_ms: int = NOW_MS,
    ttl_ms: int = 30_000,
    epoch: int = 1,
) -> HostSnapshot:
    """A record with one entry, unless others or a reason are given."""
    if entries is None:
        entries = {} if reason is not None else {"source": '"systemd-manager-dbus"'}
    return HostSnapshot(
        provider=provider,
        source_id=source,
        epoch=epoch,
        sequence=sequence,
        observed_unix_ms=observed_unix_ms,
        ttl_ms=ttl_ms,
        reason=reason,
        entries=tuple(SnapshotEntry(path, entries[path]) for path in sorted(entries)),
    )


class Shelf:
    """A namespace of snapshot nodes. ``between`` runs once, after the next snapshot was read."""

    def __init__(self, enrolment: SnapshotEnrolment = DEFAULT_ENROLMENT) -> None:
        self.enrolment = enrolment
        self.nodes: dict[str, list[str]] = {}
        self.between: Callable[[], None] | None = None
        self.reads: list[str] = []
        self.session = 1
        for provider, source in enrolment.pairs():
            self.withdraw(Withdrawn.UNOBSERVED, sequence=0, provider=provider, source=source)

    def put(self, snapshot: HostSnapshot, status: str | None = None) -> None:
        """Show a record, with its own status unless another is given."""
        data = encode_snapshot(snapshot, domain=snapshot.source, bounds=self.enrolment.bounds)
        line = encode_status(status_of(snapshot, snapshot_digest(data))) if status is None else status
        self.put_raw(data, line, provider=snapshot.provider, source=snapshot.source_id)

    def put_raw(self, data: bytes, status: str, *, provider: str = PROVIDER, source: str = SOURCE) -> None:
        """Show these bytes, whatever they are; those that are no text as a mount shows them."""
        paths = self.enrolment.paths(provider, source)
        self.nodes[paths.snapshot] = [data.decode("utf-8", "surrogateescape")] if data else []
        self.nodes[paths.status] = [status]

    def withdraw(
        self, reason: Withdrawn, sequence: int, *, provider: str = PROVIDER, source: str = SOURCE
    ) -> None:
        """Show nothing, and why."""
        status = SnapshotStatus(source_id=source, provider=provider, sequence=sequence, reason=reason)
        self.put_raw(b"", encode_status(status), provider=provider, source=source)

    def remove(self, provider: str = PROVIDER, source: str = SOURCE) -> None:
        """Have no such pair."""
        paths = self.enrolment.paths(provider, source)
        del self.nodes[paths.snapshot], self.nodes[paths.status]

    def read(self, path: str) -> list[str]:
        self.reads.append(path)
        if path not in self.nodes:
            raise HiveRefusedError(
                "CAT", path, Refusal(kind=RefusalKind.INVALID_PATH, text="ERR CAT reason=invalid-path")
            )
        lines = list(self.nodes[path])
        if path.endswith("/snapshot") and self.between is not None:
            change, self.between = self.between, None
            change()
        return lines

    def ls(self, path: str) -> list[str]:
        return sorted({node[len(path) + 1 :].split("/")[0] for node in self.nodes if node.startswith(path)})

    def tail(self, path: str) -> list[str]:
        return self.read(path)

    def append(self, path: str, line: str, *, session: int | None = None) -> AppendAnswer:
        return Refused(
            Refusal(kind=RefusalKind.DENIED, text=f"a shelf takes nothing: {path} {line} {session}")
        )

    def close(self) -> None:
        """Nothing is open."""
