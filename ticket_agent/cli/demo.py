"""`demo`: the whole promise on one screen. A reference hive, a real agent process, a kill, and the books."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.options import DirectoryPath
from ticket_agent.cli.output import fail, stamp, state_text, styled, table
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["demo"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Events as NDJSON; the last line sums up.")
@click.option(
    "--workers",
    type=click.IntRange(1, 16),
    default=4,
    show_default=True,
    help="GPU Workers; three tickets each.",
)
@click.option("--leases-only", is_flag=True, help="Leave the adapter and its directories out.")
@click.option(
    "--keep",
    type=DirectoryPath(),
    help="Keep the journal here, to look at afterwards.",
)
def demo(*, as_json: bool, workers: int, leases_only: bool, keep: Path | None) -> None:
    """Watch root-admitted tickets travel through the journal over a real TCP console.

    GPU leases are granted, renewed and released; a small adapter is exported, imported, activated and rolled
    back on directories made for it.

    In the middle the agent is killed (SIGKILL) right after a lease write was applied and before its answer
    arrived; it is started again, observes what became of the write, and finishes every ticket exactly once.
    Effects are counted without asking the agent: lease lines by the hive, adapter steps by the renames that
    the kernel reports.
    """
    from ticket_agent.cli.demo_run import DemoError, DemoRun  # noqa: PLC0415 - start-up time

    _refuse_used(keep)
    with _folder() as folder:
        run = DemoRun(
            state_dir=keep or folder / "state",
            roots_dir=None if leases_only else folder,
            workers=workers,
            show=_show_json if as_json else _show,
        )
        try:
            books = run.perform()
        except DemoError as error:
            fail(f"demo: {error}", Exit.FAILURE)
        if as_json:
            click.echo(json.dumps(books.summary(), separators=(",", ":")))
        else:
            _print_books(books, keep)
    sys.exit(int(Exit.OK if books.kept_promise else Exit.FAILURE))


def _refuse_used(keep: Path | None) -> None:
    if keep is None or not os.path.lexists(keep):
        return
    if keep.is_symlink() or not keep.is_dir() or any(keep.iterdir()):
        fail(f"{keep} exists and is no empty directory; name a new one", Exit.USAGE)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="ticket-agent-demo-"))
    try:
        # Roots are named by their real path.
        yield base.resolve()
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _show_json(event: dict[str, Any]) -> None:
    click.echo(json.dumps(event, separators=(",", ":")))


def _show(event: dict[str, Any]) -> None:
    clock = stamp(event["unix_ms"])[11:-1]
    if event["event"] in {"admitted", "transition"}:
        name = f"{event['action']:<18} {event['key'].split(':')[1]:<14}"
        arrow = f"{event.get('before', 'admitted')} -> {state_text(event['state'])}"
        detail = (
            f"  ({event['detail']})"
            if event.get("detail") and event["state"] == "provider-result-persisted"
            else ""
        )
        click.echo(f"{clock}  #{event['sequence']:<3} {name} {arrow}{detail}")
    elif event["event"] in {"killed", "restarted", "started", "uncertain", "hive"}:
        name = styled(event["event"].upper(), "magenta", bold=True)
        click.echo(f"{clock}  {name} {event.get('detail', '')}".rstrip())


def _print_books(books: Any, keep: Path | None) -> None:
    rows = [
        [
            str(row.sequence),
            row.ticket,
            row.action,
            " > ".join(_SHORT[state] for state in row.states),
            state_text(row.outcome),
            row.receipt,
            str(row.effects),
            str(row.results),
        ]
        for row in books.rows
    ]
    click.echo()
    headers = ["SEQ", "TICKET", "ACTION", "STATES", "OUTCOME", "RECEIPT", "EFFECTS", "RESULTS"]
    click.echo(table(headers, rows))
    click.echo()
    click.echo("states: " + ", ".join(f"{short} {state}" for state, short in _SHORT.items()))
    verdict = f"side effects dispatched: {books.dispatched} of {len(books.rows)}, repeated: {books.repeated}"
    click.echo(styled(verdict, "green" if books.kept_promise else "red", bold=True))
    click.echo(f"the agent was killed {books.kills} time(s) at `executing`; every ticket ended once")
    if keep is not None:
        click.echo(f"journal kept: ticket-agent journal list --state-dir {keep}")


_SHORT = {
    "prepared": "P",
    "executing": "E",
    "provider-result-persisted": "R",
    "result-published": "V",
    "terminal": "T",
}
