"""Makes a phase ready and starts its process: the job directory, the servers, and the command.

Native phases run confined, with nothing but what they need in sight. The others are this agent's own code:
they work on the private root and talk to servers on the host's loopback.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.confine import Unconfined
from ticket_agent.peft.release.control_job import CONTROL_FILE, ControlFacts
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.interpreter import Interpreter, device_files
from ticket_agent.peft.release.launch_errors import LaunchRefusedError
from ticket_agent.peft.release.launcher import ConfinedLauncher
from ticket_agent.peft.release.layout import OperationFiles
from ticket_agent.peft.release.native.job import JobFacts
from ticket_agent.peft.release.phase_command import PhaseCommand, PhaseLimits
from ticket_agent.peft.release.phases import NATIVE_PHASES, Phase
from ticket_agent.peft.release.request import encode_request
from ticket_agent.peft.release.serving_errors import InstanceRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ticket_agent.journal.outcome import JsonValue
    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.release.launcher import Launcher
    from ticket_agent.peft.release.private_root import PrivateRoot
    from ticket_agent.peft.release.profile import Profile
    from ticket_agent.peft.release.release_config import ReleaseConfig
    from ticket_agent.peft.release.release_story import Story
    from ticket_agent.peft.release.resolve import ResolvedRelease
    from ticket_agent.peft.release.server_room import KnownServer, ServerRoom

__all__ = ["CANDIDATE", "INCUMBENT", "PhaseStarter"]

CANDIDATE: Final = "candidate"
INCUMBENT: Final = "incumbent"
"""Names of the servers that a release starts."""
NATIVE_NICENESS: Final = 3
"""Training and evaluation give way to the agent and to what is served: on a busy processor they get half of
what others get. Far less would starve them until their time is over."""
CONTROL_FILE_BYTES: Final = 2 << 30
CONTROL_PROCESSES: Final = 512
"""Caps of the phases that are this agent's own code."""
EXTRA_S: Final = 30.0
"""What a control phase may take beside everything that it waits for, in seconds."""
LEAST_S: Final = 1.0


class PhaseStarter:
    """Prepares and starts the phases of one release.

    Args:
        root: the private root.
        files: places of the operation, or of the attempt to recover it.
        config: of this host.
        launcher: confines the native phases.
        room: the servers.
        resolved: what the request names; asked for when a native phase is prepared.
        profile: of the release.
        expires_unix_ms: when the ticket expires.
        clock: in Unix milliseconds.
    """

    def __init__(
        self,
        *,
        root: PrivateRoot,
        files: OperationFiles,
        config: ReleaseConfig,
        launcher: Launcher,
        room: ServerRoom,
        resolved: Callable[[], ResolvedRelease],
        profile: Profile,
        expires_unix_ms: int,
        clock: Callable[[], int],
    ) -> None:
        self._root = root
        self._files = files
        self._config = config
        self._launcher = launcher
        self._control = ConfinedLauncher(Unconfined())
        self._room = room
        self._resolved = resolved
        self._profile = profile
        self._expires_unix_ms = expires_unix_ms
        self._clock = clock

    # -- preparing ----------------------------------------------------------------------------------------

    def prepare(self, story: Story, phase: Phase) -> dict[str, JsonValue]:
        """Make the job directory of a phase; return the phase's intent. May be repeated.

        Raises:
            PeftError: it cannot be made ready now.
        """
        launch_id = self._files.launch_id(phase.value)
        intent: dict[str, JsonValue] = {"phase": phase.value, "launch_id": launch_id}
        with self._job(phase) as inputs:
            if phase in NATIVE_PHASES:
                intent |= {"identity": f"{self._launcher.name}:{launch_id}"}
                self._write_native(inputs, story, phase, str(intent["identity"]))
            else:
                intent |= {"identity": f"control:{launch_id}"}
                intent |= self._servers(story, phase)
                inputs.write_file(CONTROL_FILE, self._facts(story, phase, intent).encode())
        return intent

    def launch(self, story: Story, phase: Phase, intent: dict[str, JsonValue]) -> Callable[[], None]:
        """See :class:`Starter`; with the phase starts the server that it is about.

        What is returned uses nothing of the open root, so that this may be closed meanwhile.
        """
        command = self._native(phase) if phase in NATIVE_PHASES else self._own(phase)
        launcher = self._launcher if phase in NATIVE_PHASES else self._control
        server: Callable[[], None] | None = None
        if phase is Phase.LOAD:
            server = self._candidate(story, intent)
        elif phase is Phase.ROLLBACK:
            server = self._incumbent_again(intent)

        def start() -> None:
            if server is not None:
                server()
            launcher.start(command)

        return start

    @contextmanager
    def _job(self, phase: Phase) -> Iterator[Directory]:
        with self._root.operation(self._files.operation_id) as operation:
            if self._files.recovery is None:
                yield from _in_job(operation, phase)
                return
            with operation.open_dir(self._files.path.name) as attempt:
                yield from _in_job(attempt, phase)

    # -- native phases ------------------------------------------------------------------------------------

    def _write_native(self, inputs: Directory, story: Story, phase: Phase, identity: str) -> None:
        resolved, objects = self._resolved(), self._root.objects
        request = resolved.request
        facts = JobFacts(
            operation_id=self._files.operation_id,
            request_sha256=resolved.request_sha256,
            native_identity=identity,
            candidate_sha256=story.candidate_sha256 if phase in {Phase.EVALUATE, Phase.SCAN} else None,
            places={name: str(path) for name, path in self._places(phase).items()},
        )
        documents = {
            "request.json": encode_request(request),
            "profile.json": objects.load(request.profile_sha256),
            "input.json": objects.load(request.input_sha256),
            "train-rows.json": objects.load(self._profile.train_data),
            "eval-rows.json": objects.load(self._profile.eval_data),
            "base.json": objects.load(self._profile.base),
        }
        if resolved.input.adapter is not None:
            documents["adapter.json"] = objects.load(resolved.input.adapter.bundle_sha256)
        if resolved.input.checkpoint is not None:
            documents["checkpoint.json"] = objects.load(resolved.input.checkpoint)
        for name, data in documents.items():
            inputs.write_file(name, data)
        inputs.write_file("job.json", facts.encode())

    def _places(self, phase: Phase) -> dict[str, Path]:
        """Directories that the job names and does not hold."""
        resolved = self._resolved()
        places = {"base": Path(self._root.bundle_path(self._profile.base))}
        if resolved.input.adapter is not None:
            places["adapter"] = Path(self._root.bundle_path(resolved.input.adapter.bundle_sha256))
        elif phase in {Phase.EVALUATE, Phase.SCAN}:
            places["adapter"] = self._files.job(Phase.TRAIN) / "out" / "adapter"
        if phase is Phase.EVALUATE and resolved.request.baseline.adapter_sha256 is not None:
            places["incumbent"] = Path(self._root.bundle_path(self._incumbent_bundle()))
        if resolved.checkpoint is not None and phase in {Phase.VALIDATE, Phase.TRAIN}:
            source = self._root.location + f"/operations/{resolved.checkpoint.source_operation}"
            places["checkpoint"] = Path(f"{source}/train/out/checkpoints/{resolved.input.checkpoint}")
        return places

    def _incumbent_bundle(self) -> str:
        selected = self._root.control.runtime()
        if selected.adapter_sha256 != self._resolved().request.baseline.adapter_sha256:
            raise DocumentError("runtime.json names another adapter than is deployed; look who changed it")
        return selected.bundle_sha256

    def _native(self, phase: Phase) -> PhaseCommand:
        job, caps = self._files.job(phase), self._profile.stack.caps
        interpreter = Interpreter.of(self._config.python)
        argv = (str(interpreter.program), "-I", "-m", "ticket_agent.peft.release.native")
        threads = str(self._profile.stack.device.threads)
        return PhaseCommand(
            launch_id=self._files.launch_id(phase.value),
            argv=(*argv, phase.value, "--job", str(job)),
            run_dir=self._files.run(phase),
            working_dir=job / "out",
            read_only=(*interpreter.paths, job / "in", *sorted(self._places(phase).values())),
            writable=(job / "out",),
            devices=device_files(self._profile.stack.device),
            environment={"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
            deadline_s=self._deadline_s(caps.phase_ms / 1000),
            niceness=NATIVE_NICENESS,
            limits=PhaseLimits(
                file_bytes=caps.file_bytes,
                processes=caps.tasks,
                memory_bytes=caps.phase_memory_bytes,
                cpu_percent=caps.cpu_percent,
            ),
        )

    # -- control phases -----------------------------------------------------------------------------------

    def _facts(self, story: Story, phase: Phase, intent: dict[str, JsonValue]) -> ControlFacts:
        evaluated = story.observed(Phase.EVALUATE)
        staged = story.observed(Phase.STAGE)
        first = OperationFiles(root=self._files.root, operation_id=self._files.operation_id)
        return ControlFacts.of(
            self._config,
            operation_id=self._files.operation_id,
            request_sha256=story.begun.request_sha256,
            phase=phase,
            native_identity=str(intent["identity"]),
            recovery=self._files.recovery,
            candidate=_text(intent, "candidate"),
            incumbent=_text(intent, "incumbent"),
            candidate_sha256=story.candidate_sha256,
            candidate_bundle_sha256=None if staged is None else str(staged.detail["serving_bundle_sha256"]),
            evaluate_out=None if evaluated is None else str(first.job(Phase.EVALUATE) / "out"),
            behaviour_sha256=None if evaluated is None else str(evaluated.detail["behaviour_sha256"]),
            expires_unix_ms=self._expires_unix_ms,
        )

    def _own(self, phase: Phase) -> PhaseCommand:
        job, config = self._files.job(phase), self._config
        longest = config.ready_s + config.soak_s + config.drain_s + 4 * config.gone_s + EXTRA_S
        longest += 16 * self._profile.canary.maximum_latency_ms / 1000
        own = Interpreter.of(Path(sys.executable))
        argv = (str(own.program), "-I", "-m", "ticket_agent.peft.release.control")
        return PhaseCommand(
            launch_id=self._files.launch_id(phase.value),
            argv=(*argv, phase.value, "--job", str(job)),
            run_dir=self._files.run(phase),
            working_dir=job / "out",
            writable=(job / "out",),
            deadline_s=self._deadline_s(longest),
            network="host",
            limits=PhaseLimits(file_bytes=CONTROL_FILE_BYTES, processes=CONTROL_PROCESSES),
        )

    def _deadline_s(self, longest_s: float) -> float:
        left_s = (self._expires_unix_ms - self._clock()) / 1000
        if left_s < LEAST_S:
            raise LaunchRefusedError("the ticket expires before the phase could do anything")
        return min(longest_s, left_s)

    # -- servers ------------------------------------------------------------------------------------------

    def _servers(self, story: Story, phase: Phase) -> dict[str, JsonValue]:
        """Which servers a control phase is about, and on which ports those are started that are to be."""
        if phase is Phase.STAGE:
            return {}
        if phase is Phase.LOAD:
            incumbent = self._serving()
            port = self._room.free_port(besides=[incumbent.instance.port])
            candidate = self._files.launch_id(CANDIDATE)
            return {"candidate": candidate, "incumbent": incumbent.launch_id, "port": port}
        loaded = story.intent(Phase.LOAD)
        if phase is not Phase.ROLLBACK:
            return {"candidate": _text(loaded, "candidate"), "incumbent": _text(loaded, "incumbent")}
        return self._rollback_servers(story)

    def _rollback_servers(self, story: Story) -> dict[str, JsonValue]:
        """A server of the baseline that goes on; where there is none, it is started anew."""
        loaded, baseline = story.intent(Phase.LOAD), story.request.baseline
        servers: dict[str, JsonValue] = {"candidate": _text(loaded, "candidate")}
        usable = self._room.usable(
            generation=baseline.generation, artifact_sha256=baseline.served_artifact_sha256
        )
        if usable is not None:
            return servers | {"incumbent": usable.launch_id}
        named = _text(loaded, "incumbent")
        former = self._serving() if named is None else self._room.known(named)
        if former is None:
            raise InstanceRefusedError(f"server {named} was never noted down; look who removed it")
        return servers | {
            "incumbent": self._files.launch_id(INCUMBENT),
            "again": former.launch_id,
            "port": self._room.free_port(),
        }

    def _serving(self) -> KnownServer:
        pointer = self._root.pointer.read()
        server = None if pointer is None else self._room.serving(pointer)
        if server is None:
            raise InstanceRefusedError("nothing is served here; start it with `ticket-agent release serve`")
        return server

    def _candidate(self, story: Story, intent: dict[str, JsonValue]) -> Callable[[], None]:
        request, staged = story.request, story.observed(Phase.STAGE)
        assert staged is not None  # it comes before the load
        launch_id = str(intent["candidate"])
        instance = self._room.instance(
            launch_id,
            self._profile,
            model_id=request.model_id,
            generation=request.baseline.generation + 1,
            artifact_sha256=str(story.candidate_sha256),
            bundle_sha256=str(staged.detail["serving_bundle_sha256"]),
            port=_number(intent, "port"),
        )
        backend = self._room.backend(self._profile)
        caps = self._profile.stack.caps
        return partial(self._room.start, launch_id, instance, backend=backend, caps=caps)

    def _incumbent_again(self, intent: dict[str, JsonValue]) -> Callable[[], None] | None:
        """Starts the incumbent again if no server of it goes on; else None."""
        former = _text(intent, "again")
        if former is None:
            return None
        known = self._room.known(former)
        if known is None:
            raise InstanceRefusedError(f"server {former} was never noted down; look who removed it")
        launch_id = str(intent["incumbent"])
        instance = self._room.again(known, launch_id, port=_number(intent, "port"))
        return partial(self._room.start, launch_id, instance, backend=known.backend, caps=known.caps)


def _in_job(operation: Directory, phase: Phase) -> Iterator[Directory]:
    with (
        operation.open_dir(phase.value, create=True) as job,
        job.open_dir("in", create=True) as inputs,
        job.open_dir("out", create=True),
    ):
        yield inputs


def _text(intent: Mapping[str, JsonValue], name: str) -> str | None:
    value = intent.get(name)
    return None if value is None else str(value)


def _number(intent: Mapping[str, JsonValue], name: str) -> int:
    value = intent.get(name)
    if type(value) is not int:
        raise PeftError(f"the intent of the phase has no {name}")
    return value
