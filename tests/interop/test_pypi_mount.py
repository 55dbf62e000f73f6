"""The published Python client on a mounted hive: what it reads, and that the agent takes what it wrote."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from fuse_hive import mounted_hive
from hive_support import SNAPSHOT, SPEC, ManualClock, raw_grant, running_hive
from mount_support import NEWEST, agent_on_mount, needs_fuse

if TYPE_CHECKING:
    from pathlib import Path

cohesix_backends = pytest.importorskip(
    "cohesix.backends", reason="needs the extra 'interop' (cohesix==1.2.0)"
)
pytestmark = needs_fuse


def test_it_submits_and_reads_beside_the_agent(tmp_path: Path) -> None:
    clock = ManualClock(int(time.time() * 1000))
    with (
        running_hive(NEWEST, clock=clock) as (hive, server),
        mounted_hive(server.port, tmp_path / "hive") as mounted,
        agent_on_mount(mounted.path, tmp_path / "state", clock=clock) as bench,
    ):
        bench.passes(1)
        client = cohesix_backends.FilesystemBackend(str(mounted.path))
        assert client.list_dir("/proc/lifecycle") == ["reason", "since", "state"]
        worker = hive.spawn_worker("worker-gpu")
        line = raw_grant(hive, worker, "t0", "lease-0", ttl_s=60)
        assert client.write_append(SPEC, line.encode() + b"\n") == len(line) + 1
        bench.until(lambda: bench.agent.totals.ended == 1)
        assert client.read_file(SNAPSHOT, 65536).decode().split("\n") == hive.cat(SNAPSHOT)
        assert client.read_file("/proc/lease/active", 65536)
    assert hive.effect_count("grant", "lease-0") == 1


def test_it_reads_nothing_from_a_mount_of_the_first_release(tmp_path: Path) -> None:
    """Recorded so: listings work, every reading is empty, and nothing says why."""
    with running_hive(NEWEST) as (_, server), mounted_hive(server.port, tmp_path / "hive", "old") as mounted:
        client = cohesix_backends.FilesystemBackend(str(mounted.path))
        assert client.list_dir("/host")
        assert client.read_file("/proc/boot", 65536) == b""
