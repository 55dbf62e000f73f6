"""One hive with tickets in it, one empty state directory, and the oracle that watches both."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cli_support import now_ms
from crash_oracle import Oracle
from hive_support import LEASE_CTL, raw_lease, running_hive

from ticket_agent.protocol.lease import GrantControl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from crash_process import Launcher, Life

    from ticket_agent.hive.reference import ConsoleServer, ReferenceHive

SCENES: dict[str, tuple[str, ...]] = {
    "grant": ("grant",),
    "renew": ("renew",),
    "release": ("release",),
    "two-lanes": ("grant", "release"),
}
"""Verbs of the tickets of each scene; each has a lease, a GPU, a Worker and thereby a lane of its own."""

MAX_LIVES = 12


@dataclass(frozen=True)
class Scene:
    """Everything one run needs."""

    hive: ReferenceHive
    server: ConsoleServer
    state_dir: Path
    oracle: Oracle

    def recover(self, launcher: Launcher) -> list[Life]:
        """Start the agent again, undisturbed, until nothing is open; returns its lives."""
        self.oracle.after_life()
        lives: list[Life] = []
        while not lives or (len(lives) < MAX_LIVES and not self.oracle.settled()):
            lives.append(launcher.once(self.state_dir, self.server.port))
            self.oracle.after_life()
            if self.oracle.quarantined:
                # Nothing more will come of it; a second look shows that it is left alone.
                lives.append(launcher.once(self.state_dir, self.server.port))
                self.oracle.after_life()
                break
        return lives


@contextmanager
def scene(kind: str, home: Path, *, clock: Callable[[], int] = now_ms) -> Iterator[Scene]:
    """A fresh hive with the tickets of a scene; the state directory does not exist yet."""
    home.mkdir(parents=True)
    with running_hive(clock=clock) as (hive, server):
        tickets = {}
        for number, verb in enumerate(SCENES[kind], start=1):
            worker = hive.spawn_worker("worker-gpu").worker_id
            lease, gpu = f"lease-{number}", f"GPU-{number - 1}"
            if verb != "grant":
                control = GrantControl(id=lease, subject=worker, resource=gpu, ttl_s=60, priority=0)
                hive.echo(LEASE_CTL, control.encode())
            tickets[f"t{number}"] = lease
            hive.submit(raw_lease(hive, worker, verb, f"t{number}", lease, gpu=gpu))
        oracle = Oracle(hive=hive, state_dir=home / "state", tickets=tickets)
        oracle.watch(server)
        yield Scene(hive=hive, server=server, state_dir=home / "state", oracle=oracle)


def recorded(launcher: Launcher, kind: str, home: Path) -> Life:
    """One undisturbed life of a scene, traced."""
    with scene(kind, home) as stage:
        life = launcher.once(stage.state_dir, stage.server.port, traced=True)
        assert life.code == 0, life.output
        assert stage.oracle.settled()
        assert stage.oracle.verdict() == []
        assert stage.oracle.effects() == len(SCENES[kind])
    return life
