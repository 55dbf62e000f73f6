"""`install`: the files of a deployment, printed or staged; nothing of the system is touched."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Final

import click

from ticket_agent.cli.output import emit_json, fail
from ticket_agent.exits import Exit

__all__ = ["FILES", "InstallFile", "install"]

DEFAULT_PROGRAM: Final = "/opt/ticket-agent/bin/ticket-agent"
EVERYTHING: Final = "all"
_DOC: Final = "usr/share/doc/ticket-agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallFile:
    """One file of a deployment.

    Attributes:
        source: its name among the templates.
        path: where it belongs, below the root of the host or of a staging directory.
    """

    source: str
    path: str

    def text(self, program: str) -> str:
        """The file for an agent that is started as ``program``."""
        template = (
            files("ticket_agent.cli").joinpath("install_files", self.source).read_text(encoding="utf-8")
        )
        return template.replace("@program@", program)


FILES: Final[dict[str, InstallFile]] = {
    "unit": InstallFile(source="ticket-agent.service", path="usr/lib/systemd/system/ticket-agent.service"),
    "tmpfiles": InstallFile(source="ticket-agent.tmpfiles.conf", path="usr/lib/tmpfiles.d/ticket-agent.conf"),
    "sysusers": InstallFile(source="ticket-agent.sysusers.conf", path="usr/lib/sysusers.d/ticket-agent.conf"),
    "config": InstallFile(source="ticket-agent.toml", path="etc/ticket-agent/ticket-agent.toml"),
    "snapshots-unit": InstallFile(
        source="ticket-agent-snapshots.service", path="usr/lib/systemd/system/ticket-agent-snapshots.service"
    ),
    "release-bubblewrap": InstallFile(
        source="release-bubblewrap.conf", path=f"{_DOC}/release-bubblewrap.conf"
    ),
    "release-systemd": InstallFile(source="release-systemd.conf", path=f"{_DOC}/release-systemd.conf"),
    "containerfile": InstallFile(source="Containerfile", path=f"{_DOC}/Containerfile"),
    "notes": InstallFile(source="NOTES.txt", path=f"{_DOC}/NOTES.txt"),
}
"""By the name that ``--print`` takes."""


@click.command()
@click.option(
    "--print",
    "wanted",
    is_flag=False,
    flag_value=EVERYTHING,
    type=click.Choice([EVERYTHING, *FILES]),
    help="Print one file, or all of them.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write them below this directory, which must be empty or new.",
)
@click.option(
    "--program",
    default=DEFAULT_PROGRAM,
    show_default=True,
    help="Absolute path of ticket-agent on the host.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line per file (NDJSON).")
def install(*, wanted: str | None, output: Path | None, program: str, as_json: bool) -> None:
    """Print or stage the files of a deployment: systemd unit, configuration, container recipe, notes."""
    if (wanted is None) == (output is None):
        raise click.UsageError("give --print to read the files, or --output DIR to stage them")
    _require_program(program)
    if output is not None:
        _stage(output, program)
    for name in FILES if wanted in {None, EVERYTHING} else [wanted]:
        file = FILES[str(name)]
        if as_json:
            emit_json("install-file", {"path": f"/{file.path}", "text": file.text(program)})
        elif output is not None:
            click.echo(str(output / file.path))
        else:
            header = f"# ==> /{file.path}\n" if wanted == EVERYTHING else ""
            click.echo(header + file.text(program), nl=wanted == EVERYTHING)


def _require_program(program: str) -> None:
    plain = all("!" <= char <= "~" and char not in "\"'\\%$;#@" for char in program)
    if not plain or not PurePosixPath(program).is_absolute():
        fail(
            f"--program {program!r} must be an absolute path without blanks or special characters", Exit.USAGE
        )


def _stage(output: Path, program: str) -> None:
    """Write every file; the directory is the caller's own, and nothing in it is replaced."""
    try:
        output.mkdir(exist_ok=True)
        if any(output.iterdir()):
            fail(f"{output} is not empty; name a new or empty directory", Exit.USAGE)
        for file in FILES.values():
            _write(output, PurePosixPath(file.path), file.text(program))
    except OSError as error:
        fail(f"cannot write below {output}: {error.filename or output}: {error.strerror}", Exit.FAILURE)


def _write(output: Path, path: PurePosixPath, text: str) -> None:
    directory = output
    for part in path.parent.parts:
        directory /= part
        if not directory.is_dir():
            directory.mkdir()
            directory.chmod(0o755)  # as on a host, whatever the umask
    with (output / path).open("x", encoding="utf-8") as stream:
        stream.write(text)
        os.fchmod(stream.fileno(), 0o644)
