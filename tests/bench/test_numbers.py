"""The numbers that the design promises, as ratios inside one run where a ratio makes sense.

Run them alone on a quiet machine: ``python -m pytest tests/bench``. They print a table; no time fails them.
"""

from __future__ import annotations

import itertools
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from agent_support import AgentProcess, Caller, agent_on
from hive_support import LEASE_CTL, ManualClock, raw_grant, running_hive
from journal_support import PLAN, REQUEST, RESULT, STAGED, open_store, walk
from memory_folder import memory_folder

from ticket_agent.agent.keys import V2_FAMILY
from ticket_agent.hive.reference import Fault, FaultKind, Faults, RefusalError
from ticket_agent.journal.fs import RealFs
from ticket_agent.journal.space import Limits
from ticket_agent.journal.view import read_journal

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench_table import Table

    from ticket_agent.journal.store import JournalStore

pytestmark = [pytest.mark.bench, pytest.mark.disk, pytest.mark.timeout(900)]

PATIENCE_S = 300.0
RETAINED = 10_000
LIMITS = Limits(fenced_families=frozenset({V2_FAMILY}))


class UnsyncedFs(RealFs):
    """Fills a directory fast; only for building what is measured afterwards."""

    def fsync(self, fd: int) -> None:
        """Not needed for a fixture."""

    def fsync_dir(self, dir_fd: int) -> None:
        """Not needed for a fixture."""


class CountingFs(RealFs):
    """Counts both kinds of fsync."""

    def __init__(self) -> None:
        self.syncs = 0

    def fsync(self, fd: int) -> None:
        self.syncs += 1
        super().fsync(fd)

    def fsync_dir(self, dir_fd: int) -> None:
        self.syncs += 1
        super().fsync_dir(dir_fd)


def _filled(path: Path, count: int) -> None:
    """A journal of that many ended operations; in memory first, since a disk takes its time for each step."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as memory:
        made = Path(memory) / "state"
        with open_store(made, fs=UnsyncedFs(), limits=LIMITS) as store:
            for number in range(1, count + 1):
                walk(store, f"key-{number}", number)
        shutil.copytree(made, path)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


def _life(store: JournalStore, number: int) -> None:
    key = f"bench-{number}"
    store.prepare(key=key, family="bench", epoch=1, sequence=number, request=REQUEST)
    store.dispatch(key, PLAN)
    store.settle(key, RESULT, STAGED)
    store.publish(key)
    store.finish(key)


def _plain(directory: int, number: int, data: bytes) -> None:
    """What any durable replacement costs at least."""
    temporary = f"plain-{number}.tmp"
    fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600, dir_fd=directory)
    os.write(fd, data)
    os.fsync(fd)
    os.close(fd)
    os.rename(temporary, f"plain-{number // 5}", src_dir_fd=directory, dst_dir_fd=directory)
    os.fsync(directory)


def _plain_life(directory: int, base: int, data: bytes) -> None:
    for step in range(5):
        _plain(directory, base + step, data)


def _timed(call: Callable[[], None]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def test_transition_against_a_plain_loop(tmp_path: Path, table: Table) -> None:
    with open_store(tmp_path / "state", limits=LIMITS) as store:
        directory = os.open(tmp_path / "state" / "ops", os.O_RDONLY)
        size = 1600
        ours, plain = [], []
        for number in range(1, 81):
            ours.append(_timed(partial(_life, store, number)) / 5)
            base = number * 5
            plain.append(_timed(partial(_plain_life, directory, base, b"x" * size)) / 5)
        os.close(directory)
        for name in (tmp_path / "state" / "ops").glob("plain-*"):
            name.unlink()
    ratio = statistics.median(ours) / statistics.median(plain)
    shown = f"{ratio:.2f}x ({_ms(statistics.median(ours))} / {_ms(statistics.median(plain))})"
    table.add("durable transition vs plain create-write-fsync-rename-fsyncdir", shown, "<= 1.15x")


def test_transition_with_many_retained_records(tmp_path: Path, table: Table) -> None:
    _filled(tmp_path / "few", 10)
    _filled(tmp_path / "many", RETAINED)
    started = time.perf_counter()
    many = open_store(tmp_path / "many", limits=LIMITS)
    scan = time.perf_counter() - started
    assert len(many.records) == RETAINED
    with many, open_store(tmp_path / "few", limits=LIMITS) as few:
        small, large = [], []
        for number in range(1, 81):
            small.append(_timed(partial(_life, few, number)) / 5)
            large.append(_timed(partial(_life, many, number)) / 5)
    ratio = statistics.median(large) / statistics.median(small)
    table.add("transition with 10,000 retained records vs 10", f"{ratio:.2f}x", "<= 1.1x")
    table.add("start-up recovery scan of 10,000 records", f"{scan:.2f} s", "<= 1 s")


def test_fsyncs_per_ticket(tmp_path: Path, table: Table) -> None:
    tickets = 64
    clock = ManualClock(int(time.time() * 1000))
    fs = CountingFs()
    with (
        running_hive(clock=clock) as (hive, server),
        agent_on(server, tmp_path / "s", clock=clock, fs=fs) as bench,
    ):
        workers = [hive.spawn_worker("worker-gpu").worker_id for _ in range(8)]
        caller = Caller(hive, workers, tickets)
        before = fs.syncs

        def done() -> bool:
            caller.submit_what_can_be()
            return bench.agent.totals.ended == tickets

        bench.until(done)
        bench.agent.save_cursor()
    table.add("fsyncs per ticket, cursor amortised", f"{(fs.syncs - before) / tickets:.2f}", "<= 11")


def test_cold_starts(tmp_path: Path, table: Table) -> None:
    _filled(tmp_path / "state", 20)
    bare = _median_start([sys.executable, "-c", "pass"])
    for name, arguments, bar in (
        ("`ticket-agent --help`", ["--help"], "<= 0.15 s"),
        (
            "`journal list` of 20 records",
            ["journal", "list", "--state-dir", str(tmp_path / "state")],
            "<= 0.3 s",
        ),
    ):
        seconds = _median_start([sys.executable, "-m", "ticket_agent", *arguments])
        table.add(f"cold start {name}", f"{seconds:.2f} s (python alone {bare:.2f} s)", bar)


def _median_start(command: list[str]) -> float:
    def start() -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    start()
    return statistics.median(_timed(start) for _ in range(7))


def test_latency_and_memory_of_the_daemon(tmp_path: Path, table: Table) -> None:
    """Admission to the hive's acceptance of the terminal result, one ticket after the other."""
    finished: queue.SimpleQueue[float] = queue.SimpleQueue()
    faults = Faults()

    def applied(path: str, line: str) -> None:
        if path.startswith("/host/tickets/") and '"state":"succeeded"' in line:
            finished.put(time.perf_counter())

    faults.on_applied(applied)
    with running_hive(clock=lambda: int(time.time() * 1000), faults=faults) as (hive, server):
        workers = itertools.cycle([hive.spawn_worker("worker-gpu").worker_id for _ in range(16)])
        agent = AgentProcess(tmp_path / "state", server.port, tmp_path)
        try:
            latencies = []
            for number in range(220):
                admitted = _admit(hive, next(workers), number)
                published = finished.get(timeout=PATIENCE_S)
                if number >= 20:
                    latencies.append(published - admitted)
            rss = _rss_mib(agent.process.pid)
        finally:
            assert agent.terminate() == 0
    cuts = statistics.quantiles(latencies, n=100)
    shown = f"{_ms(cuts[49])} / {_ms(cuts[98])}"
    table.add("admitted to published, lease grant, loopback console, p50 / p99", shown, "<= 25 / <= 100 ms")
    table.add("resident memory of the daemon after 220 tickets", f"{rss:.0f} MiB", "<= 64 MiB")


def _admit(hive: object, worker: str, number: int) -> float:
    while True:
        line = raw_grant(hive, worker, f"t{number}", f"lease-{number}", "GPU-0", ttl_s=60)  # type: ignore[arg-type]
        try:
            hive.submit(line)  # type: ignore[attr-defined]
        except RefusalError:
            time.sleep(0.0005)
            continue
        return time.perf_counter()


def _rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def test_crash_to_published(tmp_path: Path, table: Table) -> None:
    """Killed at `executing`, started again: from ready to the published result."""
    spans = []
    for attempt in range(5):
        finished: list[int] = []
        held = Faults(Fault(kind=FaultKind.SILENT, verb="ECHO", prefix=LEASE_CTL, nth=1))
        written: list[int] = []

        def applied(
            path: str, line: str, finished: list[int] = finished, written: list[int] = written
        ) -> None:
            if path == LEASE_CTL:
                written.append(1)
            if '"state":"succeeded"' in line:
                finished.append(time.time_ns() // 1_000_000)

        held.on_applied(applied)
        state_dir = tmp_path / f"state-{attempt}"
        with running_hive(clock=lambda: int(time.time() * 1000), faults=held) as (hive, server):
            worker = hive.spawn_worker("worker-gpu").worker_id
            first = AgentProcess(state_dir, server.port, tmp_path)
            _admit(hive, worker, attempt)
            while not written:
                time.sleep(0.001)
            first.kill()
            second = AgentProcess(state_dir, server.port, tmp_path)
            while not finished:
                assert second.process.poll() is None, second.errors.read_text()
                time.sleep(0.001)
            assert second.terminate() == 0
            started = next(event for event in second.events() if event["event"] == "started")
            spans.append((finished[0] - started["unix_ms"]) / 1000)
        (record,) = read_journal(state_dir).records.values()
        assert record.result is not None
        assert record.result.reconciled
    table.add("crash to published, 1 open ticket, from ready", _ms(statistics.median(spans)), "<= 100 ms")
