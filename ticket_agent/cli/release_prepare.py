"""`release prepare`: a request and all that it names, from what an engineer selected."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.options import DirectoryPath
from ticket_agent.cli.output import emit_json, fail, plain
from ticket_agent.cli.peft_roots import one_line_errors
from ticket_agent.cli.release_common import release_config, release_config_option
from ticket_agent.cli.release_differences import difference_lines
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.peft.release.adapter_choice import AdapterChoice
    from ticket_agent.peft.release.prepare import PreparedRelease

__all__ = ["prepare"]

LOCK_S = 5.0
"""How long to wait for somebody else who works in the root."""


@click.command()
@release_config_option
@click.option(
    "--selection",
    "selection_file",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="TOML file that says what is released.",
)
@click.option("--operation", required=True, help="Id of the release, never used before.")
@click.option("--model", required=True, help="Id of the model that it is a release of.")
@click.option(
    "--entry", type=click.Choice(["train", "import"]), required=True, help="Where the adapter comes from."
)
@click.option("--adapter", type=DirectoryPath(), help="Adapter to import, as Hugging Face's PEFT saves it.")
@click.option("--adapter-source", help="Where that comes from, like its id on a hub (default: local).")
@click.option("--adapter-revision", help="Which version of it (default: its own digest).")
@click.option("--adapter-license", help="Its licence, one of the selection's (default: the only one).")
@click.option(
    "--resume", metavar="OPERATION", help="Go on training from the newest checkpoint of that release."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line with the digests.")
def prepare(*, config_file: Path, selection_file: Path, as_json: bool, **options: Any) -> None:
    """Make the documents of a release in the private root, and take its operation id.

    Everything is checked before anything is stored. The same selection gives the same digests, and preparing
    again changes nothing; an id that was prepared for something else is refused.
    """
    adapter = _adapter(options)
    config = release_config(config_file)
    from ticket_agent.peft.release.prepare import prepare_release  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.private_root import PrivateRoot  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.request import Entry  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.selection import load_selection  # noqa: PLC0415 - start-up time

    with one_line_errors(), _differences_told():
        selection = load_selection(selection_file)
        with PrivateRoot.open(config.root, create=True) as root, root.locked(wait_s=LOCK_S):
            prepared = prepare_release(
                root,
                selection,
                operation_id=options["operation"],
                model_id=options["model"],
                entry=Entry(options["entry"]),
                adapter=adapter,
                resume=options["resume"],
            )
    _tell(prepared, as_json=as_json)


@contextmanager
def _differences_told() -> Iterator[None]:
    """Where an adapter does not fit, tell all of it before the one line of the error."""
    from ticket_agent.peft.release.adapter_choice import AdapterRefusedError  # noqa: PLC0415 - start-up time

    try:
        yield
    except AdapterRefusedError as error:
        for line in difference_lines(error.differences):
            click.echo(line, err=True)
        raise


def _adapter(options: dict[str, Any]) -> AdapterChoice | None:
    from ticket_agent.peft.release.adapter_choice import AdapterChoice  # noqa: PLC0415 - start-up time

    given = {
        name: options[f"adapter_{name}"]
        for name in ("source", "revision", "license")
        if options[f"adapter_{name}"] is not None
    }
    if options["entry"] == "import":
        if options["adapter"] is None:
            fail("--entry import takes an adapter: name its directory with --adapter", Exit.USAGE)
        if options["resume"] is not None:
            fail("--resume goes on with a training; an import has none", Exit.USAGE)
        license_ref = given.pop("license", None)
        return AdapterChoice(path=options["adapter"], license_ref=license_ref, **given)
    if options["adapter"] is not None or given:
        fail("--entry train takes no adapter; use --entry import", Exit.USAGE)
    return None


def _tell(prepared: PreparedRelease, *, as_json: bool) -> None:
    request = prepared.request
    document = {
        "operation_id": request.operation_id,
        "model_id": request.model_id,
        "entry": request.entry.value,
        "request_sha256": prepared.request_sha256,
        "profile_sha256": prepared.profile_sha256,
        "input_sha256": prepared.input_sha256,
        "base_sha256": prepared.profile.base,
        "adapter_sha256": prepared.adapter_sha256,
        "generation": request.baseline.generation,
        "passed_over": list(prepared.passed_over),
        "again": prepared.again,
    }
    if as_json:
        emit_json("release-prepared", document)
        return
    note = " (it was already; nothing was changed)" if prepared.again else ""
    click.echo(f"prepared {request.operation_id}: {request.entry} of {request.model_id}{note}")
    for name in ("request", "profile", "input", "base", "adapter"):
        if (sha256 := document[f"{name}_sha256"]) is not None:
            click.echo(f"  {name:<8}  {sha256}")
    click.echo(f"  starts from generation {request.baseline.generation}")
    if prepared.passed_over:
        click.echo(f"  not used of the base model's directory: {plain(', '.join(prepared.passed_over))}")
