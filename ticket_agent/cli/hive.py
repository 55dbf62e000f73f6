"""`hive serve`: the reference hive as a process of its own; also the embedded one of `run --mock`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.assembly import now_ms, stop_on_signals
from ticket_agent.cli.output import emit_json, fail
from ticket_agent.cli.snapshot_manifest import enrolment_from
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ticket_agent.hive.reference import Faults, GatewayServer, ReferenceHive
    from ticket_agent.protocol.snapshot_enrolment import SnapshotEnrolment

__all__ = ["EmbeddedHive", "embedded_hive", "hive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedHive:
    """Where the embedded reference hive listens."""

    host: str
    port: int
    token: str
    greeting: str


@click.group()
def hive() -> None:
    """Run the reference hive: a model of the root side behind a real TCP console."""


@hive.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), default=31337, show_default=True, help="0 picks a free one."
)
@click.option(
    "--lab-port",
    type=click.IntRange(0, 65535),
    default=None,
    help="A second console, so that you can submit while the agent holds the first one.",
)
@click.option(
    "--rest-port",
    type=click.IntRange(0, 65535),
    default=None,
    help="A REST gateway to the same hive, with the console's token as its request token.",
)
@click.option(
    "--rest-ticket-key",
    metavar="REF",
    help="Let the gateway ask for delegated tickets minted with this secret (env: or file:).",
)
@click.option(
    "--token", help="Console token: env:NAME, file:/path or the token (default: a random one, printed)."
)
@click.option(
    "--ticket-key",
    "ticket_keys",
    multiple=True,
    metavar="ROLE=REF",
    help="Accept capability tickets of a role minted with this secret (env: or file:); may be repeated.",
)
@click.option("--profile", type=click.Choice(["default", "strict-a"]), default="default", show_default=True)
@click.option(
    "--workers", type=click.IntRange(0, 64), default=4, show_default=True, help="READY GPU Workers."
)
@click.option(
    "--lora-workers",
    type=click.IntRange(0, 8),
    default=1,
    show_default=True,
    help="READY Workers for PEFT tickets.",
)
@click.option(
    "--export-job",
    "export_jobs",
    multiple=True,
    metavar="ID",
    help="Publish a small job for peft.export under this id; may be repeated.",
)
@click.option(
    "--gpus", type=click.IntRange(0, 64), default=2, show_default=True, help="GPUs in the inventory."
)
@click.option(
    "--manifest",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Receive the host snapshots that this resolved manifest enrols (default: an unchanged one).",
)
@click.option(
    "--fault",
    "fault_texts",
    multiple=True,
    metavar="KIND:PATH[:every=N]",
    help="Misbehave, e.g. drop-after:/queen/lease/ctl:every=2; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Announce the console as one JSON line.")
def serve(
    *,
    port: int,
    lab_port: int | None,
    rest_port: int | None,
    rest_ticket_key: str | None,
    token: str | None,
    ticket_keys: tuple[str, ...],
    profile: str,
    workers: int,
    lora_workers: int,
    export_jobs: tuple[str, ...],
    gpus: int,
    manifest: Path | None,
    fault_texts: tuple[str, ...],
    as_json: bool,
) -> None:
    """Serve a console on loopback until SIGTERM or SIGINT, and a gateway if asked for; all in memory."""
    from ticket_agent.hive.reference import ConsoleServer  # noqa: PLC0415 - start-up time

    stop = stop_on_signals()
    secret = _token(token)
    role_secrets = _role_secrets(ticket_keys)
    faults = _faults(fault_texts)
    enrolment = enrolment_from(manifest)
    model = _model(profile, gpus, enrolment)
    names = [model.spawn_worker("worker-gpu").worker_id for _ in range(workers)]
    lora_names = [model.spawn_worker("worker-lora").worker_id for _ in range(lora_workers)]
    _publish(model, export_jobs)
    with _listening(port):
        server = ConsoleServer(
            model, port=port, token=secret, faults=faults, lab_port=lab_port, ticket_secrets=role_secrets
        )
        server.start()
    rest = None
    try:
        if rest_port is not None:
            rest = _served_gateway(model, rest_port, secret, faults, rest_ticket_key)
        opened = {
            "port": server.port,
            "lab_port": server.lab_port,
            "rest_url": None if rest is None else rest.url,
            "token": secret if token is None else None,
            "workers": names,
            "lora_workers": lora_names,
            "export_jobs": list(export_jobs),
            "snapshots": _enrolled(enrolment),
        }
        _announce(opened, as_json=as_json)
        stop.wait()
    finally:
        server.stop()
        if rest is not None:
            rest.stop()


def _model(profile: str, gpus: int, enrolment: SnapshotEnrolment | None) -> ReferenceHive:
    from ticket_agent.hive.reference import (  # noqa: PLC0415 - start-up time
        DEFAULT,
        STRICT_A,
        LabError,
        ReferenceHive,
    )

    try:
        return ReferenceHive(
            STRICT_A if profile == "strict-a" else DEFAULT,
            clock=now_ms,
            gpus=tuple(f"GPU-{number}" for number in range(gpus)),
            snapshots=enrolment,
        )
    except LabError as error:
        fail(str(error), Exit.USAGE)


def _enrolled(enrolment: SnapshotEnrolment | None) -> dict[str, Any] | None:
    """Whose host snapshots are received, as the announcement has it."""
    if enrolment is None:
        return None
    return {
        "epoch": enrolment.epoch,
        "sources": {publisher.source_id: list(publisher.providers) for publisher in enrolment.publishers},
    }


def _served_gateway(
    model: ReferenceHive, port: int, token: str, faults: Faults, ticket_key: str | None
) -> GatewayServer:
    from ticket_agent.hive.reference import DelegatedTickets, GatewayServer  # noqa: PLC0415 - start-up time

    delegation = None
    if ticket_key is not None:
        _need_blake3()
        delegation = DelegatedTickets(clock=now_ms, key=_token(ticket_key))
    with _listening(port):
        gateway = GatewayServer(
            model, clock=now_ms, port=port, token=token, delegation=delegation, faults=faults
        )
    gateway.start()
    return gateway


@contextlib.contextmanager
def _listening(port: int) -> Iterator[None]:
    """A port that cannot be listened on ends the command."""
    try:
        yield
    except OSError as error:
        fail(f"cannot listen on port {port}: {error.strerror}", Exit.FAILURE)


def _publish(model: ReferenceHive, export_jobs: tuple[str, ...]) -> None:
    from ticket_agent.hive.reference import LabError, sample_job  # noqa: PLC0415 - start-up time

    try:
        for job_id in export_jobs:
            model.exports.publish(job_id, sample_job())
    except LabError as error:
        fail(str(error), Exit.USAGE)


def _token(reference: str | None) -> str:
    if reference is None:
        return secrets.token_hex(16)
    from ticket_agent.hive.credentials import CredentialError, resolve_secret  # noqa: PLC0415 - start-up time

    try:
        return resolve_secret(reference, env=os.environ, allow_placeholder=True).reveal()
    except CredentialError as error:
        fail(str(error), Exit.USAGE)


def _faults(texts: tuple[str, ...]) -> Faults:
    from ticket_agent.hive.reference import Faults, parse_fault  # noqa: PLC0415 - start-up time

    faults = Faults()
    try:
        for text in texts:
            faults.add(parse_fault(text))
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    return faults


def _role_secrets(given: tuple[str, ...]) -> dict[str, str]:
    from ticket_agent.protocol.capability import Role  # noqa: PLC0415 - start-up time

    secrets_of: dict[str, str] = {}
    for text in given:
        role, _, reference = text.partition("=")
        if role not in {str(known) for known in Role}:
            fail(f"--ticket-key {role!r} is no role; write ROLE=env:NAME or ROLE=file:/path", Exit.USAGE)
        secrets_of[role] = _token(reference)
    if secrets_of:
        _need_blake3()
    return secrets_of


def _need_blake3() -> None:
    if importlib.util.find_spec("blake3") is None:
        fail("tickets need the package blake3: pip install 'ticket-agent[tickets]'", Exit.FAILURE)


def _announce(opened: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit_json("hive", opened)
    else:
        lab = f", lab console on {opened['lab_port']}" if opened["lab_port"] else ""
        click.echo(f"console on 127.0.0.1:{opened['port']}{lab}")
        if opened["rest_url"]:
            click.echo(f"gateway on {opened['rest_url']}")
        if opened["token"] is not None:
            click.echo(f"token: {opened['token']}")
        click.echo(f"READY Workers: {', '.join(opened['workers']) or 'none'}")
        click.echo(f"READY Workers for PEFT tickets: {', '.join(opened['lora_workers']) or 'none'}")
        if opened["export_jobs"]:
            click.echo(f"export jobs: {', '.join(opened['export_jobs'])}")
        click.echo(_snapshots_text(opened["snapshots"]))
    sys.stdout.flush()


def _snapshots_text(snapshots: Mapping[str, Any] | None) -> str:
    if snapshots is None:
        return "host snapshots: none are received"
    sources = "; ".join(f"{name} ({', '.join(of)})" for name, of in snapshots["sources"].items()) or "none"
    return f"host snapshots of writer epoch {snapshots['epoch']}: {sources}"


@contextlib.contextmanager
def embedded_hive() -> Iterator[EmbeddedHive]:
    """A reference hive inside this process, with a lab console to submit through."""
    from ticket_agent.hive.reference import ConsoleServer, ReferenceHive  # noqa: PLC0415 - start-up time

    token = secrets.token_hex(16)
    model = ReferenceHive(clock=now_ms, snapshots=enrolment_from(None))
    names = [model.spawn_worker("worker-gpu").worker_id for _ in range(4)]
    with ConsoleServer(model, token=token, lab_port=0) as server:
        greeting = (
            f"embedded reference hive; submit with: ticket-agent submit gpu.lease.grant --worker {names[0]} "
            f"--subject GPU-0 --tcp-port {server.lab_port} --auth-token {token}"
        )
        yield EmbeddedHive(host="127.0.0.1", port=server.port, token=token, greeting=greeting)
