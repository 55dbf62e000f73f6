"""`release watch`: a release while it runs, and how it ended as an exit code."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.assembly import now_ms
from ticket_agent.cli.output import emit_json, plain
from ticket_agent.cli.release_common import opened_releases, release_config_option
from ticket_agent.exits import RELEASE_MEANING, ReleaseExit

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.peft.release.release_config import ReleaseConfig
    from ticket_agent.peft.release.release_reader import ReleaseReader
    from ticket_agent.peft.release.release_view import DeploymentView, ReleaseView

__all__ = ["watch"]

_GOES_ON = frozenset({ReleaseExit.PENDING, ReleaseExit.RUNNING})
_UP = "\x1b[{}A"
_CLEAR = "\x1b[J"


@click.command()
@click.argument("operation")
@release_config_option
@click.option("--follow/--once", default=True, help="Until the release has ended (the default), or one look.")
@click.option("--timeout", type=click.FloatRange(0, 604_800), help="Seconds to wait at most.")
@click.option(
    "--interval",
    type=click.FloatRange(0.05, 60),
    default=0.5,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option(
    "--log", "log_lines", type=click.IntRange(0, 200), default=8, show_default=True, help="Lines of output."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line per change (NDJSON).")
def watch(
    *,
    operation: str,
    config_file: Path,
    follow: bool,
    timeout: float | None,
    interval: float,
    log_lines: int,
    as_json: bool,
) -> None:
    """Follow a release: its phases, the losses of its training, the last lines of output.

    Only files are read, so it works while the agent runs, and when it does not. The exit code is 0 when the
    release succeeded and its evidence is in order. Otherwise: 10 not begun, 11 under way (--once), 12 nobody
    knows how a phase ended, 13 refused before any phase, 15 failed and taken back, 16 failed, 17 --timeout is
    over, 18 evidence is missing or damaged.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    with opened_releases(config_file) as (config, reader):
        display = _Json() if as_json else (_Terminal() if follow and sys.stdout.isatty() else _Lines())
        while True:
            view, deployment, code, problem = _look(config, reader, operation, log_lines)
            done = code not in _GOES_ON or not follow
            late = not done and deadline is not None and time.monotonic() >= deadline
            display.show(view, deployment, code=code if done else None)
            if done or late:
                break
            time.sleep(interval if deadline is None else max(0.0, min(interval, deadline - time.monotonic())))
    if late:
        code = ReleaseExit.TIMEOUT
    if not as_json:
        click.echo(plain(RELEASE_MEANING[code]) + (f": {plain(problem)}" if problem else ""))
    elif late:
        emit_json("release-timeout", {"operation_id": operation, "exit": int(code)})
    sys.exit(int(code))


def _look(
    config: ReleaseConfig, reader: ReleaseReader, operation: str, log_lines: int
) -> tuple[ReleaseView, DeploymentView, ReleaseExit, str | None]:
    from ticket_agent.cli.release_screen import exit_of  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.evidence_check import evidence_problem  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.release_view import Stage  # noqa: PLC0415 - start-up time

    view = reader.release(operation, log_lines=log_lines)
    problem = evidence_problem(config, view) if view.stage is Stage.ENDED else None
    return view, reader.deployment(), exit_of(view, problem), problem


class _Lines:
    """For files, pipes and logs: a line per change; everything at the end."""

    def __init__(self) -> None:
        self._before: ReleaseView | None = None

    def show(self, view: ReleaseView, deployment: DeploymentView, *, code: ReleaseExit | None) -> None:
        from ticket_agent.cli.release_screen import changes, screen  # noqa: PLC0415 - start-up time

        if code is not None:
            lines = screen(view, deployment, now_ms=now_ms(), width=10_000)
        else:
            lines = changes(self._before, view)
        self._before = view
        for line in lines:
            click.echo(line)


class _Terminal:
    """Draws over what it has drawn."""

    def __init__(self) -> None:
        self._drawn = 0

    def show(self, view: ReleaseView, deployment: DeploymentView, *, code: ReleaseExit | None) -> None:
        from ticket_agent.cli.release_screen import screen  # noqa: PLC0415 - start-up time

        size = shutil.get_terminal_size()
        lines = screen(view, deployment, now_ms=now_ms(), width=size.columns)
        if code is None:
            # More than the window holds could not be drawn over.
            lines = lines[: max(1, size.lines - 1)]
        over = _UP.format(self._drawn) if self._drawn else ""
        self._drawn = len(lines)
        click.echo(over + _CLEAR + "\n".join(lines))


class _Json:
    """An object per change."""

    def __init__(self) -> None:
        self._before: dict[str, Any] | None = None

    def show(self, view: ReleaseView, deployment: DeploymentView, *, code: ReleaseExit | None) -> None:
        members = view.members() | {"deployment": deployment.members()}
        if code is None and members == self._before:
            return
        self._before = members
        more = {"log_phase": None if view.log_phase is None else view.log_phase.value, "log": list(view.log)}
        emit_json("release-watch", members | more | {"exit": None if code is None else int(code)})
