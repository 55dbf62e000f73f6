"""Death at every durable step of a relayed ticket, and at what it does to either hive."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

import pytest
from agent_faults import STEPS, DyingFs, Killed, drop
from agent_support import AgentProcess
from hive_support import SPEC, STATUS, TOKEN, ManualClock, running_hive
from hypothesis import given, settings
from hypothesis import strategies as st
from relay_support import (
    ACTION,
    PATIENCE_S,
    arrived,
    journal_key,
    peers,
    perform,
    relaying,
    run_until,
    ticket,
)

from ticket_agent.hive.reference import Fault, FaultKind
from ticket_agent.journal.transitions import State
from ticket_agent.journal.view import read_journal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent_support import Bench
    from relay_support import Peers

    from ticket_agent.hive.reference import ConsoleServer, ReferenceHive

KEY = ("t1", "key-t1")


def once(hive: ReferenceHive, other: Peers, state_dir: Path) -> None:
    """What holds after every recovery, whatever died where."""
    assert len(other.taken["hive-b"]) == 1
    assert [spec.id for spec in arrived(other.hives["hive-b"])].count("t1") == 1
    (record,) = read_journal(state_dir).records.values()
    assert record.terminal
    assert record.staged is not None
    assert record.result is not None
    assert record.result.outcome == "confirmed"
    assert hive.terminal_lines(KEY) == [record.staged.line]


def whole(bench: Bench, other: Peers) -> None:
    """The peer performs what it has whenever it has it, until nothing is open."""

    def done() -> bool:
        perform(other.hives["hive-b"])
        return bool(bench.store.records) and not bench.store.open_records()

    run_until(bench, done)


@pytest.mark.parametrize("durable", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("step", STEPS)
def test_death_at_a_durable_step(tmp_path: Path, step: str, durable: bool) -> None:
    clock, state_dir = ManualClock(), tmp_path / "state"
    with running_hive(clock=clock) as (hive, server), peers() as other:
        hive.echo(SPEC, ticket())
        fs = DyingFs(STEPS.index(step), durable=durable)
        with relaying(server, state_dir, other.plan(), clock=clock, fs=fs) as bench:
            with pytest.raises(Killed):
                whole(bench, other)
            drop(bench)
        with relaying(server, state_dir, other.plan(), clock=clock) as bench:
            whole(bench, other)
        once(hive, other, state_dir)


def test_death_in_every_life_one_step_further(tmp_path: Path) -> None:
    clock, state_dir = ManualClock(), tmp_path / "state"
    with running_hive(clock=clock) as (hive, server), peers() as other:
        hive.echo(SPEC, ticket())
        died_in: list[State] = []
        while True:
            fs = DyingFs(0, durable=True)
            with relaying(server, state_dir, other.plan(), clock=clock, fs=fs) as bench:
                try:
                    whole(bench, other)
                    break
                except Killed:
                    drop(bench)
            (record,) = read_journal(state_dir).records.values()
            died_in.append(record.state)
        # A peer that could not be read for a while costs a note, which is durable too and no step.
        assert list(dict.fromkeys(died_in)) == list(State)
        once(hive, other, state_dir)


def _config(tmp_path: Path, other: Peers) -> Path:
    path = tmp_path / "agent.toml"
    text = f'[relay]\nactions = ["{ACTION}"]\n'
    for name, server in other.servers.items():
        text += (
            f'[[relay.peers]]\nname = "{name}"\ntransport = "console"\nhost = "127.0.0.1"\n'
            f'port = {server.port}\nauth_token = "env:PEER_TOKEN"\n'
        )
    path.write_text(text)
    return path


class Killer:
    """Kills the first life of the daemon, once, from within a console's thread."""

    def __init__(self) -> None:
        self.first: Future[AgentProcess] = Future()
        """It may be heard of before the test knows its number."""
        self._pending = [True]

    def strike(self) -> None:
        if self._pending:
            self._pending.pop()
            os.kill(self.first.result(PATIENCE_S).process.pid, signal.SIGKILL)

    def when_applied(self, server: ConsoleServer, path: str) -> None:
        def strike(applied: str, line: str) -> None:
            if applied == path and '"t1"' in line:
                self.strike()

        server.faults.on_applied(strike)

    def instead_of_applying(self, server: ConsoleServer, path: str) -> None:
        def dies(line: str) -> bool:
            self.strike()
            return True

        fault = Fault(kind=FaultKind.DROP_BEFORE, verb="ECHO", prefix=path, nth=1, predicate=dies)
        server.faults.add(fault)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("where", ["delivery", "publication", "refused delivery"])
def test_sigkill_of_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """The process dies while the peer, or this hive, has applied what it sent and has not answered yet."""
    monkeypatch.setenv("PEER_TOKEN", TOKEN)
    state_dir = tmp_path / "state"
    with running_hive() as (hive, server), peers() as other:
        killer = Killer()
        if where == "publication":
            killer.when_applied(server, STATUS)
        elif where == "delivery":
            killer.when_applied(other.servers["hive-b"], SPEC)
        else:
            killer.instead_of_applying(other.servers["hive-b"], SPEC)
        hive.echo(SPEC, ticket())
        options = ("--relay", "--config", str(_config(tmp_path, other)))
        first = AgentProcess(state_dir, server.port, tmp_path, *options)
        killer.first.set_result(first)

        def died() -> bool:
            perform(other.hives["hive-b"])
            return first.process.poll() is not None

        wait_for(died)
        assert first.process.returncode == -signal.SIGKILL, first.errors.read_text()
        second = AgentProcess(state_dir, server.port, tmp_path, *options)

        def settled() -> bool:
            perform(other.hives["hive-b"])
            assert second.process.poll() is None, second.errors.read_text()
            return bool(hive.terminal_lines(KEY)) and not open_keys(state_dir)

        wait_for(settled)
        assert second.terminate() == 0
        once(hive, other, state_dir)


def open_keys(state_dir: Path) -> list[str]:
    return [record.key for record in read_journal(state_dir).records.values() if not record.terminal]


def wait_for(done: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + patience_s
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


STEP = st.sampled_from(
    ["pass", "pass", "perform", "die", "submit", "drop-before", "drop-after", "err", "reboot-source"]
)


@settings(max_examples=10, deadline=None)
@given(st.lists(STEP, max_size=14))
def test_a_small_model(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    """Whatever happens in whatever order: every ticket arrives once, and every result comes back once."""
    state_dir = tmp_path_factory.mktemp("model") / "state"
    kinds = {"drop-before": FaultKind.DROP_BEFORE, "drop-after": FaultKind.DROP_AFTER, "err": FaultKind.ERR}
    submitted = ["t0"]
    with running_hive() as (hive, server), peers() as other:
        hive.echo(SPEC, ticket("t0"))
        life = relaying(server, state_dir, other.plan())
        bench = life.__enter__()
        try:
            for step in [*steps, "end"]:
                if step in kinds:
                    fault = Fault(kind=kinds[step], verb="ECHO", prefix=SPEC, nth=1)
                    other.servers["hive-b"].faults.clear()
                    other.servers["hive-b"].faults.add(fault)
                elif step == "perform":
                    perform(other.hives["hive-b"])
                elif step == "submit":
                    submitted.append(f"t{len(submitted)}")
                    hive.echo(SPEC, ticket(submitted[-1]))
                elif step == "reboot-source" and set(submitted) <= _known(bench):
                    hive.reboot()
                    server.kick()
                elif step == "pass":
                    bench.hurry()
                    bench.passes(3)
                elif step in {"die", "end"}:
                    if step == "die":
                        drop(bench)
                    life.__exit__(None, None, None)
                    life = relaying(server, state_dir, other.plan())
                    bench = life.__enter__()
            run_until(bench, lambda: set(submitted) <= _known(bench))
            whole(bench, other)
        finally:
            life.__exit__(None, None, None)
        assert sorted(spec.id for spec in arrived(other.hives["hive-b"])[1:]) == sorted(submitted)
        assert len(other.taken["hive-b"]) == len(submitted)
        for name in submitted:
            assert len(hive.terminal_lines((name, f"key-{name}"))) == 1
            assert read_journal(state_dir).records[journal_key(name)].terminal


def _known(bench: Bench) -> set[str]:
    return {key.split(":")[1].split("/")[0] for key in bench.store.records}
