"""Which release a command is about, and all of its gates as far as this host can look at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ticket_agent.cli.output import fail
from ticket_agent.cli.peft_roots import one_line_errors
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.peft.release.detect import Detection
    from ticket_agent.peft.release.gates import Asked, Gate
    from ticket_agent.peft.release.installed import Installed
    from ticket_agent.peft.release.private_root import PrivateRoot
    from ticket_agent.peft.release.profile import Profile
    from ticket_agent.peft.release.release_config import ReleaseConfig
    from ticket_agent.peft.release.request import ReleaseRequest

__all__ = ["asked_of", "asked_options", "looked_at"]

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def asked_options(command: CommandT) -> CommandT:
    """``--operation`` or ``--request``, and ``--recovery-only``."""
    for decorate in (
        click.option("--recovery-only", is_flag=True, help="Undo that release, which began earlier."),
        click.option("--request", metavar="SHA256", help="Digest of its request, instead of --operation."),
        click.option("--operation", help="Id of a release that was prepared."),
    ):
        command = decorate(command)
    return command


def asked_of(config: ReleaseConfig, options: dict[str, Any]) -> tuple[Asked, ReleaseRequest, Profile]:
    """The release that the options name, with its request and profile; any other ends the command."""
    from ticket_agent.peft.release.canonical import MAX_JSON_BYTES  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.gates import Asked  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.private_root import PrivateRoot  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.profile import parse_profile  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.request import parse_request  # noqa: PLC0415 - start-up time

    if (options["operation"] is None) == (options["request"] is None):
        fail("name the release with --operation, or its request with --request", Exit.USAGE)
    with one_line_errors(), PrivateRoot.open(config.root, create=False) as root:
        sha256 = options["request"] or _prepared(root, options["operation"])
        request = parse_request(root.objects.load(sha256))
        profile = parse_profile(root.objects.load(request.profile_sha256, max_bytes=MAX_JSON_BYTES))
    asked = Asked(
        operation_id=request.operation_id,
        model_id=request.model_id,
        request_sha256=sha256,
        recovery_only=options["recovery_only"],
    )
    return asked, request, profile


def _prepared(root: PrivateRoot, operation: str) -> str:
    from ticket_agent.peft.release.prepared import find_preparation  # noqa: PLC0415 - start-up time

    found = find_preparation(root, operation)
    if found is None:
        fail(f"release {operation} was not prepared here; run ticket-agent release prepare", Exit.FAILURE)
    return found.request_sha256


def looked_at(config: ReleaseConfig, asked: Asked, profile: Profile) -> Iterator[Gate]:
    """Look at all gates; what is found out about the host beforehand is a gate too when it fails."""
    from ticket_agent.peft.release.detect import detect  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.gates import Gate, GateVerdict, HostFacts, gates  # noqa: PLC0415
    from ticket_agent.peft.release.installed import InterpreterError, ask_interpreter  # noqa: PLC0415
    from ticket_agent.peft.release.launch_errors import LaunchError  # noqa: PLC0415 - start-up time

    launcher: Detection | None = None
    installed: Installed | None = None
    failed = []
    try:
        installed = ask_interpreter(config.python, [name for name, _ in profile.versions])
        installed.require((), config.python)
    except InterpreterError as error:
        installed = None
        remedy = "name an interpreter with the extras train and release as python"
        failed.append(Gate(code="interpreter", verdict=GateVerdict.REFUSED, detail=str(error), remedy=remedy))
    try:
        launcher = detect(unconfined=config.unconfined)
    except LaunchError as error:
        remedy = "install bubblewrap, or allow unconfined = true"
        failed.append(Gate(code="launcher", verdict=GateVerdict.REFUSED, detail=str(error), remedy=remedy))
    facts = HostFacts(launcher=launcher, installed=installed)
    yield from gates(config, asked, facts=facts, thorough=True)
    yield from failed
