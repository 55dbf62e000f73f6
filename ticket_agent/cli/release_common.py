"""What the commands on releases share: their configuration, the open root, one line for an error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ticket_agent.cli.output import fail
from ticket_agent.cli.peft_roots import one_line_errors
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.peft.release.release_config import ReleaseConfig
    from ticket_agent.peft.release.release_reader import ReleaseReader
    from ticket_agent.peft.release.release_view import ReleaseView

__all__ = ["known_release", "opened_releases", "release_config", "release_config_option"]

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def release_config_option(command: CommandT) -> CommandT:
    """``--release-config``."""
    return click.option(
        "--release-config",
        "config_file",
        type=click.Path(path_type=Path, dir_okay=False),
        required=True,
        metavar="FILE",
        help="TOML file that says how releases run on this host.",
    )(command)


def release_config(path: Path) -> ReleaseConfig:
    """The configuration; a file that cannot be used ends the command."""
    from ticket_agent.peft.release.release_config import (  # noqa: PLC0415 - start-up time
        ReleaseConfigError,
        load_release_config,
    )

    try:
        return load_release_config(path)
    except ReleaseConfigError as error:
        fail(str(error), Exit.USAGE)


@contextmanager
def opened_releases(path: Path) -> Iterator[tuple[ReleaseConfig, ReleaseReader]]:
    """The configuration and its root, open to be looked at; no lock is taken and nothing is changed."""
    from ticket_agent.peft.release.release_reader import ReleaseReader  # noqa: PLC0415 - start-up time

    config = release_config(path)
    with one_line_errors(), ReleaseReader(config.root) as reader:
        yield config, reader


def known_release(reader: ReleaseReader, operation: str, *, log_lines: int = 0) -> ReleaseView:
    """A release that has a directory; any other one ends the command."""
    view = reader.release(operation, log_lines=log_lines)
    if view.begun is None and operation not in reader.operations():
        fail(f"release {operation} has not begun in {reader.root}; `release history` lists all", Exit.FAILURE)
    return view
