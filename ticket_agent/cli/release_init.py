"""`release init`: a directory that a first release can be made from, on a CPU and without a network."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ticket_agent.cli.options import DirectoryPath
from ticket_agent.cli.output import emit_json, plain
from ticket_agent.cli.peft_roots import one_line_errors

if TYPE_CHECKING:
    from ticket_agent.peft.release.skeleton import Skeleton

__all__ = ["init"]

_PORTS = (8101, 8102, 8103)
_FILES = (
    ("release.toml", "how releases run on this host"),
    ("selection.toml", "what is released: data, settings, frozen prompts, the whole native stack"),
    ("train.json, eval.json", "rows to train and to evaluate on"),
    ("base/", "the base model"),
    ("source.key", "vouches for the inputs; private"),
    ("signing.key, signing.pub", "sign what came of a release; the second one is for who verifies"),
    ("token", "that every request to a served model must carry; private"),
    ("root/", "the private root of the releases"),
)


@click.command()
@click.argument("directory", type=DirectoryPath())
@click.option(
    "--base",
    type=DirectoryPath(),
    help="Base model (a Llama of Hugging Face) to copy; a tiny random one is made without.",
)
@click.option(
    "--python",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Interpreter that trains and serves (default: this one).",
)
@click.option(
    "--port",
    "ports",
    multiple=True,
    type=click.IntRange(1024, 65535),
    help="Port for servers, at least two; may be repeated (default: 8101 to 8103).",
)
@click.option("--unconfined", is_flag=True, help="Let phases run without confinement where none works.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line about what was made.")
def init(
    *,
    directory: Path,
    base: Path | None,
    python: Path | None,
    ports: tuple[int, ...],
    unconfined: bool,
    as_json: bool,
) -> None:
    """Make DIRECTORY with all that a first release takes: configuration, keys, data, a base model.

    DIRECTORY must be empty or absent. The packages that are pinned are those that the interpreter has; it
    needs the extras train and release.
    """
    from ticket_agent.peft.release.installed import ask_interpreter  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.skeleton import make_skeleton  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.stack import TRANSFORMERS_SERVE, required_packages  # noqa: PLC0415

    interpreter = (python or Path(sys.executable)).absolute()
    with one_line_errors():
        packages = required_packages(TRANSFORMERS_SERVE)
        installed = ask_interpreter(interpreter, packages)
        made = make_skeleton(
            _real(directory),
            python=interpreter,
            installed=installed,
            versions=installed.require(packages, interpreter),
            ports=ports or _PORTS,
            base=base,
            unconfined=unconfined,
        )
    _tell(made, as_json=as_json)


def _real(directory: Path) -> Path:
    """The path without links, as a private root wants it."""
    return directory.absolute().parent.resolve() / directory.name


def _tell(made: Skeleton, *, as_json: bool) -> None:
    commands = _next(made)
    if as_json:
        emit_json(
            "release-init",
            {
                "directory": str(made.folder),
                "release_config": str(made.config),
                "selection": str(made.selection),
                "changed": list(made.changed),
                "next": commands,
            },
        )
        return
    click.echo(f"made {plain(str(made.folder))}")
    width = max(len(name) for name, _ in _FILES)
    for name, text in _FILES:
        click.echo(f"  {name:<{width}}  {text}")
    for line in made.changed:
        click.echo(f"changed in the copy of the base model: {plain(line)}")
    click.echo("next:")
    for command in commands:
        click.echo(f"  {plain(command)}")


def _next(made: Skeleton) -> list[str]:
    config, selection = shlex.quote(str(made.config)), shlex.quote(str(made.selection))
    names = "--operation release-1 --model assistant --entry train"
    return [
        f"ticket-agent release prepare --release-config {config} --selection {selection} {names}",
        f"ticket-agent release serve --release-config {config} --operation release-1",
        f"ticket-agent run --peft-release-config {config}",
        f"ticket-agent release plan --release-config {config} --operation release-1",
        f"ticket-agent release submit --release-config {config} --operation release-1 --worker WORKER",
        f"ticket-agent release watch --release-config {config} release-1",
    ]
