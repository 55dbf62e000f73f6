"""`release report`: a release as one page to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ticket_agent import __version__
from ticket_agent.cli.assembly import now_ms
from ticket_agent.cli.output import emit_json, fail, plain
from ticket_agent.cli.output_file import STDOUT, output_file
from ticket_agent.cli.release_common import known_release, opened_releases, release_config_option
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["report"]


@click.command()
@click.argument("operation")
@release_config_option
@click.option(
    "--html",
    "target",
    required=True,
    metavar="FILE",
    help="Write the page here; - is standard output.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line about the page.")
def report(*, operation: str, config_file: Path, target: str, force: bool, as_json: bool) -> None:
    """Draw phases, the loss curve, the paired evaluation and the canary's latencies.

    The page is one file that needs no network and holds no script. It works for releases that still run.
    """
    from ticket_agent.peft.release.evidence_check import evidence_of  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.release_explain import explain_release  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.release_report import ReportFacts, render_release  # noqa: PLC0415

    if target == STDOUT and as_json:
        fail("--json and the page cannot both go to standard output; name a file", Exit.USAGE)
    now = now_ms()
    with opened_releases(config_file) as (config, reader):
        view, deployment = known_release(reader, operation), reader.deployment()
        evidence = evidence_of(view)
        facts = ReportFacts(
            view=view,
            deployment=deployment,
            explained=explain_release(view, deployment, now_ms=now),
            losses=reader.losses(operation),
            evidence_sha256=None if evidence is None else evidence.sha256,
            source=str(config.root),
            program=f"ticket-agent {__version__}",
            made_unix_ms=now,
        )
    page = render_release(facts).encode()
    with output_file(target, force=force, state_dir=config.root) as stream:
        stream.write(page)
    if as_json:
        emit_json(
            "report",
            {"file": target, "bytes": len(page), "operation_id": operation, "stage": view.stage.value},
        )
    elif target != STDOUT:
        click.echo(f"wrote {plain(target)}: {len(page)} bytes")
