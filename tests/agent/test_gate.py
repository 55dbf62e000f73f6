"""The hive's lifecycle gate: what waits behind it, who is told, over the console and over a mount."""

from __future__ import annotations

import io
import json
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from agent_faults import when_applied
from agent_support import agent_on
from fuse_hive import mounted_hive
from hive_support import LEASE_CTL, SPEC, STATUS, ManualClock, raw_grant, running_hive
from mount_support import NEWEST, agent_on_mount, needs_fuse

from ticket_agent.agent.events import EventLog
from ticket_agent.agent.gate import LOOK_PERIOD_S, LifecycleGate
from ticket_agent.agent.statusfile import StatusFile, read_status
from ticket_agent.hive.reference import Faults
from ticket_agent.journal.transitions import State
from ticket_agent.protocol.lifecycle import LifecycleState
from ticket_agent.protocol.namespace import (
    HiveRefusedError,
    HiveUnreachableError,
    Refusal,
    RefusalKind,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent_support import Bench

    from ticket_agent.hive.reference import ConsoleServer, ReferenceHive


class Says:
    """A hive that says one thing about its lifecycle, or fails."""

    def __init__(self, answer: list[str] | Exception) -> None:
        self.answer = answer
        self.reads = 0

    def read(self, path: str) -> list[str]:
        assert path == "/proc/lifecycle/state"
        self.reads += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Scene:
    def __init__(self, answer: list[str] | Exception) -> None:
        self.hive = Says(answer)
        self.log = io.StringIO()
        self.clock = ManualClock()
        self.seconds = 100.0
        events = EventLog(self.log, clock=self.clock, style="json")
        self.gate = LifecycleGate(
            self.hive,  # type: ignore[arg-type]
            events,
            clock=self.clock,
            monotonic=lambda: self.seconds,
        )

    @property
    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.log.getvalue().splitlines()]


def _refused(kind: RefusalKind) -> HiveRefusedError:
    return HiveRefusedError("CAT", "/proc/lifecycle/state", Refusal(kind=kind, text="ERR CAT"))


@pytest.mark.parametrize(
    ("answer", "opens", "state"),
    [
        *(
            ([f"state={state}"], state in {"ONLINE", "DEGRADED"}, state)
            for state in (state.value for state in LifecycleState)
        ),
        (_refused(RefusalKind.INVALID_PATH), True, None),
        (_refused(RefusalKind.DENIED), False, None),
    ],
)
def test_what_the_gate_makes_of_an_answer(
    answer: list[str] | Exception, opens: bool, state: str | None
) -> None:
    scene = Scene(answer)
    assert (scene.gate.refusal() is None) == opens
    assert scene.gate.state == state


def test_closing_and_opening_is_told_once_and_since_when_is_known() -> None:
    scene = Scene(["state=ONLINE"])
    scene.gate.refusal()
    assert scene.events == []
    scene.hive.answer = ["state=DRAINING"]
    scene.gate.refusal()
    closed = scene.gate.closed_unix_ms
    scene.clock.advance(5000)
    scene.hive.answer = ["state=QUIESCED"]
    scene.gate.refusal()
    assert scene.gate.closed_unix_ms == closed == scene.clock.now_ms - 5000
    assert (scene.gate.open, scene.events) == (False, ["lifecycle-closed"])
    scene.hive.answer = ["state=ONLINE"]
    scene.gate.refusal()
    assert (scene.gate.open, scene.events) == (True, ["lifecycle-closed", "lifecycle-opened"])


def test_looks_that_nothing_asked_for_are_rare_and_harmless() -> None:
    scene = Scene(["state=ONLINE"])
    for _ in range(5):
        scene.gate.look_if_due()
    assert scene.hive.reads == 1
    scene.seconds += LOOK_PERIOD_S
    scene.hive.answer = ["state=ON FIRE"]
    scene.gate.look_if_due()
    assert scene.events == ["lifecycle-unreadable"]
    scene.gate.doubt()
    scene.hive.answer = HiveUnreachableError("gone")
    scene.gate.look_if_due()
    assert scene.hive.reads == 3
    assert scene.gate.state is LifecycleState.ONLINE
    scene.hive.answer = ["state=OFFLINE"]
    scene.gate.doubt()
    scene.gate.look_if_due()
    scene.seconds += 1.0
    scene.gate.look_if_due()
    assert scene.hive.reads == 5, "a closed gate is looked at every second"


# -- with a hive ---------------------------------------------------------------------------------------------


@contextmanager
def _console(tmp_path: Path, clock: ManualClock) -> Iterator[tuple[ReferenceHive, ConsoleServer, Bench]]:
    with (
        running_hive(NEWEST, clock=clock, faults=Faults()) as (hive, server),
        agent_on(server, tmp_path / "state", clock=clock) as bench,
    ):
        yield hive, server, bench


@contextmanager
def _mount(tmp_path: Path, clock: ManualClock) -> Iterator[tuple[ReferenceHive, ConsoleServer, Bench]]:
    with (
        running_hive(NEWEST, clock=clock, faults=Faults()) as (hive, server),
        mounted_hive(server.port, tmp_path / "hive"),
        agent_on_mount(tmp_path / "hive", tmp_path / "state", clock=clock) as bench,
    ):
        yield hive, server, bench


WAYS = pytest.mark.parametrize(
    "way", [pytest.param(_console, id="console"), pytest.param(_mount, id="mount", marks=needs_fuse)]
)


def _status(bench: Bench, tmp_path: Path) -> dict[str, object]:
    fd = os.open(tmp_path / "state", os.O_RDONLY)
    try:
        file = StatusFile(fd, pid=1, boot_id="b", clock=bench.clock, monotonic=time.monotonic)
        file.write(bench.agent)
        found = read_status(fd)
    finally:
        os.close(fd)
    assert found is not None
    gate: dict[str, object] = found["lifecycle"]
    return gate


@WAYS
def test_a_hive_that_drains_gets_the_result_when_it_takes_it(way: object, tmp_path: Path) -> None:
    """The lease is granted, then the gate closes: the result stays staged and goes out as those bytes."""
    clock = ManualClock(int(time.time() * 1000))
    with way(tmp_path, clock) as (hive, server, bench):  # type: ignore[operator]
        worker = hive.spawn_worker("worker-gpu")
        hive.submit(raw_grant(hive, worker, "t0", "lease-0", ttl_s=60))
        when_applied(server, LEASE_CTL, lambda: hive.set_lifecycle("DRAINING"))
        bench.until(lambda: bool(hive.effects))
        for _ in range(4):
            bench.hurry()
            bench.passes(1)
        record = bench.record("t0")
        assert record.state is State.PERSISTED
        assert record.staged is not None
        assert "the hive is DRAINING" in bench.waiting(record.key) or "EPERM" in bench.waiting(record.key)
        assert not hive.terminal_lines(("t0", "key-t0"))
        assert _status(bench, tmp_path) == {
            "state": "DRAINING",
            "takes_results": False,
            "closed_unix_ms": clock.now_ms,
        }
        assert len(bench.events("lifecycle-closed")) == 1
        (op,) = bench.agent.operations.values()
        assert op.delay_s > 0.05, "it is tried again with growing pauses"
        hive.set_lifecycle("ONLINE")
        bench.settle()
        assert hive.terminal_lines(("t0", "key-t0")) == [record.staged.line]
        assert hive.effect_count("grant", "lease-0") == 1
        bench.agent.gate.doubt()
        bench.passes(1)
        assert _status(bench, tmp_path)["takes_results"] is True
        assert len(bench.events("lifecycle-opened")) == 1


@WAYS
def test_nothing_is_begun_while_the_gate_is_closed(way: object, tmp_path: Path) -> None:
    clock = ManualClock(int(time.time() * 1000))
    with way(tmp_path, clock) as (hive, _, bench):  # type: ignore[operator]
        worker = hive.spawn_worker("worker-gpu")
        hive.submit(raw_grant(hive, worker, "t0", "lease-0", ttl_s=60))
        hive.set_lifecycle("QUIESCED")
        for _ in range(3):
            bench.hurry()
            bench.passes(1)
        assert bench.record("t0").state is State.PREPARED
        assert not hive.appended(STATUS)
        assert not bench.agent.gate.open
        hive.set_lifecycle("DEGRADED")
        bench.settle()
    assert hive.effect_count("grant", "lease-0") == 1
    assert hive.appended(SPEC) == 1
