"""`release explain`: what stopped a release, or what it waits for, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ticket_agent.cli.assembly import now_ms
from ticket_agent.cli.output import emit_json, plain
from ticket_agent.cli.release_common import opened_releases, release_config_option

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["explain"]


@click.command()
@click.argument("operation")
@release_config_option
@click.option("--json", "as_json", is_flag=True, help="One JSON line.")
def explain(*, operation: str, config_file: Path, as_json: bool) -> None:
    """Say which phase or gate stopped a release and by which rule, what that means, and the remedy.

    For a release that goes on it says what that waits for. Only files are read.
    """
    from ticket_agent.cli.release_screen import summary  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.release_explain import explain_release  # noqa: PLC0415 - start-up time

    with opened_releases(config_file) as (_, reader):
        view, deployment = reader.release(operation, log_lines=0), reader.deployment()
    told = explain_release(view, deployment, now_ms=now_ms())
    if as_json:
        state = None if view.state is None else view.state.value
        emit_json(
            "release-explanation",
            {"operation_id": operation, "stage": view.stage.value, "state": state} | told.members(),
        )
        return
    click.echo(summary(view))
    for name, value in told.members().items():
        if value is not None:
            click.echo(f"{name:<8}  {plain(value)}")
    for problem in (*view.problems, *deployment.problems):
        click.echo(f"unreadable: {plain(problem)}")
