"""`release serve`: what is deployed is served, also after a reboot; or no longer."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ticket_agent.cli.output import emit_json, fail, plain
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.peft.release.private_root import PrivateRoot
    from ticket_agent.peft.release.release_config import ReleaseConfig
    from ticket_agent.peft.release.serve_deployed import First
    from ticket_agent.peft.release.server_room import KnownServer

__all__ = ["serve_release"]

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(name="serve")
@click.option(
    "--release-config",
    type=_FILE,
    required=True,
    help="How releases run on this host (TOML).",
)
@click.option(
    "--profile",
    type=_FILE,
    help="Profile of what is deployed; only needed when it was never served from this root.",
)
@click.option("--model-id", help="Id of the model that it is a generation of; goes with --profile.")
@click.option("--stop", is_flag=True, help="End every server of the root instead.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line per server (NDJSON).")
def serve_release(
    *, release_config: Path, profile: Path | None, model_id: str | None, stop: bool, as_json: bool
) -> None:
    """Serve what is deployed, if nothing serves it yet.

    Run it once after the release root was made, and after each reboot; when a server of what is deployed runs
    already, that one is named and nothing is changed. The server outlives this command. Who asks finds it by
    serving.json in the release root.

    While a release is not finished, it alone decides what is served, and this command refuses.
    """
    if (profile is None) != (model_id is None) or (stop and profile is not None):
        raise click.UsageError("--profile and --model-id go together, and not with --stop")
    with _one_line_errors():
        config = _config(release_config)
        with _root(config) as root:
            if stop:
                _stop(root, config, as_json=as_json)
            else:
                _serve(root, config, _first(profile, model_id), as_json=as_json)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    from ticket_agent.peft.errors import LockHeldError, PeftError  # noqa: PLC0415 - start-up time

    try:
        yield
    except LockHeldError as error:
        fail(str(error), Exit.OTHER_OWNER)
    except PeftError as error:
        fail(str(error), Exit.FAILURE)


def _config(path: Path) -> ReleaseConfig:
    from ticket_agent.peft.release.release_config import (  # noqa: PLC0415 - start-up time
        ReleaseConfigError,
        load_release_config,
    )

    try:
        return load_release_config(path)
    except ReleaseConfigError as error:
        fail(str(error), Exit.USAGE)


def _root(config: ReleaseConfig) -> PrivateRoot:
    from ticket_agent.peft.release.private_root import PrivateRoot  # noqa: PLC0415 - start-up time

    os.umask(0o077)
    return PrivateRoot.open(config.root, create=False)


def _first(profile: Path | None, model_id: str | None) -> First | None:
    from ticket_agent.peft.release.canonical import MAX_JSON_BYTES  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.profile import parse_profile  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.serve_deployed import First  # noqa: PLC0415 - start-up time

    if profile is None or model_id is None:
        return None
    try:
        with profile.open("rb") as stream:
            data = stream.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        fail(f"cannot read {profile}: {error.strerror or error}", Exit.FAILURE)
    return First(profile=parse_profile(data), model_id=model_id)


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
