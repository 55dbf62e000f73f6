"""A private root with two generations of an adapter, real server processes, and the control phases on it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from private_roots import opened, store_bundle
from release_support import CANARY, profile, release_input, request
from serving_caller import Caller
from serving_support import QUICK, TOKEN, expected, free_port

from ticket_agent.peft.release.behaviour import BEHAVIOUR_FILE, Behaviour
from ticket_agent.peft.release.bundle import ADAPTER_CONFIG, ADAPTER_WEIGHTS, adapter_identity, parse_bundle
from ticket_agent.peft.release.canary import Expected
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.confine import Unconfined
from ticket_agent.peft.release.consistency import successor
from ticket_agent.peft.release.control import run_control
from ticket_agent.peft.release.control_job import ControlFacts
from ticket_agent.peft.release.deployment import DeploymentState
from ticket_agent.peft.release.inputs import encode_input
from ticket_agent.peft.release.known_server import KnownServer
from ticket_agent.peft.release.launch_errors import PhaseStopError
from ticket_agent.peft.release.launcher import ConfinedLauncher
from ticket_agent.peft.release.markers import Owner, RuntimeSelection
from ticket_agent.peft.release.profile import ProfileSchema, encode_profile
from ticket_agent.peft.release.release_config import ReleaseConfig
from ticket_agent.peft.release.request import Entry, encode_request
from ticket_agent.peft.release.server_room import ServerRoom
from ticket_agent.peft.release.serving_pointer import ServingPointer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.peft.release.launcher import Launcher
    from ticket_agent.peft.release.observation import PhaseObservation
    from ticket_agent.peft.release.phases import Phase
    from ticket_agent.peft.release.private_root import PrivateRoot

SUPPORT = Path(__file__).parent
OPERATION = "release-one"
MODEL = "assistant"
OLD, NEW = "first.server", "release-one.server"
CLOSE_S = 60.0
REAL_TIMES = {
    "ready_s": 400.0,
    "settle_s": 0.3,
    "drain_s": 60.0,
    "gone_s": 60.0,
    "soak_s": 1.0,
    "soak_pause_s": 0.1,
}
# What ends as soon as something has happened is long enough for a busy host; tests that wait for its end
# have times of their own.
TIMES = {
    "ready_s": 60.0,
    "settle_s": 0.05,
    "drain_s": 30.0,
    "gone_s": 20.0,
    "soak_s": 0.15,
    "soak_pause_s": 0.05,
}


def standin(folder: Path) -> Path:
    """Make the interpreter of servers; return its path."""
    place = folder / "standin" / "bin"
    place.mkdir(parents=True)
    shutil.copy(SUPPORT / "serving_double.py", place)
    (place / "prompts.json").write_text(json.dumps(QUICK.prompts), encoding="utf-8")
    (place / "faults").mkdir()
    program = place / "python"
    program.write_text(
        f"#!{sys.executable} -IS\n{(SUPPORT / 'standin_python.py').read_text(encoding='utf-8')}", "utf-8"
    )
    program.chmod(0o755)
    return program


class ControlScene:
    """Generation ``generation`` serves and is deployed; the release of the next one is under way."""

    def __init__(
        self,
        folder: Path,
        *,
        generation: int = 1,
        entry: Entry = Entry.IMPORT,
        backend: str = "transformers-serve-local",
        launcher: Launcher | None = None,
        models: Path | None = None,
    ) -> None:
        """``models``: real ones, made by ``serving_models``, served by the interpreter of this test."""
        self.models = models
        self.folder = folder
        self.path = folder / "root"
        self.root: PrivateRoot = opened(self.path)
        self.generation = generation
        (folder / "token").write_text(f"{TOKEN}\n", encoding="utf-8")
        (folder / "token").chmod(0o600)
        self.config = ReleaseConfig(
            root=self.path,
            python=standin(folder) if models is None else Path(sys.executable),
            ports=tuple(sorted({free_port() for _ in range(4)})),
            token_file=folder / "token",
            unconfined=True,
            **(TIMES if models is None else REAL_TIMES),  # type: ignore[arg-type]
        )
        self.launcher = launcher or ConfinedLauncher(Unconfined())
        self.room = ServerRoom(self.path, self.launcher, self.config)
        self._documents(entry, backend)
        self.expires_unix_ms = now() + 600_000
        self.numbers = iter(range(1000))

    def _documents(self, entry: Entry, backend: str) -> None:
        base = store_bundle(self.root, self._files("base"))
        made = profile(ProfileSchema.OURS)
        versions = dict(made.versions) | {
            "transformers": "5.24.0" if self.models is None else version("transformers")
        }
        if backend == "vllm-local":
            for name in ("fastapi", "openai", "pydantic", "uvicorn"):
                versions.pop(name, None)
            versions["vllm"] = "0.11.0"
        self.profile = replace(
            made,
            base=base,
            canary=QUICK if self.models is None else replace(CANARY, maximum_latency_ms=30_000),
            versions=tuple(versions.items()),
            stack=replace(made.stack, serving=backend),
        )
        self.adapters = {
            number: store_bundle(self.root, self._files(name)) for number, name in ((1, "one"), (2, "two"))
        }
        self.old_bundle = self.adapters[1] if self.generation else base
        self.new_bundle = self.adapters[2]
        self.new_sha256 = self.identity(self.new_bundle)
        old = self.identity(self.old_bundle) if self.generation else base
        self.baseline = DeploymentState(
            generation=self.generation,
            adapter_sha256=old if self.generation else None,
            served_artifact_sha256=old,
            runtime_sha256=self.profile.runtime_sha256,
            healthy=True,
            rollback_verified=True,
        )
        value = release_input(self.profile, entry)
        if value.adapter is not None:
            value = replace(value, adapter=replace(value.adapter, bundle_sha256=self.new_bundle))
        store = self.root.objects.store
        assert self.profile.evaluation_policy is not None
        self.request = request(
            operation_id=OPERATION,
            model_id=MODEL,
            entry=entry,
            profile_sha256=store(encode_profile(self.profile)),
            input_sha256=store(encode_input(value)),
            evaluation_policy=self.profile.evaluation_policy,
            baseline=self.baseline,
        )
        self.request_sha256 = store(encode_request(self.request))
        self.promoted = successor(self.request, self.new_sha256)
        self.old_runtime = RuntimeSelection(
            bundle_sha256=self.old_bundle, adapter_sha256=self.baseline.adapter_sha256
        )
        self.new_runtime = RuntimeSelection(bundle_sha256=self.new_bundle, adapter_sha256=self.new_sha256)
        self.owner = Owner(operation_id=OPERATION, request_sha256=self.request_sha256)
        with self.root.locked():
            for bundle in {base, self.old_bundle}:
                self.root.materialise(bundle)
            self.root.control.initialise(self.baseline)
            self.root.control.select_runtime(self.old_runtime)
            self.root.control.claim(self.owner)
        self.evaluated = self.folder / "evaluated"
        self.evaluated.mkdir()
        next_one = self.generation + 1
        data = Behaviour(baseline=self.said(self.generation), candidate=self.said(next_one)).encode()
        (self.evaluated / BEHAVIOUR_FILE).write_bytes(data)
        self.behaviour_sha256 = digest(data)

    def _files(self, name: str) -> dict[str, bytes]:
        if self.models is not None:
            wanted = None if name == "base" else (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
            return {
                path.name: path.read_bytes()
                for path in sorted((self.models / name).iterdir())
                if wanted is None or path.name in wanted
            }
        if name == "base":
            return {"config.json": b"{}", "tokenizer.json": b"{}"}
        return {ADAPTER_CONFIG: b"{}", ADAPTER_WEIGHTS: {"one": b"weights 1", "two": b"weights 2"}[name]}

    def said(self, generation: int) -> tuple[Expected, ...]:
        """What a generation answers to each prompt."""
        if self.models is None:
            return expected(generation)
        told = json.loads((self.models / "expected.json").read_bytes())
        return tuple(Expected(pieces=tuple(pieces)) for pieces in told[("base", "one", "two")[generation]])

    def answers(self, generation: int) -> dict[str, list[str]]:
        """Likewise, by the prompts."""
        told = zip(self.profile.canary.prompts, self.said(generation), strict=True)
        return {prompt: list(answer.pieces) for prompt, answer in told}

    def identity(self, bundle: str) -> str:
        manifest = parse_bundle(self.root.objects.load(bundle))
        return adapter_identity(manifest.file(ADAPTER_CONFIG), manifest.file(ADAPTER_WEIGHTS))

    # -- servers --------------------------------------------------------------------------------------------

    def start(self, launch_id: str, generation: int, artifact: str, bundle: str) -> KnownServer:
        made = self.room.instance(
            launch_id,
            self.profile,
            model_id=MODEL,
            generation=generation,
            artifact_sha256=artifact,
            bundle_sha256=bundle,
            port=self.room.free_port(),
        )
        self.room.start(
            launch_id, made, backend=self.room.backend(self.profile), caps=self.profile.stack.caps
        )
        return self.server(launch_id)

    def start_old(self, launch_id: str = OLD) -> KnownServer:
        served = self.baseline.served_artifact_sha256
        return self.start(launch_id, self.generation, served, self.old_bundle)

    def start_new(self, launch_id: str = NEW) -> KnownServer:
        with self.root.locked():
            self.root.materialise(self.new_bundle)
        return self.start(launch_id, self.generation + 1, self.new_sha256, self.new_bundle)

    def server(self, launch_id: str) -> KnownServer:
        found = self.room.known(launch_id)
        assert found is not None
        return found

    def point(self, server: KnownServer) -> None:
        with self.root.locked():
            self.root.pointer.move(self.root.pointer.read(), ServingPointer.of(server.instance))

    def fault(self, generation: int, what: str) -> None:
        artifact = self.new_sha256 if generation > self.generation else self.baseline.served_artifact_sha256
        name = f"{MODEL}-g{generation}-{artifact[:12]}"
        (self.config.python.parent / "faults" / name).write_text(what, encoding="utf-8")

    def ready(self, *launch_ids: str) -> None:
        """Wait until these servers listen."""
        from ticket_agent.peft.release.readiness import wait_ready  # noqa: PLC0415

        for launch_id in launch_ids:
            known = self.server(launch_id)
            wait_ready(
                known.client(),
                known.backend,
                known.instance,
                alive=lambda: True,
                deadline_s=self.config.ready_s,
            )

    @contextmanager
    def somebody_asks(self) -> Iterator[Caller]:
        pause_s = 0.005 if self.models is None else 0.05
        backend = self.room.backend(self.profile)
        caller = Caller(
            self.root.pointer, backend, self.answers, settle_s=self.config.settle_s, pause_s=pause_s
        )
        caller.thread.start()
        try:
            yield caller
        finally:
            caller.stop.set()
            caller.thread.join()

    def close(self) -> None:
        with closing(self.root):
            for server in self.room.all():
                server.phase.stop(timeout_s=CLOSE_S)

    # -- phases ---------------------------------------------------------------------------------------------

    def prepare(self, phase: Phase, **changes: Any) -> Path:
        """Make the job directory of a phase."""
        job = self.folder / f"job-{phase}-{next(self.numbers)}"
        for name in ("in", "out"):
            (job / name).mkdir(parents=True)
        members: dict[str, Any] = {
            "operation_id": OPERATION,
            "request_sha256": self.request_sha256,
            "phase": phase,
            "native_identity": "test:1",
            "recovery": None,
            "candidate": NEW,
            "incumbent": OLD,
            "candidate_sha256": self.new_sha256,
            "candidate_bundle_sha256": self.new_bundle,
            "evaluate_out": str(self.evaluated),
            "behaviour_sha256": self.behaviour_sha256,
            "expires_unix_ms": self.expires_unix_ms,
        }
        facts = ControlFacts.of(self.config, **(members | changes))
        (job / "in" / "control.json").write_bytes(facts.encode())
        return job

    def run(self, phase: Phase, **changes: Any) -> PhaseObservation:
        """Do a phase in this process."""
        return run_control(phase, self.prepare(phase, **changes), now_unix_ms=now)

    def deployed(self) -> tuple[str, int, bool, bool]:
        """What the root says: whose pointer, which generation, and whether the runtime fits that."""
        pointer = self.root.pointer.read()
        assert pointer is not None
        state = self.root.control.accepted()
        runtime = self.root.control.runtime()
        wanted = {self.baseline: self.old_runtime, self.promoted: self.new_runtime}[state]
        return (
            pointer.name.split("-")[1],
            state.generation,
            runtime == wanted,
            pointer_is_alive(self, pointer),
        )


@contextmanager
def slow_to_die() -> Iterator[list[threading.Timer]]:
    """Servers that nobody can ask to end, and that die after a kill, but not within the time it waits."""
    dying: list[threading.Timer] = []
    kill = KnownServer.kill

    def unheard(server: KnownServer) -> None:
        raise PhaseStopError("nobody could be asked")

    def slowly(server: KnownServer) -> None:
        dying.append(threading.Timer(0.3, kill, [server]))
        dying[-1].start()
        raise PhaseStopError("it is still there")

    with pytest.MonkeyPatch.context() as slow:
        slow.setattr(KnownServer, "stop", unheard)
        slow.setattr(KnownServer, "kill", slowly)
        yield dying
    for timer in dying:
        timer.join()


def pointer_is_alive(scene: ControlScene, pointer: ServingPointer) -> bool:
    found = scene.room.serving(pointer)
    return found is not None and found.running() is True


def now() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def scene(folder: Path, **how: Any) -> Iterator[ControlScene]:
    os.umask(0o077)
    made = ControlScene(folder, **how)
    try:
        yield made
    finally:
        made.close()
