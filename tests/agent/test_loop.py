"""The loop around the passes: cadence, outages, start and stop."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from agent_faults import blind, when_applied
from agent_support import NEVER, Bench, agent_on
from hive_support import LEASE_CTL, TOKEN, ManualClock, raw_grant, running_hive

from ticket_agent.agent.loop import FAST_PERIOD_S, MAX_OUTAGE_PAUSE_S, PassSummary
from ticket_agent.agent.notify import ServiceNotifier
from ticket_agent.agent.operation import FIRST_DELAY_S
from ticket_agent.agent.statusfile import StatusFile, read_status
from ticket_agent.hive.reference import ConsoleServer, Fault, FaultKind, ReferenceHive
from ticket_agent.journal.errors import JournalPoisonedError
from ticket_agent.journal.transitions import State
from ticket_agent.protocol.namespace import HiveAuthError, HiveUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ACTIVE = PassSummary(admitted=1)
IDLE = PassSummary()


class Now:
    """Monotonic seconds that the test moves."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def __call__(self) -> float:
        return self.now


@contextmanager
def _bench(tmp_path: Path) -> Iterator[tuple[ReferenceHive, ConsoleServer, Bench]]:
    clock = ManualClock()
    with (
        running_hive(clock=clock) as (hive, server),
        agent_on(server, tmp_path / "state", clock=clock) as bench,
    ):
        yield hive, server, bench


def _cadence(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Now:
    now = Now()
    monkeypatch.setattr(bench.agent, "_monotonic", now)
    return now


# -- cadence


def test_the_pause_is_none_while_things_move_then_short_then_grows_to_the_idle_cadence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _bench(tmp_path) as (_, _, bench):
        bench.passes(1)
        now = _cadence(bench, monkeypatch)
        fast, idle = bench.config.poll.fast_ms / 1000, bench.config.poll.idle_ms / 1000
        assert bench.agent._pause(ACTIVE) == 0.0
        assert bench.agent._pause(IDLE) == fast
        now.now += FAST_PERIOD_S - 0.001
        assert bench.agent._pause(IDLE) == fast
        now.now += 0.001
        pauses = [bench.agent._pause(IDLE) for _ in range(20)]
        assert pauses[0] == pytest.approx(fast * 1.5)
        assert pauses == sorted(pauses)
        assert pauses[-1] == idle
        assert bench.agent._pause(ACTIVE) == 0.0
        assert bench.agent._pause(IDLE) == fast


def test_the_pause_ends_when_an_operation_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _bench(tmp_path) as (hive, _, bench):
        hive.submit(raw_grant(hive, hive.spawn_worker("worker-gpu"), "t1", "lease-1"))
        hive.set_lifecycle("DRAINING")
        bench.passes(1)
        now = _cadence(bench, monkeypatch)
        now.now += 10 * FAST_PERIOD_S
        for _ in range(20):
            bench.agent._pause(IDLE)
        (op,) = bench.agent.operations.values()
        for delay, pause in [(0.25, 0.25), (0.0001, 0.001), (5.0, 1.0), (-3.0, 1.0)]:
            op.retry_at = now.now + delay
            assert bench.agent._pause(IDLE) == pytest.approx(pause)


def test_a_new_session_is_looked_at_without_a_pause(tmp_path: Path) -> None:
    with _bench(tmp_path) as (_, _, bench):
        bench.passes(1)
        bench.namespace._drop()
        bench.namespace.connect()
        assert bench.agent._pause(IDLE) == 0.0


def test_an_operation_waits_longer_each_time_and_starts_anew_when_it_moves(tmp_path: Path) -> None:
    with _bench(tmp_path) as (hive, _, bench):
        hive.submit(raw_grant(hive, hive.spawn_worker("worker-gpu"), "t1", "lease-1"))
        hive.set_lifecycle("DRAINING")
        bench.passes(1)
        (op,) = bench.agent.operations.values()
        op.moved(op.record)
        delays = []
        for _ in range(12):
            op.wait("why", now=50.0, longest_s=1.0)
            delays.append(op.retry_at - 50.0)
        assert delays[:4] == pytest.approx([FIRST_DELAY_S * factor for factor in (1, 2, 4, 8)])
        assert max(delays) == 1.0
        op.moved(op.record)
        assert (op.waiting, op.retry_at, op.delay_s) == ("", 0.0, FIRST_DELAY_S)


def test_an_operation_whose_pause_is_not_over_is_left_alone(tmp_path: Path) -> None:
    with _bench(tmp_path) as (hive, server, bench):
        hive.submit(raw_grant(hive, hive.spawn_worker("worker-gpu"), "t1", "lease-1"))
        blind(server)
        bench.passes(2)
        (op,) = bench.agent.operations.values()
        op.retry_at = time.monotonic() + 1000
        server.faults.clear()
        bench.passes(5)
        assert op.record.state is State.EXECUTING
        op.retry_at = 0.0
        bench.passes(1)
        assert bench.record("t1").terminal


# -- outages


def test_an_outage_is_waited_for_in_growing_pauses_and_said_once(tmp_path: Path) -> None:
    with _bench(tmp_path) as (_, server, bench):
        assert bench.agent._one_round(bench.stop, first=True) >= 0
        assert bench.agent.hive_state == "connected"
        server.stop()
        pauses = [bench.agent._one_round(bench.stop, first=False) for _ in range(6)]
        assert pauses == [0.2, 0.4, 0.8, 1.6, MAX_OUTAGE_PAUSE_S, MAX_OUTAGE_PAUSE_S]
        assert bench.agent.totals.outages == 6
        assert bench.agent.hive_state != "connected"
        assert 1 <= len(bench.events("hive-unavailable")) <= 3


def test_after_an_outage_the_pauses_start_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable() -> None:
        raise HiveUnreachableError("gone")

    with _bench(tmp_path) as (_, _, bench):
        look = bench.agent._feed.look
        for _ in range(2):
            monkeypatch.setattr(bench.agent._feed, "look", unreachable)
            assert [bench.agent._one_round(bench.stop, first=False) for _ in range(2)] == [0.2, 0.4]
            monkeypatch.setattr(bench.agent._feed, "look", look)
            bench.agent._one_round(bench.stop, first=False)
            assert bench.agent.hive_state == "connected"
        assert len(bench.events("hive-unavailable")) == 2
        assert len(bench.events("hive-connected")) == 2


def test_a_refused_credential_ends_the_start_but_not_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise HiveAuthError("no")

    with _bench(tmp_path) as (_, _, bench):
        monkeypatch.setattr(bench.agent._feed, "look", refused)
        with pytest.raises(HiveAuthError):
            bench.agent._one_round(bench.stop, first=True)
        assert bench.agent._one_round(bench.stop, first=False) == 0.2
        assert "credential" in bench.agent.hive_state


def test_malformed_offsets_are_an_outage_and_not_the_end(tmp_path: Path) -> None:
    with _bench(tmp_path) as (_, server, bench):
        bench.agent._one_round(bench.stop, first=True)
        answer = Fault(kind=FaultKind.GARBAGE, verb="CAT", prefix="/host/tickets/retention")
        server.faults.add(answer)
        assert bench.agent._one_round(bench.stop, first=False) == 0.2
        server.faults.clear()
        bench.agent._one_round(bench.stop, first=False)
        assert bench.agent.hive_state == "connected"


# -- run


class Manager:
    """The service manager's end of the notification socket."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(60)
        self.heard: list[str] = []

    def wait_for(self, word: str) -> None:
        while not any(message.startswith(word) for message in self.heard):
            self.heard.append(self.socket.recv(4096).decode())


@contextmanager
def _running(bench: Bench, tmp_path: Path, **environ: str) -> Iterator[tuple[Manager, Callable[[], None]]]:
    """The loop in a thread of its own, until the test stops it."""
    manager = Manager(tmp_path / "notify")
    notifier = ServiceNotifier({"NOTIFY_SOCKET": str(tmp_path / "notify"), **environ}, pid=1)
    fd = os.open(tmp_path, os.O_RDONLY)
    status = StatusFile(fd, pid=1, boot_id="b", clock=bench.clock, monotonic=time.monotonic)
    errors: list[Exception] = []

    def run() -> None:
        try:
            bench.agent.run(bench.stop, notifier=notifier, reports=[status])
        except Exception as error:  # noqa: BLE001 - handed to the test
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def join() -> None:
        thread.join(60)
        assert not thread.is_alive()
        if errors:
            raise errors[0]

    try:
        yield manager, join
    finally:
        bench.stop.set()
        thread.join(60)
        manager.socket.close()
        os.close(fd)


def test_a_run_announces_itself_serves_and_leaves_in_order(tmp_path: Path) -> None:
    done = threading.Event()
    with _bench(tmp_path) as (hive, server, bench):
        server.faults.on_applied(lambda path, line: done.set() if '"state":"succeeded"' in line else None)
        with _running(bench, tmp_path) as (manager, join):
            manager.wait_for("READY=1")
            hive.submit(raw_grant(hive, hive.spawn_worker("worker-gpu"), "t1", "lease-1"))
            assert done.wait(60)
            bench.stop.set()
            join()
            manager.wait_for("STOPPING=1")
            assert [message.split("\n")[0] for message in manager.heard] == ["READY=1", "STOPPING=1"]
        fd = os.open(tmp_path, os.O_RDONLY)
        document = read_status(fd)
        os.close(fd)
        assert document is not None
        assert document["hive"] == "connected"
    with agent_on(server, tmp_path / "state", clock=bench.clock) as after:
        assert after.store.cursor.consumed_sequence == (1 if after.record("t1").terminal else 0)


def test_a_run_answers_the_watchdog_while_idle(tmp_path: Path) -> None:
    with _bench(tmp_path) as (_, _, bench), _running(bench, tmp_path, WATCHDOG_USEC="60000") as (manager, _):
        manager.wait_for("READY=1")
        for _ in range(5):
            manager.heard.clear()
            manager.wait_for("WATCHDOG=1")


def test_a_run_waits_for_a_hive_that_is_not_there_yet(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server), agent_on(server, tmp_path / "s", clock=clock) as bench:
        port = server.port
        server.stop()
        with _running(bench, tmp_path) as (manager, _):
            while bench.agent.totals.outages == 0:
                assert not bench.stop.wait(0.001)
            with ConsoleServer(hive, port=port, token=TOKEN):
                manager.wait_for("READY=1")
                bench.stop.set()
                manager.wait_for("STOPPING=1")
    assert bench.agent.totals.outages >= 1


def test_a_poisoned_journal_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(_: object) -> None:
        raise JournalPoisonedError("a write failed")

    with _bench(tmp_path) as (_, _, bench):
        monkeypatch.setattr(bench.agent, "pass_once", poisoned)
        with _running(bench, tmp_path) as (_, join), pytest.raises(JournalPoisonedError):
            join()


def test_a_stop_is_obeyed_between_two_steps(tmp_path: Path) -> None:
    """The step that is under way is finished; what is left is taken up by the next life."""
    with _bench(tmp_path) as (hive, server, bench):
        for number in (1, 2):
            worker = hive.spawn_worker("worker-gpu")
            hive.submit(raw_grant(hive, worker, f"t{number}", f"lease-{number}"))
        when_applied(server, LEASE_CTL, bench.stop.set)
        bench.passes(1)
        assert bench.record("t1").state is State.PERSISTED
        assert bench.record("t2").state is State.PREPARED
        assert set(hive.effects.values()) == {1}
        bench.stop.clear()
        bench.settle()
        assert len(hive.effects) == 2


def test_the_cursor_is_saved_in_strides_and_when_idle(tmp_path: Path) -> None:
    with _bench(tmp_path) as (hive, _, bench):
        worker = hive.spawn_worker("worker-gpu").worker_id
        saved = []
        for number in range(1, 36):
            hive.submit(raw_grant(hive, worker, f"t{number}", f"lease-{number}"))
            bench.agent.pass_once(bench.stop)
            saved.append(bench.store.cursor.consumed_sequence)
        assert saved[30] == 0
        assert saved[31] == 32
        assert saved[34] == 32
        bench.passes(1)
        assert bench.store.cursor.consumed_sequence == 35
        assert bench.store.cursor.completed_through(1) == 35


@pytest.mark.parametrize("attached", [False, True], ids=["never-attached", "attached-before"])
def test_a_refused_credential_ends_only_an_agent_that_never_attached(
    tmp_path: Path, attached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first pass may be long; a refusal in the middle of it is an outage as any other."""

    def refused(stop: object) -> None:
        raise HiveAuthError("the token is refused")

    clock = ManualClock()
    with running_hive(clock=clock) as (_, server), agent_on(server, tmp_path / "s", clock=clock) as bench:
        if attached:
            bench.namespace.connect()
        monkeypatch.setattr(bench.agent, "pass_once", refused)
        if attached:
            assert bench.agent._one_round(NEVER, first=True) > 0
            assert bench.agent.hive_state == "the hive refuses our credential"
        else:
            with pytest.raises(HiveAuthError):
                bench.agent._one_round(NEVER, first=True)
