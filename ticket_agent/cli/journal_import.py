"""`journal import`: take over what the published Rust agent left, so that a host can switch without a gap."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.assembly import boot_id, now_ms
from ticket_agent.cli.options import DirectoryPath, default_state_dir, state_dir_option
from ticket_agent.cli.output import emit_json, fail, plain, state_text, table
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ticket_agent.cli.foreign_dir import ForeignDir
    from ticket_agent.journal.record import Record
    from ticket_agent.journal.takeover import Takeover

__all__ = ["NEXT", "import_state"]

NEXT = {
    "prepared": "performed once, if root still knows it",
    "executing": "observed, never performed again",
    "provider-result-persisted": "its staged line is published",
    "result-published": "ended",
    "terminal": "nothing",
}
"""What `run` does with an operation that was taken over in this state."""

NEXT_OF_RELAY = {
    "prepared": "`run --relay` sends it once, unless its peer shows it",
    "executing": "`run --relay` looks for it and its result at the peer, and does not send it",
}

_HEADERS = ["SEQ", "EPOCH", "TICKET", "ACTION", "SUBJECT", "STATE", "OUTCOME", "NEXT"]


@click.command(name="import")
@click.option(
    "--from",
    "source",
    type=DirectoryPath(),
    required=True,
    help="Directory of the published agent (execution-journal.json, cursor.json).",
)
@state_dir_option
@click.option("--mount", help="Where that agent saw the host tree (default: as its results say, or /host).")
@click.option(
    "--resend-pending",
    is_flag=True,
    help="Send what its relay queue has as pending, unless the peer shows it; else it is only looked for.",
)
@click.option("--dry-run", is_flag=True, help="Check everything, show the plan, write nothing.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON line per operation, then one in all (NDJSON)."
)
def import_state(
    *,
    source: Path,
    state_dir: Path | None,
    mount: str | None,
    resend_pending: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Take over journal, cursor and relay queue of the published Rust agent, all or nothing.

    The state directory must be new or empty. What was open goes on where it stood; what was executing is only
    observed; what was ended is never run again. That agent must be stopped and must not be started again; its
    files are read under its lock and stay as they are. After an interruption the same command goes on.
    """
    target = state_dir or default_state_dir()
    found, takeover, records = _take(source, target, mount, resend=resend_pending, dry_run=dry_run)
    told = _document(found, takeover, records, target) | {"dry_run": dry_run}
    if as_json:
        for record in records:
            emit_json("takeover-operation", _members(record))
        emit_json("takeover", told)
    else:
        _print(told, records)


def _take(
    source: Path, target: Path, mount: str | None, *, resend: bool, dry_run: bool
) -> tuple[ForeignDir, Takeover, list[Record]]:
    """Read, check and, unless it is a dry run, write; every refusal ends the command."""
    from ticket_agent.agent.foreign_journal import ForeignStateError  # noqa: PLC0415 - start-up time
    from ticket_agent.cli.foreign_dir import StillRunningError, opened, read_state  # noqa: PLC0415 - as above
    from ticket_agent.journal.errors import FenceHeldError, JournalError  # noqa: PLC0415 - start-up time
    from ticket_agent.journal.fs import RealFs  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.errors import ProtocolError  # noqa: PLC0415 - start-up time

    _require_apart(source, target)
    try:
        with opened(source) as fd:
            found = read_state(fd, RealFs())
            takeover, records = _written(found, source, target, mount, resend=resend, dry_run=dry_run)
    except (StillRunningError, FenceHeldError) as error:
        fail(f"cannot take over {source} into {target}: {error}", Exit.OTHER_OWNER)
    except ForeignStateError as error:
        fail(f"cannot take over {source}: {error}; nothing was taken over", Exit.FAILURE)
    except (JournalError, ProtocolError) as error:
        fail(f"cannot take over into {target}: {error}", Exit.FAILURE)
    except OSError as error:
        fail(f"cannot read {source}: {error.strerror or error}", Exit.FAILURE)
    return found, takeover, records


def _written(
    found: ForeignDir, source: Path, target: Path, mount: str | None, *, resend: bool, dry_run: bool
) -> tuple[Takeover, list[Record]]:
    from ticket_agent.agent.foreign_relay import relay_records_of  # noqa: PLC0415 - start-up time
    from ticket_agent.agent.takeover import cursor_of, mount_of, records_of, takeover_of  # noqa: PLC0415 - as above
    from ticket_agent.journal.record import encode_record  # noqa: PLC0415 - start-up time
    from ticket_agent.journal.taking_over import require_empty, take_over  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.paths import DEFAULT_MOUNT  # noqa: PLC0415 - start-up time

    seen_from = mount or mount_of(found.state) or DEFAULT_MOUNT
    wanted = takeover_of(
        found.state,
        directory=str(source.resolve()),
        sha256=found.sha256,
        unix_ms=now_ms(),
        boot_id=boot_id(),
    )

    def build(begun: Takeover) -> list[Record]:
        return [
            *records_of(found.state, begun, mount=seen_from),
            *relay_records_of(found.relay, begun, mount=seen_from, resend=resend),
        ]

    built = build(wanted)
    if dry_run:
        require_empty(target)
        for record in built:
            encode_record(record)
        return wanted, built
    done = take_over(
        target,
        takeover=wanted,
        build=build,
        cursor=lambda begun: cursor_of(found.state, begun),
    )
    return done, build(replace(done, finished=False))


def _require_apart(source: Path, target: Path) -> None:
    """Both programs have an ``agent.lock`` and a ``cursor.json``: in one directory they would overwrite."""
    try:
        same = source.samefile(target)
    except OSError:
        return
    if same:
        fail("--from and the state directory are the same; name a new --state-dir", Exit.USAGE)


def _members(record: Record) -> dict[str, Any]:
    from ticket_agent.cli.journal_records import brief  # noqa: PLC0415 - only for --json

    staged = {"path": record.staged.path, "line": record.staged.line} if record.staged is not None else None
    return brief(record) | {"staged": staged, "next": _next(record)}


def _next(record: Record) -> str:
    """What `run` does with it next, in words."""
    from ticket_agent.agent.keys import RELAY_FAMILY  # noqa: PLC0415 - start-up time

    state = record.state.value
    return NEXT[state] if record.family != RELAY_FAMILY else NEXT_OF_RELAY.get(state, NEXT[state])


def _document(
    found: ForeignDir, takeover: Takeover, records: Sequence[Record], target: Path
) -> dict[str, Any]:
    states: dict[str, int] = {}
    for record in records:
        states[record.state.value] = states.get(record.state.value, 0) + 1
    return {
        "from": takeover.source,
        "state_dir": str(target),
        "files": list(found.files),
        "sha256": takeover.sha256,
        "formats": sorted({lane.journal.format for lane in found.state.lanes}),
        "operations": len(records),
        "relayed": len(found.relay),
        "states": states,
        "ended_through": list(takeover.lanes),
        "seen": takeover.seen,
        "admission_lines_passed": takeover.lines,
        "caller_lines_passed": takeover.callers,
        "notes": list(found.notes),
    }


def _print(told: dict[str, Any], records: Sequence[Record]) -> None:
    from ticket_agent.cli.journal_records import row  # noqa: PLC0415 - only for people

    click.echo(f"from       {plain(told['from'])} ({', '.join(told['files'])})")
    click.echo(f"into       {plain(told['state_dir'])}")
    if records:
        rows = [[*row(record)[:-1], _next(record)] for record in records]
        # Uncertain is what `journal list` calls it; here the state is what was asked for.
        for cells, record in zip(rows, records, strict=True):
            cells[_HEADERS.index("STATE")] = state_text(record.state.value)
        click.echo(table(_HEADERS, rows))
    lanes = told["ended_through"]
    if len(lanes) == 1:
        click.echo(f"fence      nothing at or below admission {lanes[0]} runs again")
    else:
        shown = ", ".join(f"{index}: {through}" for index, through in enumerate(lanes))
        click.echo(f"fence      nothing at or below these admissions runs again, by lane: {shown}")
    click.echo(f"callers    {told['caller_lines_passed']} lines of version 1 and 2 were passed")
    for note in told["notes"]:
        click.echo(f"note       {note}")
    if told["dry_run"]:
        click.echo(f"{told['operations']} operations would be taken over; nothing was written")
    else:
        click.echo(f"{told['operations']} operations taken over; do not start the former agent again")
