"""`release submit`: one ticket for a release, checked here, appended to the hive's request log once."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.assembly import console, exit_of_hive, now_ms
from ticket_agent.cli.options import config_from, hive_options
from ticket_agent.cli.output import fail, plain
from ticket_agent.cli.release_asked import asked_of, asked_options, looked_at
from ticket_agent.cli.release_common import release_config, release_config_option
from ticket_agent.exits import Exit
from ticket_agent.protocol.actions import WORKER_LORA

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.config import AgentConfig
    from ticket_agent.peft.release.gates import Asked
    from ticket_agent.peft.release.profile import Profile
    from ticket_agent.peft.release.release_config import ReleaseConfig
    from ticket_agent.peft.release.request import ReleaseRequest
    from ticket_agent.protocol.namespace import Namespace

__all__ = ["submit"]

_ACTION = "peft.release"


@click.command()
@release_config_option
@asked_options
@hive_options
@click.option("--worker", "worker_id", required=True, help="Receipt Worker (LoRA) that takes the outcome.")
@click.option("--id", "ticket_id", help="Ticket id (default: a random one).")
@click.option("--key", "idempotency_key", help="Idempotency key (default: the ticket id).")
@click.option(
    "--expires-in",
    type=click.IntRange(1),
    metavar="SECONDS",
    help="How long the release is allowed (default: the longest that its phases may take).",
)
@click.option("--supervisor-generation", type=click.IntRange(1), help="Default: as the Worker reports it.")
@click.option("--cap-generation", type=click.IntRange(1), help="Default: as the Worker reports it.")
@click.option("--dry-run", is_flag=True, help="Print the request line; append nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line about what happened.")
def submit(*, config_file: Path, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Ask the hive for a release that was prepared on this host.

    All gates are looked at first, as `release plan` does; a release that would be refused is not sent. One
    that would wait is. The request is sent once: where the answer is lost, look before you try again.
    """
    from ticket_agent.protocol import ProtocolError, parse_spec  # noqa: PLC0415 - pydantic
    from ticket_agent.protocol.namespace import HiveError  # noqa: PLC0415 - start-up time

    release = release_config(config_file)
    asked, request, profile = asked_of(release, options)
    asked = replace(asked, ticket_id=_ticket_id(options["ticket_id"], asked))
    _require_open(release, asked, profile)
    config = config_from(options)
    namespace = console(config)
    from ticket_agent.cli.submit import append  # noqa: PLC0415 - with the hive

    try:
        seconds = options["expires_in"] or longest_s(release, request, profile)
        document = _document(asked, options, _generations(namespace, options, config), seconds)
        line = json.dumps(document, separators=(",", ":")).encode("utf-8")
        spec = parse_spec(line, source="raw", max_line_bytes=config.max_line_bytes)
        text = spec.encode().decode("utf-8")
        if dry_run:
            click.echo(text)
            return
        look = (
            f"whether it was admitted is not known; look with: ticket-agent status, and in the hive's"
            f" {config.mount}/tickets/spec for {spec.id}, before you submit anything else"
        )
        append(namespace, config, text, spec.id, as_json=as_json, look=look)
    except ProtocolError as error:
        fail(f"this is no valid request: {error}", Exit.USAGE)
    except HiveError as error:
        fail(str(error), exit_of_hive(error))
    finally:
        namespace.close()


def _document(
    asked: Asked, options: dict[str, Any], generations: tuple[int, int], seconds: int
) -> dict[str, object]:
    """The request, which ``seconds`` from now is not allowed any more."""
    arguments: dict[str, object] = {"request_sha256": asked.request_sha256}
    if asked.recovery_only:
        # False has one spelling: it is left out.
        arguments["recovery_only"] = True
    return {
        "schema": "host-ticket/v2",
        "id": asked.ticket_id,
        "idempotency_key": options["idempotency_key"] or asked.ticket_id,
        "action": _ACTION,
        "args": arguments,
        "expires_unix_ms": now_ms() + seconds * 1000,
        "receipt_mode": "worker",
        "operation_id": asked.operation_id,
        "subject_ref": asked.model_id,
        "receipt_worker_role": WORKER_LORA,
        "receipt_worker_id": options["worker_id"],
        "receipt_supervisor_generation": generations[0],
        "receipt_cap_generation": generations[1],
    }


def _generations(namespace: Namespace, options: dict[str, Any], config: AgentConfig) -> tuple[int, int]:
    """Those that are given, else as the Worker reports them."""
    from ticket_agent.cli.submit import generations  # noqa: PLC0415 - with the hive

    supervisor, cap = options["supervisor_generation"], options["cap_generation"]
    if supervisor is None or cap is None:
        found = generations(namespace, options["worker_id"], config)
        supervisor, cap = supervisor or found[0], cap or found[1]
    return supervisor, cap


def longest_s(config: ReleaseConfig, request: ReleaseRequest, profile: Profile) -> int:
    """The longest that a release may take, in seconds: its phases, their servers, the watch, a rollback."""
    from ticket_agent.peft.release.phases import forward_phases  # noqa: PLC0415 - start-up time

    phases = len(forward_phases(request.entry)) + 1
    around = 2 * config.ready_s + config.soak_s + config.drain_s + config.gone_s
    return int(phases * profile.stack.caps.phase_ms / 1000 + around) + 1


def _ticket_id(given: str | None, asked: Asked) -> str:
    """A recovery's ticket id becomes the name of a directory, so it has the form of an operation's id."""
    from ticket_agent.peft.release.document_error import DocumentError  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.rules import check_operation_id  # noqa: PLC0415 - start-up time

    ticket_id = given or f"t-{secrets.token_hex(6)}"
    if asked.recovery_only:
        try:
            check_operation_id(ticket_id, "--id of a recovery")
        except DocumentError as error:
            fail(str(error), Exit.USAGE)
    return ticket_id


def _require_open(config: ReleaseConfig, asked: Asked, profile: Profile) -> None:
    """End the command at the first gate that refuses; tell those that wait."""
    for gate in looked_at(config, asked, profile):
        if gate.verdict.value == "refused":
            fail(f"not submitted: {gate.code}: {gate.detail}; {gate.remedy}", Exit.FAILURE)
        if gate.verdict.value == "waits":
            click.echo(f"it will wait: {gate.code}: {plain(gate.detail)}", err=True)
