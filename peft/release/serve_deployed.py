"""Having what is deployed served, outside of any release: once at first, and after each reboot."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ticket_agent.peft.errors import AbsentError, PeftError
from ticket_agent.peft.release.interpreter import Interpreter
from ticket_agent.peft.release.readiness import wait_ready
from ticket_agent.peft.release.root_errors import RootOwnedError
from ticket_agent.peft.release.serving import backend_for
from ticket_agent.peft.release.serving_errors import ServingError
from ticket_agent.peft.release.serving_pointer import ServingPointer

if TYPE_CHECKING:
    from ticket_agent.peft.release.deployment import DeploymentState
    from ticket_agent.peft.release.markers import RuntimeSelection
    from ticket_agent.peft.release.private_root import PrivateRoot
    from ticket_agent.peft.release.profile import Profile
    from ticket_agent.peft.release.server_room import KnownServer, ServerRoom
    from ticket_agent.peft.release.serving import Backend, Instance
    from ticket_agent.peft.release.stack import Caps

__all__ = ["First", "NotServedError", "Served", "serve_deployed", "stop_serving"]


class NotServedError(PeftError):
    """What is deployed cannot be served; the line says why and what to do."""

    code = "not-served"


@dataclass(frozen=True, slots=True, kw_only=True)
class First:
    """How to serve what this root has never served: its profile, and the model that it is of."""

    profile: Profile
    model_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server that answers for what is deployed; ``started`` is whether it was started just now."""

    server: KnownServer
    started: bool


def serve_deployed(root: PrivateRoot, room: ServerRoom, first: First | None = None) -> Served:
    """See to it that what is deployed is served, and that the pointer names who serves it.

    Args:
        root: the private root.
        room: its servers.
        first: needed where no server of what is deployed was ever started here.

    Raises:
        RootOwnedError: a release is not finished; it decides what is served.
        NotServedError: what is deployed is not known, contradicts itself, or does not become ready.
        LockHeldError: somebody else works in the root.
        PeftError: something else is in the way; nothing was pointed at.
    """
    with root.locked():
        _require_no_release(root)
        deployed = _deployed(root)
        state = deployed.state
        pointer = root.pointer.read()
        found = room.usable(generation=state.generation, artifact_sha256=state.served_artifact_sha256)
        _require_no_other(room, pointer, state)
        server = found or _start(root, room, deployed, first)
        _await(server, room.config.ready_s, keep=found is not None)
        wanted = ServingPointer.of(server.instance)
        if pointer != wanted:
            root.pointer.move(pointer, wanted)
    return Served(server=server, started=found is None)


def stop_serving(root: PrivateRoot, room: ServerRoom) -> tuple[KnownServer, ...]:
    """End every server of the root; return those that ran. Who asks them meanwhile is answered.

    Raises:
        RootOwnedError: a release is not finished.
        NotServedError: a server could not be ended.
        LockHeldError: somebody else works in the root.
    """
    with root.locked():
        _require_no_release(root)
        running = tuple(server for server in room.all() if server.running() is not False)
        for server in running:
            _end(room, server)
    return running


def _require_no_release(root: PrivateRoot) -> None:
    owner = root.control.owner()
    if owner is not None:
        raise RootOwnedError(
            f"release {owner.operation_id} is not finished, and decides what is served;"
            " let it end, or recover it"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deployed:
    """What is deployed, and the bundle that it is."""

    state: DeploymentState
    runtime: RuntimeSelection


def _deployed(root: PrivateRoot) -> _Deployed:
    try:
        state, runtime = root.control.accepted(), root.control.runtime()
    except AbsentError as error:
        raise NotServedError(f"{error}: nothing is deployed in this root yet") from None
    if runtime.adapter_sha256 != state.adapter_sha256:
        raise NotServedError(
            f"accepted.json names adapter {state.adapter_sha256}, runtime.json {runtime.adapter_sha256};"
            " restore the one that is wrong before anything is served"
        )
    return _Deployed(state=state, runtime=runtime)


def _of_state(server: KnownServer, state: DeploymentState) -> bool:
    made = server.instance
    return (made.generation, made.artifact_sha256) == (state.generation, state.served_artifact_sha256)


def _require_no_other(room: ServerRoom, pointer: ServingPointer | None, state: DeploymentState) -> None:
    """Refuse to take the pointer from something that answers and is not what is deployed."""
    server = None if pointer is None else room.serving(pointer)
    if server is not None and not _of_state(server, state) and server.running() is not False:
        raise NotServedError(
            f"{server.instance.name} runs and is what serving.json names, but generation"
            f" {state.generation} is deployed; find out why, or end it with --stop"
        )


def _start(root: PrivateRoot, room: ServerRoom, deployed: _Deployed, first: First | None) -> KnownServer:
    launch_id = f"serve-g{deployed.state.generation}-{time.time_ns() // 1_000_000}"
    made, backend, caps = _planned(room, deployed, first, launch_id)
    for path in {made.bundle, made.base}:
        # Compared byte by byte if it is there, and made from the store if it is not.
        root.materialise(Path(path).name)
    room.start(launch_id, made, backend=backend, caps=caps)
    server = room.known(launch_id)
    assert server is not None  # noted down before it was started
    return server


def _planned(
    room: ServerRoom, deployed: _Deployed, first: First | None, launch_id: str
) -> tuple[Instance, Backend, Caps]:
    state, runtime = deployed.state, deployed.runtime
    port = room.free_port()
    if first is not None:
        if first.profile.runtime_sha256 != state.runtime_sha256:
            raise NotServedError(
                f"the profile is of runtime {first.profile.runtime_sha256[:12]}, and"
                f" {state.runtime_sha256[:12]} is deployed: name the profile that it was released under"
            )
        made = room.instance(
            launch_id,
            first.profile,
            model_id=first.model_id,
            generation=state.generation,
            artifact_sha256=state.served_artifact_sha256,
            bundle_sha256=runtime.bundle_sha256,
            port=port,
        )
        return made, room.backend(first.profile), first.profile.stack.caps
    for server in room.all():
        if _of_state(server, state) and server.bundle_sha256 == runtime.bundle_sha256:
            known = server.backend
            python = str(Interpreter.of(room.config.python).program)
            backend = backend_for(known.kind, known.versions, python=python)
            return room.again(server, launch_id, port=port), backend, server.caps
    raise NotServedError(
        f"generation {state.generation} was never served from this root; name a prepared release"
        " whose profile and model it has, with --operation"
    )


def _await(server: KnownServer, ready_s: float, *, keep: bool) -> None:
    try:
        wait_ready(
            server.client(),
            server.backend,
            server.instance,
            alive=lambda: server.running() is not False,
            deadline_s=ready_s,
        )
    except ServingError as error:
        last = "; ".join(server.last_lines()[-2:]) or "nothing"
        if not keep:
            server.kill()
        raise NotServedError(f"{error}; it said last: {last}") from error


def _end(room: ServerRoom, server: KnownServer) -> None:
    if not room.end(server, gone_s=room.config.gone_s):
        port = server.instance.port
        raise NotServedError(
            f"server {server.launch_id} could not be ended: it runs, or somebody listens on its port {port};"
            f" look with: ss -ltnp 'sport = :{port}', end that process and try again"
        )
