"""Admitted to published over every transport, beside the same agent with a plain poll of one second."""

from __future__ import annotations

import itertools
import queue
import statistics
import time
from random import Random
from typing import TYPE_CHECKING

import pytest
from hive_support import raw_grant
from transports import CONSOLE, TRANSPORTS

from ticket_agent.hive.reference import Faults, ReferenceHive, RefusalError

if TYPE_CHECKING:
    from pathlib import Path

    from bench_table import Table
    from transports import Transport

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

PATIENCE_S = 300.0
WARM = 5
TICKETS = 56
"""A hive lists no more than 64 leases, and a mount asks for the list."""
LEAST = 12
LONGEST_S = 25.0
"""A transport that takes seconds for a ticket is measured with fewer of them."""
PLAIN_MS = 1000


def _latencies(
    transport: Transport, tmp: Path, *, tickets: int, poll_ms: int | None = None, silence_s: float = 0.0
) -> list[float]:
    """Seconds from admission to the terminal result, one ticket after the other.

    Before each ticket there is silence of so many seconds and up to one more, so that tickets meet a slow
    poll at any point of its pause.
    """
    finished: queue.SimpleQueue[float] = queue.SimpleQueue()
    faults = Faults()

    def applied(path: str, line: str) -> None:
        if path.startswith("/host/tickets/") and '"state":"succeeded"' in line:
            finished.put(time.perf_counter())

    faults.on_applied(applied)
    hive = ReferenceHive(transport.profile, clock=lambda: int(time.time() * 1000))
    workers = itertools.cycle([hive.spawn_worker("worker-gpu").worker_id for _ in range(16)])
    phase = Random(7)
    served = transport.serve(hive, faults)
    found = []
    try:
        agent = served.agent(tmp / "state", served.port, tmp, timeout_s=None, poll_ms=poll_ms)
        try:
            started = time.perf_counter()
            for number in range(tickets + WARM):
                if number >= WARM and silence_s:
                    time.sleep(silence_s + phase.random())
                admitted = _admit(hive, next(workers), number)
                found.append(finished.get(timeout=PATIENCE_S) - admitted)
                if number >= WARM + LEAST and time.perf_counter() - started > LONGEST_S:
                    break
        finally:
            agent.terminate()
    finally:
        served.close()
    return found[WARM:]


def _admit(hive: ReferenceHive, worker: str, number: int) -> float:
    while True:
        try:
            hive.submit(raw_grant(hive, worker, f"t{number}", f"lease-{number}", ttl_s=60))
        except RefusalError:
            time.sleep(0.0005)
            continue
        return time.perf_counter()


def _shown(latencies: list[float]) -> str:
    cuts = statistics.quantiles(latencies, n=100, method="inclusive")
    return f"{cuts[49] * 1000:.1f} / {cuts[98] * 1000:.1f} ms"


def _worst(latencies: list[float]) -> str:
    return f"{statistics.median(latencies) * 1000:.1f} / {max(latencies) * 1000:.1f} ms"


@pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda transport: transport.name)
def test_admitted_to_published(transport: Transport, tmp_path: Path, table: Table) -> None:
    busy = _latencies(transport, tmp_path, tickets=TICKETS)
    what = f"admitted to published over {transport.name}, {len(busy)} tickets, p50 / p99"
    table.add(what, _shown(busy), "<= 25 / <= 100 ms" if transport is CONSOLE else "none")


def test_admitted_to_published_with_a_plain_poll(tmp_path: Path, table: Table) -> None:
    (tmp_path / "plain").mkdir()
    plain = _latencies(CONSOLE, tmp_path / "plain", tickets=7, poll_ms=PLAIN_MS, silence_s=0.01)
    table.add(f"  the same, {PLAIN_MS} ms poll, {len(plain)} tickets, p50 / worst", _worst(plain), "none")
    (tmp_path / "idle").mkdir()
    idle = _latencies(CONSOLE, tmp_path / "idle", tickets=3, silence_s=4.0)
    table.add(f"  the same, after 4 to 5 s of silence, {len(idle)} tickets", _worst(idle), "none")
