"""`journal list|show|verify|acknowledge-gap`: offline, without root, on a copy; only the last one writes."""

from __future__ import annotations

import getpass
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.assembly import now_ms
from ticket_agent.cli.options import default_state_dir, state_dir_option
from ticket_agent.cli.output import age, emit_json, fail, plain, stamp, state_text, styled, table
from ticket_agent.cli.status import journal_view, require_journal
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.journal.record import Record
    from ticket_agent.journal.view import JournalView

__all__ = ["journal"]


_DECIDED = "provider-result-persisted"
_STATES = ("prepared", "executing", _DECIDED, "result-published", "terminal")
_STATE_WIDTH = len(_DECIDED) + 2


@click.group()
def journal() -> None:
    """Read and verify a journal; works with the daemon dead or alive, on a copy, and without root."""


@journal.command(name="list")
@state_dir_option
@click.option(
    "--state", "states", multiple=True, type=click.Choice(_STATES), help="Only this state; may be repeated."
)
@click.option("--uncertain", is_flag=True, help="Only operations whose outcome is unknown.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line per operation (NDJSON).")
def list_(*, state_dir: Path | None, states: tuple[str, ...], uncertain: bool, as_json: bool) -> None:
    """List operations, oldest admission first."""
    view = journal_view(state_dir or default_state_dir())
    chosen = [
        record
        for record in sorted(
            view.records.values(), key=lambda record: (record.epoch, record.family, record.sequence)
        )
        if (not states or record.state.value in states) and (not uncertain or _is_uncertain(record))
    ]
    if as_json:
        for record in chosen:
            emit_json("operation", _brief(record))
        for item in view.quarantined:
            emit_json("quarantined", {"file": item.name, "reason": item.reason})
    else:
        click.echo(table(_HEADERS, [_row(record) for record in chosen]) if chosen else "no operations")
        for item in view.quarantined:
            click.echo(styled(f"quarantined: ops/{plain(item.name)}: {plain(item.reason)}", "red"))
    sys.exit(int(Exit.DEGRADED if view.quarantined else Exit.OK))


@journal.command()
@state_dir_option
@click.argument("operation")
@click.option("--json", "as_json", is_flag=True, help="One JSON line.")
def show(*, state_dir: Path | None, operation: str, as_json: bool) -> None:
    """Show one operation: its timeline, plan, evidence and staged bytes.

    OPERATION is an admission sequence, a ticket id, a journal key, or the beginning of one of the latter two.
    """
    view = journal_view(state_dir or default_state_dir())
    record = _find(list(view.records.values()), operation)
    if as_json:
        emit_json("operation", _full(record))
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
            by=by or _login_name(),
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


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _what_is_still_held(view: JournalView) -> str:
    from ticket_agent.journal.gaps import covers  # noqa: PLC0415 - start-up time

    held = view.cursor.held
    if held is None:
        return "no gap is held at present; the agent will not hold one for these admissions"
    if covers(view.acknowledgements, held.epoch, held.first, held.through):
        return f"the held gap {held.first}..{held.through} is covered; the agent goes on at its next pass"
    return f"the held gap {held.first}..{held.through} of epoch {held.epoch} is NOT covered yet"


_HEADERS = ["SEQ", "EPOCH", "TICKET", "ACTION", "SUBJECT", "STATE", "OUTCOME", "CHANGED"]


def _request(record: Record) -> dict[str, Any]:
    """The request's members for display; the record's bytes stay the truth."""
    try:
        document = json.loads(record.request)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _is_uncertain(record: Record) -> bool:
    return record.uncertain is not None and record.result is None


def _row(record: Record) -> list[str]:
    request = _request(record)
    return [
        str(record.sequence),
        str(record.epoch),
        plain(str(request.get("id", record.key))),
        plain(str(request.get("action", "?"))),
        plain(str(request.get("subject_ref", "-"))),
        state_text("uncertain" if _is_uncertain(record) else record.state.value),
        state_text(record.result.outcome) if record.result is not None else "-",
        age(record.changed_unix_ms, now_ms()),
    ]


def _brief(record: Record) -> dict[str, Any]:
    request = _request(record)
    return {
        "key": record.key,
        "family": record.family,
        "epoch": record.epoch,
        "sequence": record.sequence,
        "id": request.get("id"),
        "action": request.get("action"),
        "subject": request.get("subject_ref"),
        "worker": request.get("receipt_worker_id"),
        "state": record.state.value,
        "uncertain": _is_uncertain(record),
        "outcome": record.result.outcome if record.result is not None else None,
        "changed_unix_ms": record.changed_unix_ms,
    }


def _full(record: Record) -> dict[str, Any]:
    full: dict[str, Any] = {
        "file": record.name,
        "request": record.request.decode("utf-8", "replace"),
        "history": [
            {
                "state": entry.state.value,
                "unix_ms": entry.unix_ms,
                "boot_id": entry.boot_id,
                "agent": entry.agent,
            }
            for entry in record.history
        ],
        "plan": {"before": record.plan.before, "intent": record.plan.intent}
        if record.plan is not None
        else None,
        "uncertain_since": record.uncertain.since_unix_ms if record.uncertain is not None else None,
        "uncertain_detail": record.uncertain.detail if record.uncertain is not None else None,
        "result": (
            {
                "outcome": record.result.outcome,
                "message": record.result.message,
                "reconciled": record.result.reconciled,
                "evidence": record.result.evidence,
            }
            if record.result is not None
            else None
        ),
        "staged": {"path": record.staged.path, "line": record.staged.line}
        if record.staged is not None
        else None,
        "withdrawn": record.withdrawn,
    }
    return _brief(record) | full


def _print_full(record: Record) -> None:
    full = _full(record)
    click.echo(f"operation  {record.key}   (ops/{record.name})")
    what = plain(f"{full['action']} on {full['subject']}")
    click.echo(f"action     {what}, admission {record.sequence} of epoch {record.epoch}")
    click.echo(f"request    {plain(full['request'])}")
    click.echo("timeline")
    before: int | None = None
    boot = record.history[0].boot_id
    for entry in record.history:
        took = f"+{entry.unix_ms - before} ms" if before is not None else ""
        restarted = styled("  (host rebooted)", "magenta") if entry.boot_id != boot else ""
        padding = " " * (_STATE_WIDTH - len(entry.state.value)) if took or restarted else ""
        click.echo(f"  {stamp(entry.unix_ms)}  {state_text(entry.state.value)}{padding}{took}{restarted}")
        before, boot = entry.unix_ms, entry.boot_id
    if record.uncertain is not None:
        decided = [entry.unix_ms for entry in record.history if entry.state.value == _DECIDED]
        until = stamp(decided[0]) if decided else "now"
        click.echo(
            styled(
                f"uncertain  {stamp(record.uncertain.since_unix_ms)} .. {until}: {record.uncertain.detail}",
                "magenta",
            )
        )
    if full["plan"] is not None:
        click.echo(f"before     {json.dumps(full['plan']['before'])}")
        click.echo(f"intent     {json.dumps(full['plan']['intent'])}")
    if record.result is not None:
        how = "observed" if record.result.reconciled else "as executed"
        click.echo(f"outcome    {state_text(record.result.outcome)} ({how}): {record.result.message}")
        if record.result.evidence:
            click.echo(f"evidence   {json.dumps(dict(record.result.evidence))}")
    if record.staged is not None:
        click.echo(f"staged     {record.staged.path}\n           {record.staged.line}")
    if record.withdrawn is not None:
        click.echo(f"withdrawn  {record.withdrawn}")


_SHOWN = 5
"""Most candidates named for an ambiguous OPERATION."""


def _find(records: list[Record], wanted: str) -> Record:
    exact = [r for r in records if wanted in {r.key, _request(r).get("id")} or str(r.sequence) == wanted]
    found = exact or [
        r for r in records if r.key.startswith(wanted) or str(_request(r).get("id", "")).startswith(wanted)
    ]
    if not found:
        fail(f"no operation `{wanted}` in this journal; `ticket-agent journal list` shows them", Exit.FAILURE)
    if len(found) > 1:
        names = ", ".join(record.key for record in found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
        fail(f"`{wanted}` fits {len(found)} operations ({names}); give one whole key", Exit.FAILURE)
    return found[0]
