"""Gates about the host and its private root: who works there, what is deployed, what phases would find."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.errors import AbsentError, PeftIoError
from ticket_agent.peft.release.bundle import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    adapter_identity,
    parse_bundle,
)
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.evidence_store import EvidenceStore
from ticket_agent.peft.release.gate import NotYetError
from ticket_agent.peft.release.geometry import adapter_tensors
from ticket_agent.peft.release.installed import differing_versions
from ticket_agent.peft.release.keys import read_private_key
from ticket_agent.peft.release.layout import RECOVERY_PREFIX
from ticket_agent.peft.release.loopback import LoopbackClient
from ticket_agent.peft.release.markers import Owner
from ticket_agent.peft.release.phases import ReleaseState
from ticket_agent.peft.release.readiness import PROBE_S
from ticket_agent.peft.release.release_story import read_begun, read_end
from ticket_agent.peft.release.server_room import ServerRoom, read_token
from ticket_agent.peft.release.serving import MODELS_PATH, served_models
from ticket_agent.peft.release.serving_errors import ServingError

if TYPE_CHECKING:
    from ticket_agent.peft.release.gate import Look
    from ticket_agent.peft.release.layout import Begun
    from ticket_agent.peft.release.serving_pointer import ServingPointer

__all__ = [
    "MAX_ATTEMPTS",
    "attempts",
    "baseline",
    "blocker",
    "bundles",
    "evidence",
    "incumbent",
    "interpreter",
    "launcher",
    "lock",
    "operation",
    "owner",
    "recovery",
    "signing",
    "space",
    "token",
]

_MEBI: Final = 1024 * 1024
_SPARE_BYTES: Final = 128 * _MEBI
"""For journal, logs, documents and evidence."""
_ADAPTER_COPIES: Final = 12
"""Adapter and optimiser, three times its size, in three checkpoints; the result, staged and as a bundle."""
MAX_ATTEMPTS: Final = 4
"""Attempts to recover one release."""


def operation(look: Look) -> str:
    """The id was never used for another request or by another ticket, and its release has not ended."""
    begun, ended = _story(look)
    if begun is None:
        return "has not begun"
    asked = look.asked
    if begun.request_sha256 != asked.request_sha256:
        raise DocumentError(f"{asked.operation_id} began with another request, {begun.request_sha256}")
    ticket = begun.authority.ticket_id
    if ended is not None:
        raise DocumentError(f"{asked.operation_id} has ended ({ended}) under ticket {ticket}")
    if ticket != asked.ticket_id:
        raise DocumentError(f"{asked.operation_id} has begun under ticket {ticket}")
    return "has begun under this ticket"


def recovery(look: Look) -> str:
    """There is a release of this request to be recovered."""
    begun, ended = _story(look)
    asked = look.asked
    if begun is None or begun.request_sha256 != asked.request_sha256:
        raise DocumentError(f"no release {asked.operation_id} of this request ever began")
    ticket = begun.authority.ticket_id
    if ended not in (None, ReleaseState.ROLLBACK_FAILED):
        raise DocumentError(f"{asked.operation_id} has ended ({ended}): there is nothing to recover")
    if ticket == asked.ticket_id:
        raise DocumentError(f"{ticket} is the release's own ticket; a recovery needs another one")
    return f"began under ticket {ticket}, {'has not ended' if ended is None else f'ended {ended}'}"


def attempts(look: Look) -> str:
    """No other attempt to recover the release goes on or has succeeded, and there were not too many."""
    own = None if look.asked.ticket_id is None else f"{RECOVERY_PREFIX}{look.asked.ticket_id}"
    with look.root.operation(look.asked.operation_id) as directory:
        names = [name for name in directory.names() if name.startswith(RECOVERY_PREFIX)]
        for name in names:
            if name == own:
                continue
            with directory.open_dir(name) as attempt:
                ended = read_end(attempt)
            ticket = name.removeprefix(RECOVERY_PREFIX)
            if ended is None:
                raise NotYetError(f"the attempt under ticket {ticket} goes on")
            if ended.state is ReleaseState.RECOVERED_FAILURE:
                raise DocumentError(f"it was recovered already, under ticket {ticket}", rule="recovery-scope")
    if own not in names and len(names) >= MAX_ATTEMPTS:
        raise DocumentError(
            f"there were {MAX_ATTEMPTS} attempts already; somebody has to look at it by hand",
            rule="recovery-attempts",
        )
    return f"{len(names)} of {MAX_ATTEMPTS} attempts made"


def blocker(look: Look) -> str:
    """No failed rollback blocks the root, but that of the release which is to be recovered."""
    found = look.root.control.blocker()
    if found is not None and not (look.asked.recovery_only and found.owner == _owner(look)):
        look.root.control.require_unblocked()
    return "nothing blocks the root" if found is None else f"blocked by this release: {found.reason}"


def owner(look: Look) -> str:
    """No other release is unfinished."""
    found = look.root.control.owner()
    if found is not None and found != _owner(look):
        raise NotYetError(f"release {found.operation_id} is not finished")
    return "no release is unfinished" if found is None else "this release is under way"


def lock(look: Look) -> str:
    """Nobody else works in the root at this moment."""
    holder = look.root.lock_holder()
    if holder is None or holder[0] == os.getpid():
        return "free"
    pid, command = holder
    raise NotYetError(f"process {pid} ({command or 'unknown'}) works in the root")


def baseline(look: Look) -> str:
    """What is deployed is what the request starts from, and fits the profile."""
    wanted, profile = look.request.baseline, look.profile
    if wanted.runtime_sha256 != profile.runtime_sha256:
        raise DocumentError("the request starts from a deployment on another runtime than the profile's")
    if not (wanted.healthy and wanted.rollback_verified):
        raise DocumentError("the request starts from a deployment that is not healthy and verified")
    if wanted.adapter_sha256 is None and wanted.served_artifact_sha256 != profile.base:
        raise DocumentError("the request starts from another base model than the profile's")
    found = look.root.control.accepted()
    active = look.root.control.owner()
    if active == _owner(look):
        return f"generation {found.generation} is deployed, this release is under way"
    if found == wanted:
        return f"generation {found.generation} is deployed, as the request says"
    line = (
        f"generation {found.generation} is deployed; the request starts from generation {wanted.generation}"
    )
    if active is not None:
        # It may still be taken back.
        raise NotYetError(f"{line}, and release {active.operation_id} is not finished")
    raise DocumentError(line)


def incumbent(look: Look) -> str:
    """What is deployed can be loaded again, and is served."""
    accepted, selected = look.root.control.accepted(), look.root.control.runtime()
    if selected.adapter_sha256 != accepted.adapter_sha256:
        raise NotYetError("runtime.json and accepted.json name different adapters")
    manifest = parse_bundle(look.root.objects.load(selected.bundle_sha256))
    if accepted.adapter_sha256 is not None:
        identity = adapter_identity(manifest.file(ADAPTER_CONFIG), manifest.file(ADAPTER_WEIGHTS))
        if identity != accepted.adapter_sha256:
            raise NotYetError("the bundle in runtime.json is not the deployed adapter")
    pointer = look.root.pointer.read()
    if pointer is None:
        raise NotYetError("nothing was ever served here")
    if pointer.artifact_sha256 != accepted.served_artifact_sha256:
        raise NotYetError(f"{pointer.name} is served, which is not what is deployed")
    server = ServerRoom(look.config.root, None, look.config).serving(pointer)
    if server is None:
        raise NotYetError(f"no server of {pointer.name} was started here")
    if server.running() is False:
        raise NotYetError(f"the server of {pointer.name} has ended")
    if look.thorough:
        _ask(look, pointer)
    return f"{pointer.name} on port {pointer.port}"


def bundles(look: Look) -> str:
    """What the phases read is there as directories."""
    names = [look.profile.base]
    if look.input.adapter is not None:
        names.append(look.input.adapter.bundle_sha256)
    for sha256 in names:
        if not Path(look.root.bundle_path(sha256)).is_dir():
            raise NotYetError(f"bundle {sha256[:12]} is not there as a directory")
    return f"{len(names)} bundles"


def token(look: Look) -> str:
    """The token of the servers can be read, and nobody else can read it."""
    read_token(look.config.token_file)
    return "private"


def signing(look: Look) -> str:
    """What came of the release can be signed, if that is configured."""
    path = look.config.signing_key
    if path is None:
        return "no signing_key: evidence is kept, and nothing is signed"
    return f"key {read_private_key(path).public.keyid}"


def evidence(look: Look) -> str:
    """The directory of the evidence is private, or not there yet."""
    path = look.config.evidence
    if not os.path.lexists(path):
        return f"{path} is made when it is needed"
    with EvidenceStore.open(path, owner_uid=os.geteuid(), create=False):
        return str(path)


def space(look: Look) -> str:
    """The file system of the root has room for the release."""
    needed = _SPARE_BYTES + _ADAPTER_COPIES * _adapter_bytes(look)
    try:
        disk = os.statvfs(look.config.root)
    except OSError as error:
        raise PeftIoError(f"looking at {look.config.root}", error) from error
    free = disk.f_bavail * disk.f_frsize
    text = f"{free // _MEBI} MiB free, {needed // _MEBI + 1} MiB wanted"
    if free < needed:
        raise NotYetError(text)
    return text


def interpreter(look: Look) -> str:
    """The interpreter has exactly the packages that the profile pins."""
    installed = look.facts.installed
    if installed is None:
        raise TypeError("this gate is only looked at with the facts")
    if differing := differing_versions(look.profile, installed):
        raise DocumentError("; ".join(differing), rule="pins")
    return f"{len(look.profile.versions)} packages as pinned, python {installed.python}"


def launcher(look: Look) -> str:
    """Phases are confined here, or the configuration does without."""
    detection = look.facts.launcher
    if detection is None:
        raise TypeError("this gate is only looked at with the facts")
    missing = [str(verdict.guarantee) for verdict in detection.verdicts if not verdict.held]
    held = len(detection.verdicts) - len(missing)
    name = "without confinement" if detection.unconfined else detection.launcher.name
    return f"{name}: {held} guarantees held" + (f"; NOT: {', '.join(missing)}" if missing else "")


def _owner(look: Look) -> Owner:
    return Owner(operation_id=look.asked.operation_id, request_sha256=look.asked.request_sha256)


def _story(look: Look) -> tuple[Begun | None, ReleaseState | None]:
    """How the release began and ended."""
    try:
        with look.root.operation(look.asked.operation_id) as directory:
            ended = read_end(directory)
            return read_begun(directory), None if ended is None else ended.state
    except AbsentError:
        return None, None


def _ask(look: Look, pointer: ServingPointer) -> None:
    client = LoopbackClient(port=pointer.port, token=read_token(look.config.token_file))
    try:
        names = {model.name for model in served_models(client.get(MODELS_PATH, deadline_s=PROBE_S))}
    except ServingError as error:
        raise NotYetError(f"{pointer.name} does not answer: {error}") from error
    if pointer.name not in names:
        raise NotYetError(f"port {pointer.port} does not serve {pointer.name}")


def _adapter_bytes(look: Look) -> int:
    shapes = adapter_tensors(look.profile.stack.geometry, look.profile.settings.rank).values()
    return sum(4 * rows * columns for rows, columns in shapes)
