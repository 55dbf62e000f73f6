"""Releases as their users see them: a hive, a release directory, the daemon, and somebody who asks."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from agent_support import AgentProcess
from hive_support import raw_ticket, running_hive
from release_lab import MODEL, Lab
from serving_support import free_port

from ticket_agent.journal.view import read_journal
from ticket_agent.peft.release.detect import detect
from ticket_agent.peft.release.layout import OperationFiles
from ticket_agent.peft.release.loopback import LoopbackClient
from ticket_agent.peft.release.private_root import PrivateRoot
from ticket_agent.peft.release.profile import parse_profile
from ticket_agent.peft.release.readiness import ask, wait_ready
from ticket_agent.peft.release.release_config import load_release_config
from ticket_agent.peft.release.run_files import EXIT_FILE, read_running
from ticket_agent.peft.release.running_phase import RunningPhase
from ticket_agent.peft.release.server_room import ServerRoom, read_token
from ticket_agent.peft.release.serving_errors import ServerUnreachableError, ServingError
from ticket_agent.peft.release.serving_pointer import ServingPointer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ticket_agent.hive.reference import ConsoleServer, Faults, ReferenceHive
    from ticket_agent.journal.values import Record
    from ticket_agent.peft.release.deployment import DeploymentState
    from ticket_agent.peft.release.known_server import KnownServer
    from ticket_agent.peft.release.prepare import PreparedRelease
    from ticket_agent.peft.release.serving import Backend

PATIENCE_S = 500.0
"""For anything of a release; a machine that does other things too must not fail a test."""
QUICK = {
    "soak_s": 0.6,
    "soak_pause_s": 0.2,
    "settle_s": 0.5,
    "drain_s": 60.0,
    "gone_s": 60.0,
    "ready_s": 400.0,
    # An agent that a busy machine holds up for longer ends what it has not asked about.
    "authority_grace_s": 60.0,
}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def wait_for(done: Callable[[], bool], what: str, *, patience_s: float = PATIENCE_S) -> None:
    """Look until it is so."""
    end = time.monotonic() + patience_s
    while not done():
        if time.monotonic() > end:
            raise AssertionError(f"after {patience_s:g} s still not: {what}")
        time.sleep(0.02)


@dataclass(kw_only=True)
class Host:
    """One host with everything that releases take; the base model is served when it is made."""

    hive: ReferenceHive
    server: ConsoleServer
    lab: Lab
    config: Path
    folder: Path
    workers: dict[str, str] = field(default_factory=dict)
    expiry: dict[str, int] = field(default_factory=dict)
    agents: list[AgentProcess] = field(default_factory=list)

    @property
    def state_dir(self) -> Path:
        return self.folder / "state"

    def agent(self, *options: str) -> AgentProcess:
        """Start the daemon."""
        named = ("--peft-release-config", str(self.config))
        agent = AgentProcess(self.state_dir, self.server.port, self.folder, *named, *options)
        self.agents.append(agent)
        return agent

    # -- tickets ----------------------------------------------------------------------------------------

    def submit(
        self,
        ticket_id: str,
        prepared: PreparedRelease,
        *,
        life_ms: int = 600_000,
        **args: Any,
    ) -> None:
        """Have a ticket for a prepared release admitted, with a Worker of its own."""
        worker = self.hive.spawn_worker("worker-lora")
        self.workers[ticket_id] = worker.worker_id
        self.expiry[ticket_id] = now_ms() + life_ms
        self.hive.submit(
            raw_ticket(
                worker,
                "peft.release",
                ticket_id=ticket_id,
                operation_id=prepared.request.operation_id,
                subject=prepared.request.model_id,
                args={"request_sha256": prepared.request_sha256, **args},
                expires=self.expiry[ticket_id],
            )
        )

    def states(self, ticket_id: str) -> list[str]:
        """States of all results of a ticket, in the order in which they are in the logs."""
        found = []
        for log in ("status", "deadletter"):
            for line in self.hive.tail(f"/host/tickets/{log}"):
                told = json.loads(line)
                if told["id"] == ticket_id:
                    found.append(told["state"])
        return found

    def result(self, ticket_id: str) -> tuple[str, str]:
        """State and message of the one terminal result."""
        (line,) = self.hive.terminal_lines((ticket_id, f"key-{ticket_id}"))
        told = json.loads(line)
        return told["state"], told["message"]

    def ended(self, ticket_id: str) -> tuple[str, str]:
        """Wait for the result."""
        key = (ticket_id, f"key-{ticket_id}")
        wait_for(lambda: bool(self.hive.terminal_lines(key)), f"a result of {ticket_id}")
        return self.result(ticket_id)

    def found(self, ticket_id: str) -> Record | None:
        """What the agent's journal says of a ticket; None while it says nothing."""
        records = read_journal(self.state_dir).records.values()
        return next((record for record in records if json.loads(record.request)["id"] == ticket_id), None)

    def record(self, ticket_id: str) -> Record:
        """What the agent's journal says of a ticket."""
        record = self.found(ticket_id)
        assert record is not None, f"{ticket_id} is not in the journal"
        return record

    # -- the release directory ----------------------------------------------------------------------------

    def files(self, operation: str) -> OperationFiles:
        return OperationFiles(root=self.lab.config.root, operation_id=operation)

    def runs(self, operation: str, phase: str) -> bool:
        """Whether the process of a phase has begun."""
        try:
            fd = os.open(self.files(operation).path / f"{phase}.run", os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return False
        try:
            return read_running(fd) is not None
        finally:
            os.close(fd)

    def ending(self, operation: str, phase: str) -> str | None:
        """Why the process of a phase ended; None while it runs."""
        try:
            data = (self.files(operation).path / f"{phase}.run" / EXIT_FILE).read_bytes().strip(b"\0 \n")
        except FileNotFoundError:
            return None
        return str(json.loads(data)["reason"]) if data else None

    def await_phase(self, operation: str, phase: str) -> None:
        wait_for(lambda: self.runs(operation, phase), f"{phase} of {operation} runs")

    def accepted(self) -> DeploymentState:
        with self.lab.opened() as root:
            return root.control.accepted()

    def pointer(self) -> ServingPointer:
        with self.lab.opened() as root:
            found = root.pointer.read()
        assert found is not None
        return found

    def room(self) -> ServerRoom:
        return ServerRoom(self.lab.config.root, detect(unconfined=True).launcher, self.lab.config)

    def servers(self) -> list[KnownServer]:
        """Those that run."""
        return [server for server in self.room().all() if server.running()]

    def serve_base(self, prepared: PreparedRelease) -> None:
        """Serve what is deployed before the first release."""
        room = self.room()
        with self.lab.opened() as root:
            profile = parse_profile(root.objects.load(prepared.profile_sha256))
            instance = room.instance(
                "serve-0",
                profile,
                model_id=MODEL,
                generation=0,
                artifact_sha256=profile.base,
                bundle_sha256=profile.base,
                port=room.free_port(),
            )
            backend = room.backend(profile)
            room.start("serve-0", instance, backend=backend, caps=profile.stack.caps)
            known = room.known("serve-0")
            assert known is not None
            wait_ready(
                known.client(), backend, instance, alive=lambda: bool(known.running()), deadline_s=PATIENCE_S
            )
            with root.locked():
                root.pointer.move(None, ServingPointer.of(instance))

    def said(self, operation: str, who: str) -> list[str]:
        """What the evaluation of a release heard: of its ``candidate``, of its ``baseline``."""
        path = self.files(operation).path / "evaluate" / "out" / "behaviour.json"
        told = json.loads(path.read_bytes())[who]
        return ["".join(pieces) for pieces in told]


@contextmanager
def release_host(folder: Path, *, faults: Faults | None = None, **config: Any) -> Iterator[Host]:
    """A host for the body; ``config`` changes ``release.toml``. What still runs of it is ended afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    lab = Lab.make(folder / "lab", ports=(free_port(), free_port(), free_port()), python=Path(sys.executable))
    path = folder / "lab" / "release.toml"
    settings = QUICK | {"unconfined": True} | config
    kept = [line for line in path.read_text("utf-8").splitlines() if line.partition(" =")[0] not in settings]
    kept += [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    path.write_text("\n".join(kept) + "\n", "utf-8")
    canary = replace(lab.selection.canary, maximum_latency_ms=30_000)
    lab = Lab(
        folder=lab.folder,
        config=load_release_config(path),
        selection=replace(lab.selection, canary=canary),
    )
    with running_hive(clock=now_ms, faults=faults) as (hive, server):
        host = Host(hive=hive, server=server, lab=lab, config=path, folder=folder)
        try:
            yield host
        finally:
            for agent in host.agents:
                agent.kill()
            end_everything(lab)


def end_everything(lab: Lab) -> None:
    """End servers and phases of a release directory."""
    for known in ServerRoom(lab.config.root, None, lab.config).all():
        known.phase.stop(timeout_s=60)
    for path in (lab.config.root / "operations").glob("**/*.run"):
        record = path / "running.json"
        if record.exists():
            launch_id = json.loads(record.read_text())["launch_id"]
            RunningPhase(path, launch_id=launch_id).stop(timeout_s=60)


class Asker:
    """Somebody who asks all the time whatever the pointer names, as an application does.

    Whoever takes longer from the pointer to the server than a server is left alone has asked too late; see
    ``serving_caller``.
    """

    def __init__(
        self, host: Host, backend: Backend, prompts: tuple[str, ...], *, pause_s: float = 0.05
    ) -> None:
        self._root = host.lab.config.root
        self._settle_s = host.lab.config.settle_s
        self._token = read_token(host.lab.config.token_file)
        self._backend = backend
        self._prompts = prompts
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop)
        self.times: list[float] = []
        self.answers: dict[int, list[set[str]]] = {}
        """By generation, what each prompt was answered with."""
        self.failures: list[str] = []
        self.late: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def once(self, number: int) -> None:
        """Ask one question."""
        index = number % len(self._prompts)
        began = time.monotonic()
        found = self._pointer()
        client = LoopbackClient(port=found.port, token=self._token)
        prompt = self._prompts[index]
        try:
            said = ask(client, self._backend, found.name, prompt, max_tokens=8, deadline_s=120.0)
        except ServerUnreachableError as error:
            if not error.refused or time.monotonic() - began <= self._settle_s or self._pointer() == found:
                raise
            self.late.append(str(error))
            return
        self.times.append(time.monotonic())
        heard = self.answers.setdefault(found.generation, [set() for _ in self._prompts])
        heard[index].add(said.text)

    def _pointer(self) -> ServingPointer:
        with PrivateRoot.open(self._root, create=False) as root:
            found = root.pointer.read()
        assert found is not None
        return found

    def _loop(self) -> None:
        number = 0
        while not self._stop.wait(self._pause_s):
            try:
                self.once(number)
            except ServingError as error:
                self.failures.append(str(error))
            number += 1

    def longest_gap_s(self) -> float:
        return max(after - before for before, after in pairwise(self.times))
