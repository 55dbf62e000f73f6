"""Poisoned records in a hive's logs: no pass ends for them, and what stands beside them goes on.

A directory can hold any bytes at all, so that everything is put there; a console carries text alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from agent_faults import root_writes
from agent_support import agent_on
from hive_support import START_MS, ManualClock, raw_grant, running_hive
from mount_support import agent_on_mount

if TYPE_CHECKING:
    from pathlib import Path

POISON = {
    "no-text": b"\xff\xfe\xc3\x28",
    "no-text-in-json": b'{"schema":"host-ticket/v1","id":"\xff"}',
    "half-a-character": "ü".encode()[:1],
    "nul": b"\0\0\0\0",
    "empty-object": b"{}",
    "torn": b'":"x"}',
    "cut": b'{"schema":"host-ticket/v2","id":"t',
    "no-group": b"C1:0000:0002:" + b"0" * 64 + b":{",
    "protocol": b"END",
    "answer": b"OK CAT path=/x",
    "long": b'{"id":"' + b"x" * 5000 + b'"}',
    "deep": b"[" * 4000,
    "huge-number": b'{"id":' + b"9" * 5000 + b"}",
    "infinity": b'{"id":1e400}',
    "twice": b'{"schema":"host-ticket/v1","schema":"host-ticket/v1"}',
    "surrogate": b'{"schema":"host-ticket/v1","id":"\\ud800"}',
    "carriage-return": b"\r",
}


def _expired_v1(ticket: str) -> bytes:
    document = {
        "schema": "host-ticket/v1",
        "id": ticket,
        "idempotency_key": "k",
        "action": "gpu.lease.release",
        "expires_unix_ms": START_MS,
    }
    return json.dumps(document).encode()


@pytest.mark.parametrize("leaf", ["spec", "spec.snapshot", "status", "deadletter"])
@pytest.mark.parametrize("name", POISON)
def test_over_a_directory(tmp_path: Path, leaf: str, name: str) -> None:
    tickets = tmp_path / "hive" / "host" / "tickets"
    tickets.mkdir(parents=True)
    tmp_path.joinpath("hive").chmod(0o755)
    for each in ("spec", "spec.snapshot", "status", "deadletter"):
        (tickets / each).write_bytes(POISON[name] + b"\n" if each == leaf else b"")
    with (tickets / "spec").open("ab") as stream:
        stream.write(_expired_v1("good") + b"\n")
    with agent_on_mount(tmp_path / "hive", tmp_path / "state", clock=ManualClock(START_MS + 1)) as bench:
        for _ in range(3):
            bench.hurry()
            bench.agent.pass_once(bench.stop)
        assert bench.agent.totals.ended == 1
        assert (bench.agent.intake.held is not None) == (leaf == "spec.snapshot")
        assert bench.agent.intake.counters.malformed_callers == (leaf == "spec" and name != "carriage-return")
        assert bench.agent.streams.malformed == (leaf in {"status", "deadletter"})
    last = (tickets / "deadletter").read_bytes().splitlines()[-1]
    assert (json.loads(last)["id"], json.loads(last)["state"]) == ("good", "expired")


@pytest.mark.parametrize("leaf", ["spec", "spec.snapshot", "status", "deadletter"])
@pytest.mark.parametrize("name", ["empty-object", "torn", "cut", "twice", "surrogate", "infinity"])
def test_over_a_console(tmp_path: Path, leaf: str, name: str) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        root_writes(hive, leaf, POISON[name].decode())
        worker = hive.spawn_worker("worker-gpu")
        hive.submit(raw_grant(hive, worker, "t0", "lease-0", ttl_s=60))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            for _ in range(3):
                bench.hurry()
                bench.agent.pass_once(bench.stop)
            held = bench.agent.intake.held is not None
            assert held == (leaf == "spec.snapshot")
            assert bench.agent.totals.ended == (0 if held else 1)
