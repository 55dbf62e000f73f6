"""`peft verify`: every file of a registry against what its manifest says."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ticket_agent.cli.output import emit_json, plain, styled
from ticket_agent.cli.peft_roots import opened_registry, registry_options
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.peft.verify import Verdict

__all__ = ["verify_registry"]


@click.command(name="verify")
@registry_options
@click.argument("model", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON line per file (NDJSON).")
def verify_registry(
    *, config: Path | None, registry_root: Path | None, model: str | None, as_json: bool
) -> None:
    """Compare every file with its manifest.

    Each is PASS or FAIL with the reason; the exit code is 1 when one fails.
    Without MODEL the control files are checked too, and whatever does not belong into a registry is named.
    """
    from ticket_agent.peft.verify import verify, verify_model  # noqa: PLC0415 - start-up time

    files = failed = 0
    with opened_registry(config, registry_root) as registry:
        for verdict in verify(registry) if model is None else verify_model(registry, model):
            files += 1
            failed += not verdict.ok
            _tell(verdict, as_json=as_json)
    if not as_json:
        click.echo(f"{files} files, {failed} failed")
    sys.exit(int(Exit.FAILURE if failed else Exit.OK))


def _tell(verdict: Verdict, *, as_json: bool) -> None:
    if as_json:
        emit_json("verdict", {"file": verdict.file, "ok": verdict.ok, "reason": verdict.reason})
    elif verdict.ok:
        note = f"  ({plain(verdict.reason)})" if verdict.reason else ""
        click.echo(f"{styled('PASS', 'green')}  {plain(verdict.file)}{note}")
    else:
        click.echo(f"{styled('FAIL', 'red')}  {plain(verdict.file)}: {plain(verdict.reason)}")
