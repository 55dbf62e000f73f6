"""`release serve`: what is deployed is served, also after a reboot; or no longer."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from ticket_agent.cli.output import emit_json, fail, plain
from ticket_agent.cli.peft_roots import one_line_errors
from ticket_agent.cli.release_common import release_config, release_config_option
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ticket_agent.peft.release.private_root import PrivateRoot
    from ticket_agent.peft.release.release_config import ReleaseConfig
    from ticket_agent.peft.release.serve_deployed import First
    from ticket_agent.peft.release.server_room import KnownServer

__all__ = ["serve"]


@click.command(name="serve")
@release_config_option
@click.option(
    "--operation",
    help="A prepared release whose profile and model are served; only needed for the very first time.",
)
@click.option("--stop", is_flag=True, help="End every server of the root instead.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line per server (NDJSON).")
def serve(*, config_file: Path, operation: str | None, stop: bool, as_json: bool) -> None:
    """Serve what is deployed, if nothing serves it yet.

    Run it once after the first release was prepared, and after each reboot; when a server of what is deployed
    runs already, that one is named and nothing is changed. The server outlives this command. Who asks finds
    it by serving.json in the release root.

    While a release is not finished, it alone decides what is served, and this command refuses.
    """
    if stop and operation is not None:
        raise click.UsageError("--operation is for starting, --stop for ending")
    config = release_config(config_file)
    with _one_line_errors(), _root(config) as root:
        if stop:
            _stop(root, config, as_json=as_json)
        else:
            _serve(root, config, _first(root, operation), as_json=as_json)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    from ticket_agent.peft.errors import LockHeldError  # noqa: PLC0415 - start-up time

    with one_line_errors():
        try:
            yield
        except LockHeldError as error:
            fail(str(error), Exit.OTHER_OWNER)


def _root(config: ReleaseConfig) -> PrivateRoot:
    from ticket_agent.peft.release.private_root import PrivateRoot  # noqa: PLC0415 - start-up time

    os.umask(0o077)
    return PrivateRoot.open(config.root, create=False)


def _first(root: PrivateRoot, operation: str | None) -> First | None:
    from ticket_agent.peft.release.prepared import find_preparation  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.profile import parse_profile  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.request import parse_request  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.serve_deployed import First  # noqa: PLC0415 - start-up time

    if operation is None:
        return None
    found = find_preparation(root, operation)
    if found is None:
        fail(f"release {operation} was not prepared here; run ticket-agent release prepare", Exit.FAILURE)
    request = parse_request(root.objects.load(found.request_sha256))
    profile = parse_profile(root.objects.load(request.profile_sha256))
    return First(profile=profile, model_id=request.model_id)


def _serve(root: PrivateRoot, config: ReleaseConfig, first: First | None, *, as_json: bool) -> None:
    from ticket_agent.peft.release.detect import detect  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.serve_deployed import serve_deployed  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.server_room import ServerRoom  # noqa: PLC0415 - start-up time

    launcher = detect(unconfined=config.unconfined).launcher
    served = serve_deployed(root, ServerRoom(config.root, launcher, config), first)
    _tell(served.server, "started" if served.started else "serving", as_json=as_json)


def _stop(root: PrivateRoot, config: ReleaseConfig, *, as_json: bool) -> None:
    from ticket_agent.peft.release.serve_deployed import stop_serving  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.server_room import ServerRoom  # noqa: PLC0415 - start-up time

    ended = stop_serving(root, ServerRoom(config.root, None, config))
    for server in ended:
        _tell(server, "stopped", as_json=as_json)
    if not ended and not as_json:
        click.echo("nothing was running")


def _tell(server: KnownServer, what: str, *, as_json: bool) -> None:
    made = server.instance
    if as_json:
        document = {
            "name": made.name,
            "port": made.port,
            "generation": made.generation,
            "artifact_sha256": made.artifact_sha256,
            "launch_id": server.launch_id,
            "state": what,
        }
        emit_json("server", document)
        return
    click.echo(plain(f"{what}  {made.name}  127.0.0.1:{made.port}  generation {made.generation}"))
