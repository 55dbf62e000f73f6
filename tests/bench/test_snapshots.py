"""What snapshots cost: from a look until it is visible, by collector, and an hour of a publisher's loop."""

from __future__ import annotations

import json
import re
import resource
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hive_support import TOKEN
from memory_folder import memory_folder
from observed_host import BY_PROCESS, SOURCE, observed_host
from publisher_bench import Clocks, connected, state_in
from virtual_looking import VirtualLookouts

from ticket_agent.hive.reference import ConsoleServer, ReferenceHive
from ticket_agent.protocol.collecting import CollectContext, Deadline
from ticket_agent.protocol.snapshot import SnapshotEntry
from ticket_agent.protocol.snapshot_enrolment import DEFAULT_ENROLMENT
from ticket_agent.snapshots.cadence import Cadence, interval_ms
from ticket_agent.snapshots.looking import look_once
from ticket_agent.snapshots.publisher import SnapshotPublisher
from ticket_agent.snapshots.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench_table import Table
    from observed_host import ObservedHost

    from ticket_agent.protocol.collecting import Collector
    from ticket_agent.protocol.namespace import AppendAnswer, Namespace
    from ticket_agent.snapshots.publisher import Publication

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

LOOKS = 25
INTERVAL_MS = 50
PATIENCE_S = 60.0
PACE_S = 6.0
HOUR_S = 3600.0
FRAME_BYTES = 4
"""A console puts the length before each command."""
PROVIDERS = (*BY_PROCESS, "jetson")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedHost]:
    with observed_host(tmp_path_factory.mktemp("host")) as made:
        yield made


@dataclass(frozen=True)
class Watched:
    """What a real publisher told and took.

    Attributes:
        times: milliseconds until visible, by provider, the first look of each left out.
        peak_kib: most resident memory of its process.
    """

    times: dict[str, list[int]]
    peak_kib: int


def _watched(host: ObservedHost, state_dir: Path, *, interval_ms: int | None, seconds: float) -> Watched:
    """Let a real publisher watch.

    Args:
        host: what is looked at.
        state_dir: of the publisher.
        interval_ms: of every provider, until each was looked at often; None: the usual ones.
        seconds: longest time.
    """
    hive = ReferenceHive(clock=now_ms, snapshots=DEFAULT_ENROLMENT)
    found: dict[str, list[int]] = {provider: [] for provider in PROVIDERS}
    with ConsoleServer(hive, token=TOKEN) as server:
        command = [
            *("--watch", "--json", f"--source-id={SOURCE}", f"--state-dir={state_dir}"),
            *(f"--tcp-port={server.port}", "--auth-token=env:LAB_TOKEN"),
            *(f"--interval={provider}={interval_ms}" for provider in PROVIDERS if interval_ms is not None),
        ]
        with host.publisher(*command) as process:
            assert process.stdout is not None
            end = time.monotonic() + seconds
            for line in process.stdout:
                told = json.loads(line)
                found[told["publication"]["provider"]].append(told["visible_ms"])
                often = interval_ms is not None and all(len(times) > LOOKS for times in found.values())
                if often or time.monotonic() > end:
                    break
            peak = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
            process.terminate()
            process.stdout.read()
    assert peak is not None
    return Watched({provider: times[1:] for provider, times in found.items()}, int(peak[1]))


def test_from_a_look_until_it_is_visible(host: ObservedHost, tmp_path: Path, table: Table) -> None:
    state_dir = tmp_path / "state"
    state_dir.mkdir(mode=0o700)
    watched = _watched(host, state_dir, interval_ms=INTERVAL_MS, seconds=PATIENCE_S)
    for provider, times in watched.times.items():
        _add(table, provider if provider != "jetson" else "what is withdrawn (the transfer alone)", times)
    _add(table, "jetson", _on_a_board(host, tmp_path))


def _add(table: Table, what: str, times: list[int]) -> None:
    table.add(
        f"look to visible over console, {what}, {len(times)} looks, p50 / worst",
        f"{statistics.median(times):.0f} / {max(times)} ms",
        "none",
    )


def _on_a_board(host: ObservedHost, tmp: Path) -> list[int]:
    """Milliseconds until visible of what only another kind of machine has; from this process."""
    hive = ReferenceHive(clock=now_ms, snapshots=DEFAULT_ENROLMENT)
    found = []
    with connected(hive, "console", Clocks()) as console, state_in(tmp / "board") as state:
        publisher = SnapshotPublisher(
            console, DEFAULT_ENROLMENT, state, clock=now_ms, monotonic=time.monotonic
        )
        for _ in range(LOOKS + 1):
            look = publisher.begin_look("jetson")
            context = CollectContext(deadline=Deadline(look.deadline_s, time.monotonic))
            found.append(publisher.publish(look_once(host.jetson, context, look)).visible_ms)
    return found[1:]


class Counting:
    """A namespace that counts the bytes of its commands."""

    def __init__(self, inner: Namespace) -> None:
        self.inner = inner
        self.bytes = 0

    @property
    def session(self) -> int:
        return self.inner.session

    def ls(self, path: str) -> list[str]:
        return self._counted(f"LS {path}", self.inner.ls, path)

    def read(self, path: str) -> list[str]:
        return self._counted(f"CAT {path}", self.inner.read, path)

    def tail(self, path: str) -> list[str]:
        return self._counted(f"TAIL {path}", self.inner.tail, path)

    def _counted(self, command: str, ask: Callable[[str], list[str]], path: str) -> list[str]:
        self.bytes += FRAME_BYTES + len(command)
        return ask(path)

    def append(self, path: str, line: str, *, session: int | None = None) -> AppendAnswer:
        self.bytes += FRAME_BYTES + len(f"ECHO {path} {line}")
        return self.inner.append(path, line, session=session)

    def close(self) -> None:
        self.inner.close()


class Silent:
    """Hears what happens and counts it."""

    def __init__(self) -> None:
        self.published_count = 0

    def published(self, publication: Publication) -> None:
        self.published_count += 1

    def failed(self, provider: str, error: Exception, retry_s: float) -> None:
        raise AssertionError(provider) from error

    def held(self, error: Exception, retry_s: float) -> None:
        raise AssertionError(retry_s) from error


def _seen_once(host: ObservedHost) -> dict[str, Collector]:
    """Collectors that tell again and again what the real ones saw once."""
    found: dict[str, Collector] = {}
    for provider in PROVIDERS:
        if provider == "jetson":
            deadline = Deadline.after(PATIENCE_S, time.monotonic)
            entries = list(host.jetson(CollectContext(deadline=deadline)))
        else:
            document = host.discover(provider)
            entries = [SnapshotEntry(entry["path"], entry["value"]) for entry in document["entries"]]
        found[provider] = lambda _, entries=entries: entries
    return found


@pytest.mark.bench(alone=False)  # counts the time of the processor
def test_an_hour_of_watching(host: ObservedHost, table: Table) -> None:
    clocks, notes = Clocks(), Silent()
    intervals = {provider: interval_ms(provider, {}) / 1000 for provider in PROVIDERS}
    hive = ReferenceHive(clock=clocks.wall, snapshots=DEFAULT_ENROLMENT, monotonic=clocks.monotonic_ms)
    folder = tempfile.TemporaryDirectory(dir=memory_folder())
    with folder as name, connected(hive, "console", clocks) as console, state_in(Path(name) / "s") as state:
        counting = Counting(console)
        publisher = SnapshotPublisher(
            counting, DEFAULT_ENROLMENT, state, clock=clocks.wall, monotonic=clocks.monotonic_s
        )
        watch = Watch(
            publisher,
            VirtualLookouts(_seen_once(host), clocks),
            Cadence(intervals, clocks.now_s),
            clock=clocks.wall,
            monotonic=clocks.monotonic_s,
            environ={},
            notes=notes,
        )
        end_s = clocks.now_s + HOUR_S
        cpu_s, began = time.thread_time(), time.perf_counter()
        while clocks.now_s < end_s:
            watch.turn()
        cpu_s, took_s = time.thread_time() - cpu_s, time.perf_counter() - began
    table.add(
        f"watch loop without its collectors, one virtual hour, {notes.published_count} records of"
        f" {len(PROVIDERS)} providers: CPU",
        f"{cpu_s:.1f} s ({1000 * cpu_s / notes.published_count:.2f} ms a record; {took_s:.1f} s in all)",
        "none",
    )
    table.add(
        "  its commands to the hive",
        f"{counting.bytes / 1e6:.1f} MB ({counting.bytes / HOUR_S / 1000:.1f} kB/s)",
        "none",
    )


def test_a_publisher_at_its_usual_pace(host: ObservedHost, tmp_path: Path, table: Table) -> None:
    state_dir = tmp_path / "state"
    state_dir.mkdir(mode=0o700)
    cpu_s = resource.getrusage(resource.RUSAGE_CHILDREN)
    watched = _watched(host, state_dir, interval_ms=None, seconds=PACE_S)
    records = sum(map(len, watched.times.values())) + len(PROVIDERS)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - cpu_s.ru_utime - cpu_s.ru_stime
    table.add(
        f"a publisher and its collectors, {PACE_S:.0f} s at the usual pace, {records} records: CPU with its"
        " start",
        f"{used_s:.2f} s",
        "none",
    )
    table.add("  resident memory at most", f"{watched.peak_kib / 1024:.0f} MiB", "none")
