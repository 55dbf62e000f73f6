"""`journal show|verify|acknowledge-gap`, and the group of all commands on a journal."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from ticket_agent.cli.assembly import now_ms
from ticket_agent.cli.journal_explain import explain_operation
from ticket_agent.cli.journal_export import export
from ticket_agent.cli.journal_gc import collect_garbage
from ticket_agent.cli.journal_import import import_state
from ticket_agent.cli.journal_list import list_operations
from ticket_agent.cli.journal_records import find, full
from ticket_agent.cli.journal_replay import replay_operations
from ticket_agent.cli.journal_report import report
from ticket_agent.cli.journal_resolve import resolve_operation
from ticket_agent.cli.options import default_state_dir, login_name, state_dir_option
from ticket_agent.cli.output import emit_json, fail, plain, stamp, state_text, styled
from ticket_agent.cli.status import journal_view, require_journal
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.journal.record import HistoryEntry, Record
    from ticket_agent.journal.view import JournalView

__all__ = ["journal"]


_DECIDED = "provider-result-persisted"
_STATE_WIDTH = len(_DECIDED) + 2


@click.group()
def journal() -> None:
    """Read a journal, dead or alive, on a copy, without root; replay, resolve, clean up, take over."""


@journal.command()
@state_dir_option
@click.argument("operation")
@click.option("--json", "as_json", is_flag=True, help="One JSON line.")
def show(*, state_dir: Path | None, operation: str, as_json: bool) -> None:
    """Show one operation: its timeline, plan, evidence and staged bytes.

    OPERATION is an admission sequence, a ticket id, a journal key, or the beginning of one of the latter two.
    """
    view = journal_view(state_dir or default_state_dir())
    record = find(list(view.records.values()), operation)
    if as_json:
        emit_json("operation", full(record))
    else:
        _print_full(record)


@journal.command()
@state_dir_option
@click.option("--json", "as_json", is_flag=True, help="One JSON line per file (NDJSON).")
def verify(*, state_dir: Path | None, as_json: bool) -> None:
    """Check every record, the cursor, acknowledgements and archive: PASS or FAIL with offset and reason."""
    from ticket_agent.journal.errors import JournalError  # noqa: PLC0415 - start-up time
    from ticket_agent.journal.view import verify as verify_files  # noqa: PLC0415 - start-up time

    directory = state_dir or default_state_dir()
    try:
        require_journal(directory)
        verdicts = verify_files(directory)
    except (JournalError, OSError) as error:
        fail(f"cannot verify {directory}: {error}", Exit.FAILURE)
    for verdict in verdicts:
        if as_json:
            emit_json(
                "verdict",
                {"file": verdict.file, "ok": verdict.ok, "offset": verdict.offset, "reason": verdict.reason},
            )
        elif verdict.ok:
            note = f"  ({verdict.reason})" if verdict.reason else ""
            click.echo(f"{styled('PASS', 'green')}  {plain(verdict.file)}{note}")
        else:
            where = f" at byte {verdict.offset}" if verdict.offset else ""
            click.echo(f"{styled('FAIL', 'red')}  {plain(verdict.file)}{where}: {plain(verdict.reason)}")
    failed = sum(not verdict.ok for verdict in verdicts)
    if not as_json:
        click.echo(f"{len(verdicts)} files, {failed} failed")
    sys.exit(int(Exit.DEGRADED if failed else Exit.OK))


@journal.command(name="acknowledge-gap")
@state_dir_option
@click.option("--from", "first", type=click.IntRange(1), required=True, help="First admission sequence.")
@click.option("--through", type=click.IntRange(1), required=True, help="Last admission sequence.")
@click.option("--reason", required=True, help="Why these admissions are given up; kept for ever.")
@click.option("--by", default=None, help="Who says so (default: the login name).")
@click.option("--epoch", type=click.IntRange(1), help="Hive epoch (default: the current one).")
@click.option("--json", "as_json", is_flag=True, help="One JSON line.")
def acknowledge_gap(
    *,
    state_dir: Path | None,
    first: int,
    through: int,
    reason: str,
    by: str | None,
    epoch: int | None,
    as_json: bool,
) -> None:
    """Give up a range of admissions that may have been lost; a running agent takes note at its next pass."""
    from ticket_agent.journal.errors import JournalError, RecordError  # noqa: PLC0415 - start-up time
    from ticket_agent.journal.gaps import acknowledge_gap as write  # noqa: PLC0415 - start-up time

    directory = state_dir or default_state_dir()
    if through < first:
        fail(f"--through {through} lies before --from {first}", Exit.USAGE)
    view = journal_view(directory)
    try:
        written = write(
            directory,
            epoch=epoch or view.cursor.epoch,
            first=first,
            through=through,
            reason=reason,
            by=by or login_name(),
            clock=now_ms,
        )
    except RecordError as error:
        fail(str(error), Exit.USAGE)
    except (JournalError, OSError) as error:
        fail(str(error), Exit.FAILURE)
    still = _what_is_still_held(journal_view(directory))
    if as_json:
        told = {name: getattr(written, name) for name in ("epoch", "first", "through", "reason", "by")}
        emit_json("acknowledged", told | {"next": still})
        return
    click.echo(f"acknowledged: admissions {written.first}..{written.through} of hive epoch {written.epoch}")
    click.echo(still)


def _what_is_still_held(view: JournalView) -> str:
    from ticket_agent.journal.gaps import covers  # noqa: PLC0415 - start-up time

    held = view.cursor.held
    if held is None:
        return "no gap is held at present; the agent will not hold one for these admissions"
    if covers(view.acknowledgements, held.epoch, held.first, held.through):
        return f"the held gap {held.first}..{held.through} is covered; the agent goes on at its next pass"
    return f"the held gap {held.first}..{held.through} of epoch {held.epoch} is NOT covered yet"


def _restarted(before: HistoryEntry, after: HistoryEntry) -> str:
    """What lies between two entries, as far as they tell."""
    if after.boot_id != before.boot_id:
        return styled("  (host rebooted)", "magenta")
    return styled("  (agent restarted)", "magenta") if after.agent != before.agent else ""


def _print_full(record: Record) -> None:
    shown = full(record)
    click.echo(f"operation  {record.key}   (ops/{record.name})")
    what = plain(f"{shown['action']} on {shown['subject']}")
    click.echo(f"action     {what}, admission {record.sequence} of epoch {record.epoch}")
    click.echo(f"request    {plain(shown['request'])}")
    click.echo("timeline")
    before: int | None = None
    last = record.history[0]
    for entry in record.history:
        took = f"+{entry.unix_ms - before} ms" if before is not None else ""
        restarted = _restarted(last, entry)
        padding = " " * (_STATE_WIDTH - len(entry.state.value)) if took or restarted else ""
        click.echo(f"  {stamp(entry.unix_ms)}  {state_text(entry.state.value)}{padding}{took}{restarted}")
        before, last = entry.unix_ms, entry
    if record.uncertain is not None:
        decided = [entry.unix_ms for entry in record.history if entry.state.value == _DECIDED]
        until = stamp(decided[0]) if decided else "now"
        click.echo(
            styled(
                f"uncertain  {stamp(record.uncertain.since_unix_ms)} .. {until}: {record.uncertain.detail}",
                "magenta",
            )
        )
    if shown["plan"] is not None:
        click.echo(f"before     {json.dumps(shown['plan']['before'])}")
        click.echo(f"intent     {json.dumps(shown['plan']['intent'])}")
    if record.result is not None:
        resolved = shown["resolved"]
        how = "observed" if record.result.reconciled else "as executed" if resolved is None else "by hand"
        click.echo(f"outcome    {state_text(record.result.outcome)} ({how}): {record.result.message}")
        if resolved is not None:
            who = f"as {resolved['said']} by {plain(resolved['by'])} at {stamp(resolved['unix_ms'])}"
            click.echo(f"resolved   {who}: {plain(resolved['reason'])}")
            click.echo(f"observed   {plain(resolved['observed'])}")
        elif record.result.evidence:
            click.echo(f"evidence   {json.dumps(dict(record.result.evidence))}")
    if record.staged is not None:
        click.echo(f"staged     {record.staged.path}\n           {record.staged.line}")
    if record.withdrawn is not None:
        click.echo(f"withdrawn  {record.withdrawn}")


journal.add_command(list_operations)
journal.add_command(explain_operation)
journal.add_command(replay_operations)
journal.add_command(resolve_operation)
journal.add_command(collect_garbage)
journal.add_command(report)
journal.add_command(export)
journal.add_command(import_state)
