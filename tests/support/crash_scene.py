"""One hive with tickets in it, one state directory, and the oracle that watches both."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agent_support import agent_on
from cli_support import now_ms
from crash_oracle import Oracle
from crash_process import boundaries
from hive_support import LEASE_CTL, ManualClock, RawConsole, raw_lease, running_hive

from ticket_agent.hive.reference import DEFAULT
from ticket_agent.journal.view import read_journal
from ticket_agent.protocol.lease import GrantControl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from crash_process import Launcher, Life

    from ticket_agent.hive.reference import ConsoleServer, ReferenceHive
    from ticket_agent.journal.fs import Fs

SCENES: dict[str, tuple[str, ...]] = {
    "grant": ("grant",),
    "renew": ("renew",),
    "release": ("release",),
    "two-lanes": ("grant", "release"),
    "again": ("grant", "release"),
    "v1-grant": ("grant",),
    "v1-renew": ("renew",),
    "v1-release": ("release",),
}
"""Verbs of the tickets of each scene; each has a lease, a GPU, a Worker and thereby a lane of its own.

In ``again`` the first ticket has ended in an earlier life, so that every file already has its name.
"""

MAX_LIVES = 12
MOST_RECORDINGS = 8
V1_RECEIPTS = replace(DEFAULT, accept_v1_lease_actions=True)
QUEEN_CTL = "/queen/ctl"


@dataclass(frozen=True)
class Scene:
    """Everything one run needs."""

    hive: ReferenceHive
    server: ConsoleServer
    state_dir: Path
    oracle: Oracle
    options: tuple[str, ...] = ()

    def quiet(self) -> None:
        """Return when the console has done all that a dead agent had sent."""
        # One client at a time: nobody is served, or turned away, before the one before has ended.
        RawConsole(self.server.port, attach=False).close()

    def served(self) -> bool:
        """Whether a daemon has nothing left to do: every result is out, and the cursor is behind it."""
        # The hive first: a look at the journal takes its lock for a moment, and a start would notice.
        if not all(self.hive.terminal_lines((ticket, f"key-{ticket}")) for ticket in self.oracle.tickets):
            return False
        cursor = read_journal(self.state_dir).cursor
        return cursor.completed_through(cursor.epoch) == len(self.oracle.tickets)

    def recover(self, launcher: Launcher) -> list[Life]:
        """Start the agent again, undisturbed, until nothing is open; returns its lives."""
        self.oracle.after_life()
        lives: list[Life] = []
        while not lives or (len(lives) < MAX_LIVES and not self.oracle.settled()):
            lives.append(launcher.once(self.state_dir, self.server.port, options=self.options))
            self.oracle.after_life()
            if self.oracle.quarantined:
                # Nothing more will come of it; a second look shows that it is left alone.
                lives.append(launcher.once(self.state_dir, self.server.port, options=self.options))
                self.oracle.after_life()
                break
        return lives


@dataclass(frozen=True)
class _Ticket:
    """One ticket to submit, and whose effects it may have."""

    line: str
    subject: str


@contextmanager
def scene(
    kind: str, home: Path, *, clock: Callable[[], int] = now_ms, fs: Fs | None = None
) -> Iterator[Scene]:
    """A fresh hive with the tickets of a scene.

    Args:
        kind: which.
        home: made here; the state directory in it exists only in ``again``.
        clock: of the hive.
        fs: file system of the earlier life, if there is one.
    """
    home.mkdir(parents=True)
    old = kind.startswith("v1-")
    with running_hive(V1_RECEIPTS if old else DEFAULT, clock=clock) as (hive, server):
        make = _version_1 if old else _version_2
        tickets = [make(hive, verb, number) for number, verb in enumerate(SCENES[kind], start=1)]
        subjects = {f"t{number}": ticket.subject for number, ticket in enumerate(tickets, start=1)}
        oracle = Oracle(hive=hive, state_dir=home / "state", tickets=subjects, may_stay_uncertain=old)
        oracle.watch(server)
        stage = Scene(hive=hive, server=server, state_dir=home / "state", oracle=oracle)
        if kind == "again":
            hive.submit(tickets.pop(0).line)
            _earlier_life(stage, clock, fs)
        for ticket in tickets:
            hive.submit(ticket.line)
        yield stage


def _version_2(hive: ReferenceHive, verb: str, number: int) -> _Ticket:
    worker = hive.spawn_worker("worker-gpu").worker_id
    lease, gpu = f"lease-{number}", f"GPU-{number - 1}"
    if verb != "grant":
        _granted(hive, lease, gpu, worker)
    return _Ticket(raw_lease(hive, worker, verb, f"t{number}", lease, gpu=gpu), lease)


def _version_1(hive: ReferenceHive, verb: str, number: int) -> _Ticket:
    args: dict[str, object] = {"gpu_id": "GPU-0"}
    subject = "GPU-0"
    if verb == "renew":
        subject = "lease-1"
        _granted(hive, subject, "GPU-0", hive.spawn_worker("worker-gpu").worker_id)
        args = {"lease_id": subject, "ttl_s": 90, "priority": 1}
    elif verb == "release":
        reservation = {"gpu_id": "GPU-0", "mem_mb": 1, "streams": 1, "ttl_s": 60}
        hive.echo(QUEEN_CTL, json.dumps({"spawn": "gpu", "lease": reservation}))
        subject = json.loads(hive.tail("/gpu/GPU-0/lease")[-1])["worker_id"]
    members = {
        "schema": "host-ticket/v1",
        "id": f"t{number}",
        "idempotency_key": f"key-t{number}",
        "action": f"gpu.lease.{verb}",
        "args": args,
    }
    return _Ticket(json.dumps(members), subject)


def _granted(hive: ReferenceHive, lease: str, gpu: str, worker: str) -> None:
    hive.echo(LEASE_CTL, GrantControl(id=lease, subject=worker, resource=gpu, ttl_s=60, priority=0).encode())


def _earlier_life(stage: Scene, clock: Callable[[], int], fs: Fs | None) -> None:
    with agent_on(stage.server, stage.state_dir, clock=ManualClock(clock()), fs=fs) as bench:
        listen = getattr(fs, "listen", None)
        if listen is not None:
            listen(bench.namespace)
        bench.settle()
        bench.agent.save_cursor()
    stage.oracle.after_life()
    assert stage.oracle.effects() == 1


def recorded(launcher: Launcher, kind: str, home: Path, *, short: int | None = None) -> Life:
    """One undisturbed life of a scene, traced; with ``short``, in writes of at most so many bytes."""

    def record(home: Path) -> Life:
        with scene(kind, home) as stage:
            life = launcher.once(stage.state_dir, stage.server.port, traced=True, short=short)
            assert life.code == 0, life.output
            assert stage.oracle.settled()
            assert stage.oracle.verdict() == []
            assert stage.oracle.effects() == len(SCENES[kind])
        return life

    return same_twice(record, home)


def same_twice(record: Callable[[Path], Life], home: Path) -> Life:
    """A life whose boundaries came twice: on a busy machine an answer may arrive in two parts."""
    earlier: list[list[tuple[str, str]]] = []
    for attempt in range(MOST_RECORDINGS):
        life = record(home / str(attempt))
        told = [(call.name, call.what) for call in boundaries(life.calls)]
        if told in earlier:
            return life
        earlier.append(told)
    raise AssertionError(f"no two lives are alike in {MOST_RECORDINGS} recordings")


def as_meant(live: Callable[[Path], Life | None], home: Path) -> Life:
    """A life whose scene was as it was meant to be: on a busy machine an earlier one may die a call too soon.

    Args:
        live: one life in a home of its own; None where the one before it died elsewhere.
        home: where all homes are beside each other. An agent opens its roots level by level, so one that
            lives deeper makes other calls.
    """
    for attempt in range(MOST_RECORDINGS):
        life = live(home.with_name(f"{home.name}-{attempt}"))
        if life is not None:
            return life
    raise AssertionError(f"no life before it died where it was meant to in {MOST_RECORDINGS} scenes")
