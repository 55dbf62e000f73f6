"""`release history`: the generations of a deployment, and how every release ended."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ticket_agent.cli.output import emit_json, plain, stamp, styled, table
from ticket_agent.cli.release_common import opened_releases, release_config_option
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.peft.release.release_history import PastRelease

__all__ = ["history"]

_COLOURS = {
    "succeeded": "green",
    "failed": "red",
    "recovered_failure": "yellow",
    "rollback_failed": "red",
    "running": "cyan",
    "ambiguous": "magenta",
}


@click.command()
@release_config_option
@click.option("--generations", is_flag=True, help="Only releases that deployed a generation.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line per release (NDJSON).")
def history(*, config_file: Path, generations: bool, as_json: bool) -> None:
    """List all releases from the oldest on: generation, adapter, losses, how each ended.

    Operations whose files were removed are told by their evidence. The exit code is 4 when something cannot
    be read.
    """
    from ticket_agent.peft.release.release_history import release_history  # noqa: PLC0415 - start-up time

    with opened_releases(config_file) as (config, reader):
        found, problems = release_history(config, reader)
    chosen = [past for past in found if not generations or past.generation is not None]
    if as_json:
        for past in chosen:
            emit_json("release", past.members())
        for problem in problems:
            emit_json("problem", {"text": problem})
    else:
        headers = ["GENERATION", "OPERATION", "MODEL", "ENDED", "STATE", "ADAPTER", "LOSS", "BEFORE"]
        click.echo(table(headers, [_row(past) for past in chosen]) if chosen else "no release yet")
        for problem in problems:
            click.echo(f"unreadable: {plain(problem)}")
    sys.exit(int(Exit.DEGRADED if problems else Exit.OK))


def _row(past: PastRelease) -> list[str]:
    state = past.stage.value if past.state is None else past.state.value
    generation = "-" if past.generation is None else str(past.generation)
    return [
        styled(f"{generation} *", None, bold=True) if past.deployed else generation,
        past.operation_id,
        "-" if past.model_id is None else plain(past.model_id),
        "-" if past.ended_unix_ms is None else stamp(past.ended_unix_ms),
        styled(state, _COLOURS.get(state)),
        "-" if past.adapter_sha256 is None else past.adapter_sha256[:12],
        _loss(past.candidate_loss),
        _loss(past.baseline_loss),
    ]


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.6f}"
