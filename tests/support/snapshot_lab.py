"""A running reference hive that receives host snapshots, for commands that read them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cli_support import now_ms
from hive_support import CACHE_S, TOKEN
from snapshot_shelf import record

from ticket_agent.hive.reference import ConsoleServer, GatewayServer, GatewayTimes, ReferenceHive
from ticket_agent.protocol.snapshot import encode_snapshot
from ticket_agent.protocol.snapshot_enrolment import SnapshotEnrolment, SnapshotPublisher, encode_enrolment
from ticket_agent.protocol.snapshot_transfer import transfer_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENROLMENT = SnapshotEnrolment(
    epoch=7,
    publishers=(
        SnapshotPublisher(source_id="host-a", providers=("systemd", "network")),
        SnapshotPublisher(source_id="host-b", providers=("network",)),
    ),
)


class Moment:
    """Milliseconds of a receiver's clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


@dataclass
class Lab:
    """The hive, its console or gateway, and the manifest file that enrols what it receives."""

    hive: ReferenceHive
    moment: Moment
    server: ConsoleServer | GatewayServer
    manifest: Path
    sequence: int = 0

    @property
    def at(self) -> list[str]:
        """The options that lead there."""
        if isinstance(self.server, GatewayServer):
            where = ["--rest-url", self.server.url, "--rest-auth-token", "env:LAB_TOKEN"]
        else:
            where = ["--tcp-port", str(self.server.port), "--auth-token", "env:LAB_TOKEN"]
        return ["--manifest", str(self.manifest), *where]

    def publish(
        self,
        provider: str = "systemd",
        source: str = "host-a",
        entries: dict[str, str] | None = None,
        **changes: Any,
    ) -> int:
        """Publish a record under the next number; returns the number."""
        self.sequence += 1
        members = {"epoch": ENROLMENT.epoch, "observed_unix_ms": now_ms(), **changes}
        snapshot = record(self.sequence, entries, provider=provider, source=source, **members)
        data = encode_snapshot(snapshot, domain=snapshot.source, bounds=ENROLMENT.bounds)
        for line in transfer_lines(data):
            self.hive.echo(ENROLMENT.paths(provider, source).ctl, line)
        return self.sequence

    def pass_by(self, ms: int) -> None:
        """Let the receiver's time go on."""
        self.moment.now += ms


@contextmanager
def snapshot_lab(folder: Path, *, rest: bool = False, enrolled: bool = True) -> Iterator[Lab]:
    """A hive behind a console, or behind a gateway; with ``enrolled`` it receives what the manifest says."""
    manifest = folder / "manifest.json"
    manifest.write_bytes(encode_enrolment(ENROLMENT))
    moment = Moment()
    hive = ReferenceHive(clock=now_ms, monotonic=moment, snapshots=ENROLMENT if enrolled else None)
    server: ConsoleServer | GatewayServer
    if rest:
        times = GatewayTimes(cache_s=CACHE_S, queue_s=0.2, deadline_s=120.0)
        server = GatewayServer(hive, clock=now_ms, token=TOKEN, times=times)
    else:
        server = ConsoleServer(hive, token=TOKEN)
    with server:
        yield Lab(hive, moment, server, manifest)
