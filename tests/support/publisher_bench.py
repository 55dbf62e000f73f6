"""A publisher on a real console or gateway: its state, its hive, clocks that the test moves."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hive_support import CACHE_S, TOKEN

from ticket_agent.hive.console.client import ConsoleConfig, ConsoleNamespace
from ticket_agent.hive.reference import ConsoleServer, GatewayServer, GatewayTimes, ReferenceHive
from ticket_agent.hive.rest.client import RestConfig, RestNamespace
from ticket_agent.journal.fs import RealFs
from ticket_agent.protocol.collecting import fact
from ticket_agent.protocol.snapshot import DEFAULT_BOUNDS
from ticket_agent.protocol.snapshot_enrolment import DEFAULT_ENROLMENT, SnapshotEnrolment
from ticket_agent.protocol.snapshot_status import SnapshotStatus, parse_status
from ticket_agent.snapshots.looking import Seen
from ticket_agent.snapshots.publisher import SnapshotPublisher
from ticket_agent.snapshots.source_place import open_state_root
from ticket_agent.snapshots.source_state import SourceState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ticket_agent.journal.fs import Fs
    from ticket_agent.protocol.namespace import AppendAnswer, Namespace

SOURCE = "linux-reference"
START_UNIX_MS = 1_790_000_000_000
PATIENCE_S = 60.0
"""A machine that stops for a moment is no hive that is away."""


@dataclass
class Clocks:
    """One time for publisher and hive: seconds since the start, and the wall clock."""

    now_s: float = 100.0
    wall_ms: int = START_UNIX_MS

    def monotonic_s(self) -> float:
        return self.now_s

    def monotonic_ms(self) -> int:
        return round(self.now_s * 1000)

    def wall(self) -> int:
        return self.wall_ms

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        self.wall_ms += round(seconds * 1000)


class Told:
    """A namespace that lets the test meddle with appends: the n-th one is changed before or after it."""

    def __init__(self, inner: Namespace) -> None:
        self.inner = inner
        self.lines: list[str] = []
        self.before: Callable[[str], AppendAnswer | None] = lambda _: None
        self.after: Callable[[str, AppendAnswer], AppendAnswer] = lambda _, answer: answer

    @property
    def session(self) -> int:
        return self.inner.session

    def ls(self, path: str) -> list[str]:
        return self.inner.ls(path)

    def read(self, path: str) -> list[str]:
        return self.inner.read(path)

    def tail(self, path: str) -> list[str]:
        return self.inner.tail(path)

    def append(self, path: str, line: str, *, session: int | None = None) -> AppendAnswer:
        self.lines.append(line)
        said = self.before(line)
        if said is not None:
            return said
        return self.after(line, self.inner.append(path, line, session=session))

    def close(self) -> None:
        self.inner.close()


@dataclass
class Bench:
    """What a test has to do with."""

    hive: ReferenceHive
    namespace: Told
    publisher: SnapshotPublisher
    state: SourceState
    enrolment: SnapshotEnrolment
    clocks: Clocks = field(repr=False)

    def seen(self, provider: str = "systemd", **facts: Any) -> Seen:
        """What a collector saw just now."""
        look = self.publisher.begin_look(provider)
        return Seen(look=look, entries=tuple(fact(path, value) for path, value in facts.items()))

    def nothing(self, reason: Any, provider: str = "systemd") -> Seen:
        return replace(self.seen(provider), reason=reason, detail="a word of the collector")

    def status(self, provider: str = "systemd") -> SnapshotStatus:
        path = self.enrolment.paths(provider, SOURCE).status
        return parse_status(self.hive.cat(path)[0])

    def shown(self, provider: str = "systemd") -> str:
        return "".join(self.hive.cat(self.enrolment.paths(provider, SOURCE).snapshot))


def state_in(path: Path, *, epoch: int = 1, fs: Fs | None = None, **options: Any) -> SourceState:
    """The source's state in a directory, which is made private."""
    path.mkdir(mode=0o700, exist_ok=True)
    root = open_state_root(path)
    try:
        return SourceState.open(fs or RealFs(), root, source_id=SOURCE, epoch=epoch, **options)
    finally:
        os.close(root)


@contextmanager
def connected(hive: ReferenceHive, transport: str, clocks: Clocks) -> Iterator[Namespace]:
    """A client of ours on a real server."""
    namespace: Namespace
    if transport == "rest":
        times = GatewayTimes(cache_s=CACHE_S, queue_s=0.2, deadline_s=120.0)
        with GatewayServer(hive, clock=clocks.wall, token=TOKEN, times=times) as gateway:
            namespace = RestNamespace(
                RestConfig(
                    url=gateway.url,
                    auth_token=TOKEN,
                    cache_s=CACHE_S,
                    data_s=PATIENCE_S,
                    metadata_s=PATIENCE_S,
                )
            )
            try:
                yield namespace
            finally:
                namespace.close()
        return
    with ConsoleServer(hive, token=TOKEN) as server:
        namespace = ConsoleNamespace(
            ConsoleConfig(
                port=server.port,
                token=TOKEN,
                connect_s=PATIENCE_S,
                auth_s=PATIENCE_S,
                command_s=PATIENCE_S,
            )
        )
        try:
            yield namespace
        finally:
            namespace.close()


@contextmanager
def publishing(
    state_dir: Path,
    *,
    transport: str = "console",
    enrolment: SnapshotEnrolment = DEFAULT_ENROLMENT,
    clocks: Clocks | None = None,
    state: SourceState | None = None,
    **bounds: int,
) -> Iterator[Bench]:
    """A publisher for ``linux-reference``; ``bounds`` replace bounds of the enrolment."""
    clocks = clocks or Clocks()
    enrolment = replace(enrolment, bounds=replace(DEFAULT_BOUNDS, **bounds))
    hive = ReferenceHive(clock=clocks.wall, snapshots=enrolment, monotonic=clocks.monotonic_ms)
    with ExitStack() as stack:
        told = Told(stack.enter_context(connected(hive, transport, clocks)))
        state = stack.enter_context(state or state_in(state_dir, epoch=enrolment.epoch))
        publisher = SnapshotPublisher(
            told,
            enrolment,
            state,
            clock=clocks.wall,
            monotonic=clocks.monotonic_s,
            lag_s=CACHE_S if transport == "rest" else 0.0,
        )
        yield Bench(
            hive=hive, namespace=told, publisher=publisher, state=state, enrolment=enrolment, clocks=clocks
        )
