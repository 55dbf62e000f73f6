"""Scenes of the crash tests of `snapshots publish`: a hive that counts what it took, a state directory."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from crash_process import boundaries
from crash_scene import same_twice
from hive_support import TOKEN, RawConsole

from ticket_agent.hive.reference import ConsoleServer, ReferenceHive
from ticket_agent.protocol.snapshot import SnapshotBounds
from ticket_agent.protocol.snapshot_enrolment import (
    DEFAULT_ENROLMENT,
    SnapshotPublisher,
    encode_enrolment,
)
from ticket_agent.protocol.snapshot_status import SnapshotStatus, parse_status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from crash_process import Launcher, Life

SOURCE = "linux-reference"
PROVIDERS = ("jetson", "endpoint_compliance", "launchd")
"""Their collectors answer at once, whatever the host is."""
PART = f"{SOURCE}-epoch-1"


@dataclass
class SnapshotScene:
    """One hive, one publisher's state directory, and everything that the hive ever took."""

    hive: ReferenceHive
    server: ConsoleServer
    home: Path
    taken: list[tuple[int, str, str]] = field(default_factory=list)

    @property
    def state_dir(self) -> Path:
        return self.home / "state"

    def publish(
        self,
        launcher: Launcher,
        *providers: str,
        inject: str | None = None,
        traced: bool = False,
    ) -> Life:
        """Publish some providers, or all. Looks come back in any order: only one's calls are in one."""
        arguments = [
            "snapshots",
            "publish",
            f"--manifest={self.home / 'manifest.json'}",
            f"--source-id={SOURCE}",
            f"--state-dir={self.state_dir}",
            f"--tcp-port={self.server.port}",
            "--auth-token=env:LAB_TOKEN",
            *(f"--provider={provider}" for provider in providers),
        ]
        life = launcher.command(arguments, self.state_dir, inject=inject, traced=traced)
        # One client at a time: nobody else is served before what a dead one had sent is done.
        RawConsole(self.server.port, attach=False).close()
        return life

    def status(self, provider: str) -> SnapshotStatus:
        return parse_status(self.hive.cat(ENROLMENT.paths(provider, SOURCE).status)[0])

    def wrong(self) -> list[str]:
        """What must not be so, whatever died when."""
        numbers = [number for number, _, _ in self.taken]
        found = []
        if any(later <= earlier for earlier, later in pairwise(numbers)):
            found.append(f"numbers repeat or go back: {self.taken}")
        names = sorted(path.name for path in self.state_dir.rglob("*"))
        if names != sorted({PART, "owner.lock", "cursor.json"}):
            found.append(f"left behind: {names}")
        return found

    def _watch(self) -> None:
        echo = self.hive.echo

        def watched(path: str, payload: str, *, role: str = "queen") -> int:
            size = echo(path, payload, role=role)
            if path.endswith("/ctl") and payload == "end" and path.startswith(ENROLMENT.root):
                provider = path.split("/")[-3]
                status = self.status(provider)
                self.taken.append((status.sequence, provider, status.sha256 or ""))
            return size

        self.hive.echo = watched  # type: ignore[method-assign]


ENROLMENT = replace(
    DEFAULT_ENROLMENT,
    bounds=SnapshotBounds(),
    publishers=(SnapshotPublisher(source_id=SOURCE, providers=PROVIDERS),),
)


@contextmanager
def snapshot_scene(launcher: Launcher, home: Path, *, used: bool) -> Iterator[SnapshotScene]:
    """A fresh hive; ``used``: the source has published before."""
    home.mkdir(parents=True)
    (home / "state").mkdir(mode=0o700)
    (home / "manifest.json").write_bytes(encode_enrolment(ENROLMENT))
    hive = ReferenceHive(clock=lambda: 1_790_000_000_000, snapshots=ENROLMENT)
    with ConsoleServer(hive, token=TOKEN) as server:
        scene = SnapshotScene(hive=hive, server=server, home=home)
        scene._watch()
        if used:
            life = scene.publish(launcher)
            assert life.code == 0, life.output
        yield scene


def recorded(launcher: Launcher, home: Path, *, used: bool) -> Life:
    """One undisturbed publication, traced."""

    def record(home: Path) -> Life:
        with snapshot_scene(launcher, home, used=used) as scene:
            life = scene.publish(launcher, PROVIDERS[0], traced=True)
            assert life.code == 0, life.output
            assert scene.wrong() == []
        return life

    return same_twice(record, home)


__all__ = ["PROVIDERS", "SnapshotScene", "boundaries", "recorded", "snapshot_scene"]
