"""Which registry a `peft` command means, and opening it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ticket_agent.cli.options import config_from, root_option
from ticket_agent.cli.output import fail
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.peft.control import Control
    from ticket_agent.peft.registry import Registry

__all__ = [
    "REGISTRY_LABEL",
    "one_line_errors",
    "opened_registry",
    "registry_options",
    "roles",
    "roots_from",
]

REGISTRY_LABEL = "registry root"
CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def registry_options(command: CommandT) -> CommandT:
    """``--config`` and ``--registry-root``."""
    config = click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        help="TOML file whose table [peft] names the directories; flags win over it.",
    )
    return config(root_option("--registry-root", "Directory of the models.")(command))


def roots_from(
    config: Path | None, registry_root: Path | None, export_root: Path | None = None
) -> tuple[Path, Path | None]:
    """The registry's root, and the exports' if one is named.

    A relative flag is taken from the current directory, and ``..`` in it by its text: the way to a root has
    no links.
    """
    from_file = None if config is None else config_from({"config": config}).peft
    if from_file is not None:
        registry_root = registry_root or from_file.registry_root
        export_root = export_root or from_file.export_root
    if registry_root is None:
        fail("no registry is named; use --registry-root, or --config with [peft] registry_root", Exit.USAGE)
    return _absolute(registry_root), None if export_root is None else _absolute(export_root)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - by the text alone, see above


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the command with one line for whatever the trees refuse."""
    from ticket_agent.peft.errors import PeftError  # noqa: PLC0415 - start-up time

    try:
        yield
    except PeftError as error:
        fail(str(error), Exit.FAILURE)


@contextmanager
def opened_registry(config: Path | None, registry_root: Path | None) -> Iterator[Registry]:
    """Open the registry to look at it; no lock is taken and it may belong to anybody."""
    from ticket_agent.peft.registry import Registry  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.roots import open_to_read  # noqa: PLC0415 - start-up time

    path, _ = roots_from(config, registry_root)
    with one_line_errors(), open_to_read(path, label=REGISTRY_LABEL) as root, Registry.open(root) as registry:
        yield registry


def roles(control: Control | None, model: str) -> list[str]:
    """What the control files say about a model: active, previous, both or nothing."""
    if control is None:
        return []
    # Where the two files differ, the pointer counts.
    named = {"active": control.pointer, "previous": control.previous}
    return [role for role, name in named.items() if name == model]
