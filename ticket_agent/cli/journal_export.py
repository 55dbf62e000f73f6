"""`journal export`: a journal as one file that can be handed to somebody else."""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING, cast

import click

from ticket_agent import __version__
from ticket_agent.cli.options import default_state_dir, state_dir_option
from ticket_agent.cli.output import emit_json, fail, plain, styled
from ticket_agent.cli.output_file import STDOUT, output_file
from ticket_agent.cli.status import require_journal
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.journal.bundle import Bundle
    from ticket_agent.journal.same_tar import Writer

__all__ = ["export"]

TOP = "journal-export"
"""Folder that the bundle unpacks into; it is a state directory for every reading command."""
_COMPRESSED = (".tar.gz", ".tgz")
_PLAIN = ".tar"


@click.command()
@state_dir_option
@click.argument("target", metavar="FILE")
@click.option("--no-redact", is_flag=True, help="Byte for byte, names and damaged files included.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line about the bundle.")
def export(*, state_dir: Path | None, target: str, no_redact: bool, force: bool, as_json: bool) -> None:
    """Write records, cursor, acknowledgements and archive into one bundle with a manifest of digests.

    FILE ends in .tar.gz, .tgz or .tar; - is standard output, compressed. The same journal always gives the
    same bytes; a .tar does so whatever library compresses. The bundle unpacks into `journal-export`, which
    `journal verify`, `list`, `show` and `report` read with --state-dir.

    Names (ids, keys, subjects, Workers, lease ids, tags, boot ids, whatever is no known word) are replaced by
    stand-ins: x- and 16 hex digits of the name's SHA-256, so that equal names stay equal. Times, numbers,
    states, outcomes, actions and the words of the agent's own messages stay. Records are sealed anew; the
    manifest has size and digest of each member and of the file that it was made from. What cannot be read is
    not copied, only listed there. Never included: credentials (the journal holds none), the daemon's status
    file, the reserve; process ids are set to 0.
    """
    compressed = target == STDOUT or target.endswith(_COMPRESSED)
    if not compressed and not target.endswith(_PLAIN):
        fail(f"{target} must end in .tar.gz, .tgz or .tar", Exit.USAGE)
    if target == STDOUT and as_json:
        fail("--json and the bundle cannot both go to standard output; name a file", Exit.USAGE)
    directory = state_dir or default_state_dir()
    bundle, size = _written(directory, target, redact=not no_redact, force=force, compressed=compressed)
    _say(target, bundle, size, as_json=as_json)
    sys.exit(int(Exit.DEGRADED if bundle.damaged else Exit.OK))


def _written(
    directory: Path, target: str, *, redact: bool, force: bool, compressed: bool
) -> tuple[Bundle, int]:
    from ticket_agent.cli.export_words import WORDS  # noqa: PLC0415 - start-up time
    from ticket_agent.journal.bundle import Bundle  # noqa: PLC0415 - start-up time
    from ticket_agent.journal.errors import JournalError  # noqa: PLC0415 - start-up time
    from ticket_agent.journal.redaction import Redaction  # noqa: PLC0415 - start-up time
    from ticket_agent.journal.same_tar import writing  # noqa: PLC0415 - start-up time

    try:
        require_journal(directory)
        bundle = Bundle(directory, Redaction(words=WORDS) if redact else None)
        with output_file(target, force=force, state_dir=directory) as stream:
            counted = _Counted(stream)
            with writing(cast("IO[bytes]", counted), compressed=compressed) as archive:
                _fill(archive, bundle)
    except JournalError as error:
        fail(f"cannot export {directory}: {error}", Exit.FAILURE)
    return bundle, counted.size


class _Counted:
    """A stream to write to that knows its length; standard output cannot be asked."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.size = 0

    def write(self, data: bytes) -> int:
        self._stream.write(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._stream.flush()


def _fill(archive: Writer, bundle: Bundle) -> None:
    from ticket_agent.journal.state_dir import ARCHIVE, GAPS, OPS  # noqa: PLC0415 - start-up time

    for folder in ("", f"/{OPS}", f"/{GAPS}", f"/{ARCHIVE}"):
        archive.add_folder(f"{TOP}{folder}")
    for member in bundle.members():
        archive.add_file(f"{TOP}/{member.path}", member.data)
    manifest = bundle.manifest(f"ticket-agent {__version__}")
    archive.add_file(f"{TOP}/{manifest.path}", manifest.data)


def _say(target: str, bundle: Bundle, size: int, *, as_json: bool) -> None:
    redacted = bundle.redaction is not None
    if as_json:
        emit_json(
            "export",
            {
                "file": target,
                "bytes": size,
                "members": len(bundle.exported),
                "damaged": len(bundle.damaged),
                "redacted": redacted,
            },
        )
        return
    out = target == STDOUT
    where = "standard output" if out else plain(target)
    how = "names replaced" if redacted else "NOT redacted"
    click.echo(f"wrote {where}: {size} bytes, {len(bundle.exported)} files, {how}", err=out)
    for entry in bundle.damaged:
        what = f"damaged: {plain(entry['path'])}: {plain(entry['problem'])}"
        click.echo(styled(what, "red"), err=out)
