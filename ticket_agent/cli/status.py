"""`status`: what is open, uncertain, quarantined or held; read from files, with the daemon dead or alive."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.assembly import now_ms
from ticket_agent.cli.options import default_state_dir, state_dir_option
from ticket_agent.cli.output import age, emit_json, fail, plain, state_text, styled, table
from ticket_agent.cli.status_relay import print_relay
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.journal.view import JournalView

__all__ = ["daemon_status", "journal_view", "require_journal", "require_used", "status"]


@click.command()
@state_dir_option
@click.option("--json", "as_json", is_flag=True, help="One JSON line.")
def status(*, state_dir: Path | None, as_json: bool) -> None:
    """Show the state of a journal; the exit code is 4 when degraded, 7 when uncertain operations remain."""
    directory = state_dir or default_state_dir()
    view = journal_view(directory)
    document = _document(view, daemon_status(directory))
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
        require_journal(directory)
        return read_journal(directory)
    except (JournalError, OSError) as error:
        fail(f"cannot read a journal in {directory}: {error}", Exit.FAILURE)


def require_journal(directory: Path) -> None:
    """Refuse a directory that no agent ever used: an empty answer about the wrong one would reassure.

    Raises:
        StateDirError: it has no folder of records.
    """
    from ticket_agent.journal.errors import StateDirError  # noqa: PLC0415 - start-up time

    if directory.is_dir() and not directory.is_symlink() and not os.path.lexists(directory / "ops"):
        raise StateDirError("it has no folder `ops`; name the state directory of an agent")


def require_used(directory: Path) -> None:
    """End a command that needs the fence unless an agent used the directory: no mistyped one is created."""
    if not os.path.lexists(directory / "ops"):
        fail(f"{directory} holds no journal; name the state directory of an agent", Exit.FAILURE)


def daemon_status(directory: Path) -> dict[str, Any] | None:
    """What the daemon last said about itself; None when it said nothing that can be understood."""
    from ticket_agent.agent.statusfile import read_status  # noqa: PLC0415 - start-up time

    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        found = read_status(fd)
    except (OSError, RecursionError):
        return None
    finally:
        os.close(fd)
    expected: dict[str, type] = {
        "unix_ms": int,
        "hive": str,
        "waiting": dict,
        "unparsable": dict,
        "skipped": dict,
    }
    if found is None or not all(isinstance(found.get(name), kind) for name, kind in expected.items()):
        return None
    return found


def _document(view: JournalView, daemon: dict[str, Any] | None) -> dict[str, Any]:
    from ticket_agent.journal.gaps import covers  # noqa: PLC0415 - start-up time

    states: dict[str, int] = {}
    for record in view.records.values():
        states[record.state.value] = states.get(record.state.value, 0) + 1
    uncertain = [record for record in view.records.values() if record.outcome_unknown]
    held = view.cursor.held
    degraded = bool(view.quarantined or view.cursor_problem or view.takeover_problem or held)
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
        "taken_over_from": view.takeover.source if view.takeover is not None else None,
        "takeover_problem": view.takeover_problem,
        "held_gap": (
            {
                "epoch": held.epoch,
                "first": held.first,
                "through": held.through,
                "reason": held.reason,
                "acknowledged": covers(view.acknowledgements, held.epoch, held.first, held.through),
            }
            if held is not None
            else None
        ),
        "daemon": daemon,
        "exit": int(code),
    }


def _print(view: JournalView, document: dict[str, Any]) -> None:
    owner, daemon = document["owner"], document["daemon"]
    running = f"running, pid {owner['pid'] or 'unknown'}" if owner is not None else "not running"
    click.echo(f"agent: {running}")
    if daemon is not None:
        said = age(daemon["unix_ms"], now_ms())
        click.echo(
            f"hive: {plain(daemon['hive'])} ({'' if owner is not None else 'the agent said so last, '}{said})"
        )
        _print_hive(daemon)
    click.echo(f"hive epoch: {document['epoch']}, consumed through admission {document['consumed_sequence']}")
    states = ", ".join(f"{count} {state_text(state)}" for state, count in sorted(document["states"].items()))
    click.echo(f"operations: {states or 'none'}")
    _print_open(view, daemon or {})
    for item in document["quarantined"]:
        click.echo(styled(f"quarantined: ops/{plain(item['file'])}: {plain(item['reason'])}", "red"))
    if document["quarantined"]:
        click.echo("  its ticket is not executed, the others go on; see `ticket-agent journal verify`")
    if document["cursor_problem"]:
        click.echo(styled(f"cursor: {plain(document['cursor_problem'])}", "red"))
    if document["takeover_problem"]:
        click.echo(styled(f"takeover: {plain(document['takeover_problem'])}", "red"))
    elif document["taken_over_from"]:
        click.echo(f"taken over from: {plain(document['taken_over_from'])}")
    if document["held_gap"] is not None:
        _print_gap(document["held_gap"])
    print_relay((daemon or {}).get("relay"), running=owner is not None)
    skipped = {name: count for name, count in (daemon or {}).get("skipped", {}).items() if count}
    if skipped:
        click.echo(f"skipped lines: {json.dumps(skipped)}")


def _print_hive(daemon: dict[str, Any]) -> None:
    """What the agent said about the hive's gate and its logs; an older agent says nothing about them."""
    gate, pace = daemon.get("lifecycle"), daemon.get("pace")
    if isinstance(gate, dict) and isinstance(gate.get("state"), str):
        state = plain(gate["state"])
        if isinstance(gate.get("closed_unix_ms"), int):
            since = age(gate["closed_unix_ms"], now_ms())
            text = f"lifecycle: {state}, first seen {since}; results stay staged until the hive takes them"
            click.echo(styled(text, "yellow"))
        else:
            click.echo(f"lifecycle: {state}")
    if isinstance(pace, dict) and pace.get("close") is True:
        text = (
            f"log {plain(str(pace.get('log')))}: turns over in {pace.get('turnover_s')} s, looked at every "
            f"{pace.get('look_s')} s; a burst could be evicted unseen: submit more slowly"
        )
        click.echo(styled(text, "red"))


def _print_gap(held: dict[str, Any]) -> None:
    text = f"gap held: admissions {held['first']}..{held['through']}: {plain(held['reason'])}"
    click.echo(styled(text, "red"))
    if held["acknowledged"]:
        click.echo("  acknowledged; a running agent goes on at its next pass")
    else:
        click.echo(
            f"  to give them up: ticket-agent journal acknowledge-gap --from {held['first']} "
            f"--through {held['through']} --reason TEXT"
        )


def _print_open(view: JournalView, daemon: dict[str, Any]) -> None:
    said = daemon.get("waiting", {}) | daemon.get("unparsable", {})
    rows = []
    for record in sorted(view.records.values(), key=lambda record: (record.epoch, record.sequence)):
        if record.terminal:
            continue
        state = "uncertain" if record.uncertain is not None and record.result is None else record.state.value
        why = record.uncertain.detail if record.uncertain is not None else str(said.get(record.key, ""))
        since = age(record.changed_unix_ms, now_ms())
        rows.append([str(record.sequence), plain(record.key), state_text(state), since, plain(why)])
    if rows:
        click.echo(table(["SEQ", "TICKET", "STATE", "SINCE", "WHY"], rows))
