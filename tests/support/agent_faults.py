"""Ways for an agent to die, to be short of disk and to be lied to, each at a chosen moment."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hive_support import LEASE_CTL

from ticket_agent.hive.reference import ConsoleServer, Fault, FaultKind, ReferenceHive
from ticket_agent.journal.fs import FreeSpace, RealFs
from ticket_agent.journal.view import read_journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from agent_support import Bench

    from ticket_agent.hive.console.client import ConsoleNamespace
    from ticket_agent.hive.reference.root import Root
    from ticket_agent.protocol.namespace import AppendAnswer

STEPS = ("prepared", "executing", "persisted", "published", "terminal")
"""Durable steps of one ticket that goes well, in order."""

APPENDS = ("claimed", "running", "effect", "result")
"""Appends of one ticket that goes well, in order."""


class Killed(BaseException):
    """The process is gone: no handler of the agent may run on. Not an Exception, as no SIGKILL is one."""


class DyingFs(RealFs):
    """The real file system, until the process dies at one step of the only record.

    Args:
        step: index into ``STEPS``.
        durable: die right after the step is durable; otherwise right before its file gets its name.
    """

    def __init__(self, step: int, *, durable: bool) -> None:
        self._step = step
        self._durable = durable
        self._named = 0
        self._dying = False

    def rename_new(self, dir_fd: int, src: str, dst: str) -> None:
        self._about_to_name(dst)
        super().rename_new(dir_fd, src, dst)

    def rename(self, dir_fd: int, src: str, dst: str) -> None:
        self._about_to_name(dst)
        super().rename(dir_fd, src, dst)

    def fsync_dir(self, dir_fd: int) -> None:
        super().fsync_dir(dir_fd)
        if self._dying:
            raise Killed

    def _about_to_name(self, name: str) -> None:
        if not name.endswith(".rec"):
            return
        if self._named == self._step:
            if not self._durable:
                raise Killed
            self._dying = True
        self._named += 1


class DyingAppends:
    """Appends through a namespace, until the process dies at the n-th of them.

    Args:
        namespace: whose appends are counted.
        at: index of the append that is the last.
        sent: die after its answer came; otherwise before anything is sent.
    """

    def __init__(self, namespace: ConsoleNamespace, at: int, *, sent: bool) -> None:
        self._append = namespace.append
        self._at = at
        self._sent = sent
        self._count = 0

    def __call__(self, path: str, line: str, *, session: int | None = None) -> AppendAnswer:
        last = self._count == self._at
        self._count += 1
        if last and not self._sent:
            raise Killed
        answer = self._append(path, line, session=session)
        if last:
            raise Killed
        return answer


class FullFs(RealFs):
    """The real file system on a disk that can be full: to who asks, and to who just creates."""

    def __init__(self) -> None:
        self.full = False

    def free_space(self, dir_fd: int) -> FreeSpace:
        return FreeSpace(bytes=0, inodes=None) if self.full else super().free_space(dir_fd)

    def create_new(self, dir_fd: int, name: str) -> int:
        if self.full:
            raise OSError(28, os.strerror(28))
        return super().create_new(dir_fd, name)


def drop(bench: Bench) -> None:
    """Lose the connection as a dying process does: no farewell."""
    bench.namespace._drop()


@contextmanager
def plans_before_effects(server: ConsoleServer, state_dir: Path) -> Iterator[list[str]]:
    """Whenever a lease line is applied, look for the durable plan that holds it; yields what was missing."""
    missing: list[str] = []

    def look(path: str, line: str) -> None:
        if path != LEASE_CTL:
            return
        plans = [record.plan for record in read_journal(state_dir).records.values()]
        if not any(plan is not None and plan.intent["line"] == line for plan in plans):
            missing.append(line)

    server.faults.on_applied(look)
    yield missing


def effects_since(hive: ReferenceHive, before: int) -> int:
    """Mutations of any kind, less those that there were ``before``."""
    return sum(hive.effects.values()) - before


def root_of(hive: ReferenceHive) -> Root:
    """The model's insides, to write what no caller could."""
    return hive._root


def root_writes(hive: ReferenceHive, leaf: str, line: str) -> None:
    """Let root put a line into one of its ticket logs."""
    root_of(hive).logs.append([(leaf, [line])])


def telemetry(hive: ReferenceHive, worker_id: str, *lines: str) -> None:
    """Let somebody with telemetry rights write lines."""
    worker = root_of(hive).workers.get(worker_id)
    assert worker is not None
    for line in lines:
        worker.ring.write(line.encode() + b"\n")


def during(target: object, name: str, action: Callable[[], None]) -> Callable[..., object]:
    """The method ``name`` of ``target``, with ``action`` right before its first call."""
    method = getattr(target, name)
    pending = [action]

    def called(*args: object, **options: object) -> object:
        if pending:
            pending.pop()()
        return method(*args, **options)

    return called


def blind(server: ConsoleServer, prefix: str = "/proc/lease") -> None:
    """From the next lease write on, the hive is too busy to show its leases; ends with ``faults.clear``."""

    def strike(path: str, line: str) -> None:
        if path == LEASE_CTL:
            server.faults.add(Fault(kind=FaultKind.ERR, verb="CAT", prefix=prefix))

    server.faults.on_applied(strike)


def when_applied(server: ConsoleServer, path: str, action: Callable[[], object]) -> None:
    """Do something once, right after the next append to a path was applied, before it is answered."""
    pending = [action]

    def act(applied: str, line: str) -> None:
        if applied == path and pending:
            pending.pop()()

    server.faults.on_applied(act)
