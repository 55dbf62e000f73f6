from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from open_connection import connected_to
from private_roots import opened
from release_support import CANARY
from serving_caller import Caller
from serving_support import (
    BASE_ANSWERS,
    QUICK,
    TRANSFORMERS,
    VLLM,
    Running,
    answers,
    expected,
    free_port,
    instance,
    start_double,
)

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.blue_green import BlueGreen, Patience, drive
from ticket_agent.peft.release.canary import Finding, Reference
from ticket_agent.peft.release.canary_run import BASE, INCUMBENT, CanaryRun
from ticket_agent.peft.release.guard import Guard
from ticket_agent.peft.release.loopback import LoopbackClient
from ticket_agent.peft.release.serving_pointer import PointerFile, ServingPointer
from ticket_agent.peft.release.switching import (
    Act,
    End,
    Event,
    History,
    Outcome,
    Step,
    append,
    decide,
    history_members,
    history_of,
)
from ticket_agent.peft.release.tcp_table import connections_to
from ticket_agent.peft.roots import open_root

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from pathlib import Path

    from ticket_agent.peft.release.canary import CanaryReport
    from ticket_agent.peft.release.serving import Backend, Instance

PATIENCE = Patience(ready_s=60.0, settle_s=0.2, drain_s=30.0, gone_s=30.0)
"""Long enough for a busy host, but for what is waited for until the end of its time."""
GONE_S = 2.0
"""Where nobody has told a server to end."""


class DiedError(Exception):
    """The agent was killed here."""


class Doubles:
    """Processes of the stand-in; they outlive whoever drives the switch."""

    def __init__(self, directory: Path, backend: Backend) -> None:
        self.directory = directory
        self.backend = backend
        self.specs: dict[str, dict[str, Any]] = {}
        self.known: dict[str, Running] = {}
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.killed: list[str] = []
        self.unstoppable = self.unkillable = False

    def start(self, instance: Instance) -> None:
        self.started.append(instance.name)
        if self.specs.get(instance.name, {}).get("fault") == "never-starts":
            raise PeftError("no memory")
        spec = {"start_s": 0.01} | self.specs.get(instance.name, {})
        self.known[instance.name] = start_double(self.directory, self.backend, instance, **spec)

    def running(self, instance: Instance) -> bool | None:
        found = self.known.get(instance.name)
        return found is not None and found.alive()

    def stop(self, instance: Instance) -> None:
        self.stopped.append(instance.name)
        if instance.name in self.known and not self.unstoppable:
            self.known[instance.name].terminate()

    def kill(self, instance: Instance) -> None:
        self.killed.append(instance.name)
        if instance.name in self.known and not self.unkillable:
            self.known[instance.name].process.kill()

    def close(self) -> None:
        for running in self.known.values():
            running.process.kill()
            running.process.wait()
            if running.process.stdout is not None:
                running.process.stdout.close()


class Scene:
    """Generation 1 serves, generation 2 is to replace it, and somebody asks all the time."""

    def __init__(self, directory: Path, backend: Backend, pointer: PointerFile, spec: dict[str, Any]) -> None:
        self.backend = backend
        self.servers = Doubles(directory, backend)
        self.incumbent = instance(1, port=free_port())
        self.servers.specs[self.incumbent.name] = spec
        self.candidate = instance(2, port=free_port())
        self.pointer = pointer
        self.file = directory / "history.json"
        self.allowed = True
        self.dies_at: Event | None = None
        self.reports: list[CanaryReport] = []
        self.servers.start(self.incumbent)
        self.pointer.move(None, ServingPointer.of(self.incumbent))
        self.caller = Caller(pointer, backend, answers, settle_s=PATIENCE.settle_s)

    def client(self, made: Instance) -> LoopbackClient:
        return LoopbackClient(port=made.port, token=made.token)

    def canary(self) -> CanaryReport:
        def texts(generation: int) -> tuple[str, ...]:
            return tuple("".join(answers(generation)[prompt]) for prompt in CANARY.prompts)

        references = (Reference(kind=BASE, texts=texts(0)), Reference(kind=INCUMBENT, texts=texts(1)))
        return CanaryRun(
            client=self.client(self.candidate),
            backend=self.backend,
            instance=self.candidate,
            canary=QUICK,
            expected=expected(2),
            references=references,
            identity=self.servers.known[self.candidate.name].identity,
            first_s=60.0,
        ).run()

    def hands(self, patience: Patience = PATIENCE) -> BlueGreen:
        return BlueGreen(
            backend=self.backend,
            incumbent=self.incumbent,
            candidate=self.candidate,
            servers=self.servers,
            clients=self.client,
            pointer=self.pointer,
            canary=self.canary,
            patience=patience,
        )

    def record(self, history: History) -> None:
        self.file.write_text(json.dumps(history_members(history)), encoding="utf-8")
        if history[-1] == self.dies_at:
            raise DiedError

    def history(self) -> History:
        if not self.file.exists():
            return ()
        return history_of(json.loads(self.file.read_text(encoding="utf-8")))

    def drive(self, patience: Patience = PATIENCE) -> End:
        hands = self.hands(patience)
        try:
            return drive(self.history(), hands, record=self.record, authority=lambda: self.allowed)
        finally:
            self.reports += hands.reports

    def names(self) -> int:
        found = self.pointer.read()
        assert found is not None
        return found.generation


@contextmanager
def scene(tmp_path: Path, backend: Backend = TRANSFORMERS, **spec: Any) -> Iterator[Scene]:
    """The scene; ``spec`` is about the incumbent's server."""
    opened(tmp_path / "root").close()
    with open_root(
        str(tmp_path / "root"), label="root", owner_uid=os.geteuid(), create=False, private=True
    ) as root:
        made = Scene(tmp_path, backend, PointerFile(root, Guard()), spec)
        hands = made.hands()
        try:
            while hands.look(Step.VERIFY_OLD) is not Outcome.DONE:
                time.sleep(0.01)
            made.caller.thread.start()
            made.caller.hear(1)
            yield made
        finally:
            made.caller.stop.set()
            if made.caller.thread.ident is not None:
                made.caller.thread.join()
            made.servers.close()


@pytest.mark.parametrize("backend", [TRANSFORMERS, VLLM], ids=lambda backend: backend.kind)
def test_the_incumbent_answers_until_the_candidate_does(
    backend: Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scene(tmp_path, backend) as made:
        assert made.drive() is End.SWITCHED
        made.caller.hear(2)
        assert not made.servers.running(made.incumbent)
        assert made.names() == 2
    caller = made.caller
    with capsys.disabled():
        print(
            f"\n{backend.kind}: {len(caller.answers)} answers, longest gap {caller.longest_gap_ms():.0f} ms"
        )
    assert caller.failures == []
    assert caller.generations() == [1, 2]
    assert caller.longest_gap_ms() < 30_000, "an answer hung"
    assert made.servers.started.count(made.candidate.name) == 1
    assert made.servers.stopped == [made.incumbent.name]


@pytest.mark.parametrize(
    "fault",
    ["never-starts", "other-list", "open", "wrong-name", "base-output", "crash-on-first-use", "stale-cache"],
)
def test_a_bad_candidate_is_taken_away(fault: str, tmp_path: Path) -> None:
    with scene(tmp_path) as made:
        made.servers.specs[made.candidate.name] = {"fault": fault}
        assert made.drive() is End.RESTORED
        made.caller.hear(1)
        assert not made.servers.running(made.candidate)
        assert made.servers.running(made.incumbent)
        assert made.names() == 1
    assert made.caller.failures == []
    assert made.caller.generations() == [1]
    assert made.servers.stopped == [made.candidate.name]


def test_a_candidate_that_goes_bad_after_the_switch_is_left_again(tmp_path: Path) -> None:
    with scene(tmp_path) as made:
        hands = made.hands()
        good, bad = iter([True]), made.canary

        def canary() -> CanaryReport:
            report = bad()
            return report if next(good, False) else replace(report, findings=FINDINGS)

        hands.canary = canary
        end = drive((), hands, record=made.record, authority=lambda: True)
        made.caller.hear(1)
        assert end is End.RESTORED
        assert made.names() == 1
        assert not made.servers.running(made.candidate)
    assert made.caller.failures == []
    assert Event(Step.SWITCH_BACK, Outcome.DONE) in made.history()


FINDINGS = (Finding(rule="test", text="bad"),)


def every_event() -> list[Event]:
    history: History = ()
    while (step := (decision := decide(history, authority=True)).step) is not None:
        history = append(history, Event(step, None if decision.act is Act.BEGIN else Outcome.DONE))
    return list(history)


@pytest.mark.parametrize("event", every_event(), ids=lambda event: f"{event.step}-{event.outcome}")
def test_the_agent_dies_after_any_record(event: Event, tmp_path: Path) -> None:
    with scene(tmp_path) as made:
        made.dies_at = event
        with pytest.raises(DiedError):
            made.drive()
        made.dies_at = None
        untold = event == Event(Step.STOP_OLD, None)
        end = made.drive(replace(PATIENCE, gone_s=GONE_S) if untold else PATIENCE)
        # An effect that was recorded and did not happen is seen not to have happened, and undone as failed.
        undone = event in {Event(Step.START, None), Event(Step.SWITCH, None)}
        expected_end = End.RESTORED if undone else End.SWITCHED
        assert end is expected_end
        serves = 1 if expected_end is End.RESTORED else 2
        assert made.names() == serves
        made.caller.hear(serves)
    assert made.caller.failures == []
    assert made.caller.answers[-1][1] == serves
    assert made.servers.started.count(made.candidate.name) <= 1
    assert len(made.servers.stopped) <= 1
    assert made.servers.killed == ([made.incumbent.name] if untold else [])


def test_lost_authority_before_the_switch_takes_the_candidate_away(tmp_path: Path) -> None:
    with scene(tmp_path) as made:
        made.dies_at = Event(Step.CANARY, Outcome.DONE)
        with pytest.raises(DiedError):
            made.drive()
        made.allowed, made.dies_at = False, None
        assert made.drive() is End.RESTORED
        assert made.names() == 1
        assert not made.servers.running(made.candidate)
    assert made.caller.failures == []


def test_an_answer_that_has_begun_is_finished_before_the_old_server_stops(tmp_path: Path) -> None:
    with scene(tmp_path, token_s=0.2) as made:
        assert made.drive() is End.SWITCHED
        assert not made.servers.running(made.incumbent)
    assert made.caller.failures == []
    assert Event(Step.DRAIN, Outcome.DONE) in made.history()


def test_a_connection_that_never_ends_does_not_hold_up_the_switch(tmp_path: Path) -> None:
    with scene(tmp_path) as made:
        made.dies_at = Event(Step.VERIFY, Outcome.DONE)
        with pytest.raises(DiedError):
            made.drive()
        made.dies_at = None
        held = holding(made.incumbent.port)
        try:
            made.servers.unstoppable = made.servers.unkillable = True
            assert made.drive(replace(PATIENCE, drain_s=0.3, gone_s=0.2)) is End.LINGERING
        finally:
            held.close()
    assert Event(Step.DRAIN, Outcome.FAILED) in made.history()
    assert Event(Step.OLD_KILLED, Outcome.FAILED) in made.history()


def holding(port: int) -> socket.socket:
    """Connect; the kernel lists the connection when this returns."""
    held = connected_to(port)
    while not connections_to(port):
        time.sleep(0.01)
    return held


def test_somebody_elses_pointer_is_left_alone(tmp_path: Path) -> None:
    with scene(tmp_path) as made:
        other = instance(7, port=made.incumbent.port)
        made.caller.stop.set()
        made.pointer.move(ServingPointer.of(made.incumbent), ServingPointer.of(other))
        assert made.drive() is End.STUCK
        assert made.names() == 7


def test_base_answers_are_not_those_of_any_generation() -> None:
    assert all(answers(n)[prompt] != BASE_ANSWERS[prompt] for n in (1, 2) for prompt in CANARY.prompts)


def test_the_old_server_is_left_alone_for_a_while_before_it_counts_as_drained(tmp_path: Path) -> None:
    now = [100.0]
    with scene(tmp_path) as made:
        made.caller.stop.set()
        made.caller.thread.join()
        hands = replace(made.hands(replace(PATIENCE, settle_s=1.0)), clock=lambda: now[0])
        assert hands.look(Step.DRAIN) is None
        now[0] += 0.9
        assert hands.look(Step.DRAIN) is None
        held = holding(made.incumbent.port)
        now[0] += 0.2
        assert hands.look(Step.DRAIN) is None
        held.close()
        while connections_to(made.incumbent.port):
            time.sleep(0.01)
        now[0] += 0.9
        assert hands.look(Step.DRAIN) is None
        now[0] += 0.2
        assert hands.look(Step.DRAIN) is Outcome.DONE
