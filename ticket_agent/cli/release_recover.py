"""`release recover`: what is blocked, what is deployed, what runs, and the exact next command. Reads only."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from ticket_agent.cli.output import emit_json, plain
from ticket_agent.cli.release_common import known_release, opened_releases, release_config_option

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.peft.release.release_reader import ReleaseReader
    from ticket_agent.peft.release.release_view import DeploymentView, ReleaseView

__all__ = ["recover"]

MAX_ATTEMPTS = 4


@click.command()
@click.argument("operation", required=False)
@release_config_option
@click.option("--json", "as_json", is_flag=True, help="One JSON line.")
def recover(*, operation: str | None, config_file: Path, as_json: bool) -> None:
    """Say what a release that is stuck has left, and the command that puts things back. Changes nothing.

    Without OPERATION it is the release that blocks or owns the root. A recovery needs a ticket of its own,
    which the command that is printed asks for; WORKER in it stands for the id of the receipt Worker.
    """
    from ticket_agent.peft.release.server_glance import servers_at_a_glance  # noqa: PLC0415 - start-up time

    with opened_releases(config_file) as (config, reader):
        deployment = reader.deployment()
        operation = operation or _stuck(deployment)
        view = None if operation is None else known_release(reader, operation)
        servers = servers_at_a_glance(config.root)
        next_command = None if view is None else _next(view, deployment, config_file)
        why = _why(view, deployment, reader)
    if as_json:
        emit_json(
            "release-recovery",
            {
                "operation_id": operation,
                "stage": None if view is None else view.stage.value,
                "state": None if view is None or view.state is None else view.state.value,
                "deployment": deployment.members(),
                "servers": [server.members() for server in servers],
                "why": why,
                "next": next_command,
            },
        )
        return
    from ticket_agent.cli.release_screen import deployed_line, summary  # noqa: PLC0415 - start-up time

    if view is not None:
        click.echo(summary(view))
    if deployment.blocker is not None:
        blocker = deployment.blocker
        click.echo(f"blocked   by release {blocker.operation_id}: {plain(blocker.reason)}")
    if deployment.owner is not None:
        click.echo(f"owner     release {deployment.owner.operation_id}")
    click.echo(deployed_line(deployment))
    for server in servers:
        click.echo(f"server    {plain(server.launch_id)}: {server.standing}")
    for problem in deployment.problems:
        click.echo(f"unreadable: {plain(problem)}")
    click.echo(f"why       {plain(why)}")
    if next_command is not None:
        click.echo(f"next      {plain(next_command)}")


def _stuck(deployment: DeploymentView) -> str | None:
    for marker in (deployment.blocker, deployment.owner):
        if marker is not None:
            return marker.operation_id
    return None


def _why(view: ReleaseView | None, deployment: DeploymentView, reader: ReleaseReader) -> str:
    from ticket_agent.peft.release.phases import ReleaseState  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.release_view import Stage  # noqa: PLC0415 - start-up time

    if deployment.problems:
        return f"files of {reader.root} cannot be read; a recovery would not know what to put back"
    if view is None:
        return "no release is unfinished or blocks the root; there is nothing to recover"
    if view.stage is Stage.AMBIGUOUS:
        return "nobody knows how a phase ended; a recovery puts back what was deployed and frees the root"
    if view.stage is Stage.RUNNING:
        return "it is under way; a recovery is refused as long as it is"
    if view.state is ReleaseState.ROLLBACK_FAILED:
        if len(view.attempts) >= MAX_ATTEMPTS:
            return (
                f"{MAX_ATTEMPTS} recoveries failed; put things back by hand, starting with `release explain`"
            )
        return "its rollback failed; a recovery tries that again under a ticket of its own"
    if view.stage is Stage.PENDING:
        return "it has not begun"
    return "it has ended, and nothing of it has to be put back"


def _next(view: ReleaseView, deployment: DeploymentView, config_file: Path) -> str | None:
    """The command that recovers, only where a recovery is what helps."""
    from ticket_agent.peft.release.phases import ReleaseState  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.release_view import Stage  # noqa: PLC0415 - start-up time

    failed = view.stage is Stage.ENDED and view.state is ReleaseState.ROLLBACK_FAILED
    if deployment.problems or not (failed or view.stage is Stage.AMBIGUOUS) or view.begun is None:
        return None
    if len(view.attempts) >= MAX_ATTEMPTS:
        return None
    return shlex.join(
        [
            "ticket-agent",
            "release",
            "submit",
            "--recovery-only",
            "--operation",
            view.operation_id,
            "--release-config",
            str(config_file),
            "--worker",
            "WORKER",
        ]
    )
