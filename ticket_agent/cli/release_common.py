"""What the commands on releases share: their configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ticket_agent.cli.output import fail
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from ticket_agent.peft.release.release_config import ReleaseConfig

__all__ = ["release_config", "release_config_option"]

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
