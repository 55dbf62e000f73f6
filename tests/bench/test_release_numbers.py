"""What other tickets notice of a training: their latency with it and without it, in one run."""

from __future__ import annotations

import itertools
import json
import queue
import random
import statistics
import time
from array import array
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import pytest
from hive_support import raw_grant, raw_renew
from release_daemon import Host, release_host

from ticket_agent.hive.reference import Faults, RefusalError
from ticket_agent.peft.release.native.base_model import base_tensors
from ticket_agent.peft.release.skeleton_base import TINY_GEOMETRY, safetensors_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench_table import Table

pytestmark = [pytest.mark.train, pytest.mark.bench, pytest.mark.timeout(1500)]

PATIENCE_S = 300.0
TICKETS = 200
"""At least so many on each side."""
MIDDLE = replace(
    TINY_GEOMETRY, layers=5, hidden_size=256, intermediate_size=688, heads=8, kv_heads=4, head_dim=32
)
"""Large enough that the training, not the start of its process, is what runs."""


def make_larger(base: Path) -> None:
    """Give a base model more weights."""
    draw = random.Random(7)
    tensors = {}
    for name, shape in base_tensors(MIDDLE).items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        drawn = array("h", draw.randbytes(2 * count)) if len(shape) > 1 else array("h", [32767]) * count
        scale = 0.05 / 32767 if len(shape) > 1 else 1 / 32767
        tensors[name] = (shape, array("f", [number * scale for number in drawn]).tobytes())
    (base / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    config = json.loads((base / "config.json").read_text("utf-8"))
    size = asdict(MIDDLE)
    changes = {
        "num_hidden_layers": size["layers"],
        "hidden_size": size["hidden_size"],
        "intermediate_size": size["intermediate_size"],
        "num_attention_heads": size["heads"],
        "num_key_value_heads": size["kv_heads"],
        "head_dim": size["head_dim"],
    }
    (base / "config.json").write_text(json.dumps(config | changes), "utf-8")


class Leases:
    """Lease tickets, one after the other: from the admission to the hive's acceptance of the result.

    Sixteen leases are granted and then renewed, as the table of leases does not take any number.
    """

    def __init__(self, host: Host, finished: queue.SimpleQueue[float]) -> None:
        self._hive = host.hive
        self._finished = finished
        self._workers = [host.hive.spawn_worker("worker-gpu").worker_id for _ in range(16)]
        self._numbers = itertools.count()

    def measured(self, goes_on: Callable[[int], bool]) -> list[float]:
        spans: list[float] = []
        while goes_on(len(spans)):
            admitted = self._admit()
            spans.append(self._finished.get(timeout=PATIENCE_S) - admitted)
        return spans

    def _admit(self) -> float:
        number = next(self._numbers)
        which = number % len(self._workers)
        raw = raw_grant if number < len(self._workers) else raw_renew
        while True:
            line = raw(self._hive, self._workers[which], f"l{number}", f"lease-{which}", "GPU-0", ttl_s=60)
            try:
                self._hive.submit(line)
            except RefusalError:
                time.sleep(0.0005)
                continue
            return time.perf_counter()


def p99(spans: list[float]) -> float:
    return statistics.quantiles(spans, n=100)[98] * 1000


def test_leases_while_a_training_runs(tmp_path: Path, table: Table) -> None:
    finished: queue.SimpleQueue[float] = queue.SimpleQueue()
    faults = Faults()

    def applied(path: str, line: str) -> None:
        if path.startswith("/host/tickets/") and '"state":"succeeded"' in line and '"id":"l' in line:
            finished.put(time.perf_counter())

    faults.on_applied(applied)
    with release_host(tmp_path.resolve(), faults=faults) as host:
        make_larger(host.lab.folder / "base")
        settings = replace(host.lab.selection.settings, max_steps=64, checkpoint_interval=16)
        prepared = host.lab.prepare("release-1", settings=settings)
        host.serve_base(prepared)
        agent = host.agent()
        leases = Leases(host, finished)
        leases.measured(lambda count: count < 20)
        without = leases.measured(lambda count: count < TICKETS)
        host.submit("t1", prepared)
        host.await_phase("release-1", "train")
        during = leases.measured(lambda _: host.ending("release-1", "train") is None)
        assert agent.process.poll() is None
    what = "p99 of lease tickets while a training runs vs without"
    if len(during) < TICKETS:
        table.add(what, f"too few to tell: {len(during)} tickets", "<= 2.0x")
        return
    ratio = p99(during) / p99(without)
    shown = (
        f"{ratio:.2f}x ({p99(during):.1f} / {p99(without):.1f} ms, {len(during)} / {len(without)} tickets)"
    )
    table.add(what, shown, "<= 2.0x")
    shown = f"{statistics.median(during) * 1000:.1f} / {statistics.median(without) * 1000:.1f} ms"
    table.add("their p50", shown, "-")
