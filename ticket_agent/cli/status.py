"""`status`: what is open, uncertain, quarantined or held; read from files, with the daemon dead or alive."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.assembly import now_ms
from ticket_agent.cli.options import default_state_dir, state_dir_option
from ticket_agent.cli.output import age, emit_json, fail, state_text, styled, table
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.journal.view import JournalView

__all__ = ["journal_view", "status"]


@click.command()
@state_dir_option
@click.option("--json", "as_json", is_flag=True, help="One JSON line.")
def status(*, state_dir: Path | None, as_json: bool) -> None:
    """Show the state of a journal; the exit code is 4 when degraded, 7 when uncertain operations remain."""
    directory = state_dir or default_state_dir()
    view = journal_view(directory)
    document = _document(view, _left_by_daemon(directory))
    if as_json:
        emit_json("status", document)
    else:
        _print(view, document)
    sys.exit(document["exit"])


def journal_view(directory: Path) -> JournalView:
    """Read a journal, or end the command with one line."""
    from ticket_agent.journal.errors import JournalError  # noqa: PLC0415 - start-up time
    from ticket_agent.journal.view import read_journal  # noqa: PLC0415 - start-up time

    try:
        return read_journal(directory)
    except (JournalError, OSError) as error:
        fail(f"cannot read a journal in {directory}: {error}", Exit.FAILURE)


def _left_by_daemon(directory: Path) -> dict[str, Any]:
    from ticket_agent.agent.statusfile import read_status  # noqa: PLC0415 - start-up time

    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return {}
    try:
        return read_status(fd) or {}
    finally:
        os.close(fd)


def _document(view: JournalView, daemon: dict[str, Any]) -> dict[str, Any]:
    states: dict[str, int] = {}
    for record in view.records.values():
        states[record.state.value] = states.get(record.state.value, 0) + 1
    uncertain = [
        record for record in view.records.values() if record.uncertain is not None and record.result is None
    ]
    held = view.cursor.held
    degraded = bool(view.quarantined or view.cursor_problem or held)
    code = Exit.DEGRADED if degraded else Exit.UNCERTAIN if uncertain else Exit.OK
    return {
        "owner": {"pid": view.owner.pid, "boot_id": view.owner.boot_id} if view.owner is not None else None,
        "epoch": view.cursor.epoch,
        "consumed_sequence": view.cursor.consumed_sequence,
        "states": states,
        "uncertain": [
            {
                "key": record.key,
                "since_unix_ms": record.uncertain.since_unix_ms,
                "detail": record.uncertain.detail,
            }
            for record in uncertain
            if record.uncertain is not None
        ],
        "quarantined": [{"file": item.name, "reason": item.reason} for item in view.quarantined],
        "cursor_problem": view.cursor_problem,
        "held_gap": (
            {"epoch": held.epoch, "first": held.first, "through": held.through, "reason": held.reason}
            if held is not None
            else None
        ),
        "daemon": daemon or None,
        "exit": int(code),
    }


def _print(view: JournalView, document: dict[str, Any]) -> None:
    owner = document["owner"]
    click.echo(f"agent: {'running, pid ' + str(owner['pid']) if owner else 'not running'}")
    daemon = document["daemon"]
    if daemon is not None:
        click.echo(f"hive: {daemon['hive']} (as of {age(daemon['unix_ms'], now_ms())})")
    click.echo(f"hive epoch: {document['epoch']}, consumed through admission {document['consumed_sequence']}")
    states = ", ".join(f"{count} {state_text(state)}" for state, count in sorted(document["states"].items()))
    click.echo(f"operations: {states or 'none'}")
    _print_open(view, daemon or {})
    for item in document["quarantined"]:
        click.echo(styled(f"quarantined: ops/{item['file']}: {item['reason']}", "red"))
    if document["cursor_problem"]:
        click.echo(styled(f"cursor: {document['cursor_problem']}", "red"))
    held = document["held_gap"]
    if held is not None:
        click.echo(
            styled(f"gap held: admissions {held['first']}..{held['through']}: {held['reason']}", "red")
        )
        click.echo(
            f"  to go on: ticket-agent journal acknowledge-gap --from {held['first']} "
            f"--through {held['through']} --reason TEXT"
        )
    skipped = {name: count for name, count in (daemon or {}).get("skipped", {}).items() if count}
    if skipped:
        click.echo(f"skipped lines: {json.dumps(skipped)}")


def _print_open(view: JournalView, daemon: dict[str, Any]) -> None:
    waiting = daemon.get("waiting", {})
    rows = []
    for record in sorted(view.records.values(), key=lambda record: (record.epoch, record.sequence)):
        if record.terminal:
            continue
        state = "uncertain" if record.uncertain is not None and record.result is None else record.state.value
        why = record.uncertain.detail if record.uncertain is not None else waiting.get(record.key, "")
        rows.append(
            [str(record.sequence), record.key, state_text(state), age(record.changed_unix_ms, now_ms()), why]
        )
    if rows:
        click.echo(table(["SEQ", "TICKET", "STATE", "SINCE", "WHY"], rows))
