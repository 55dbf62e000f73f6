"""The group of all commands; each is imported only when it runs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import click

from ticket_agent import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LazyGroup", "cli"]


class LazyGroup(click.Group):
    """A group that knows its commands' names and one-line helps without importing them.

    Args:
        lazy: for each name the module of the command and its help; the module as ``module:attribute`` where
            the command cannot be called as it is named.
    """

    def __init__(self, *, lazy: Mapping[str, tuple[str, str]], **attributes: object) -> None:
        super().__init__(**attributes)  # type: ignore[arg-type]
        self._lazy = dict(lazy)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names in the order in which a newcomer needs them."""
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command's module and return the command."""
        if cmd_name not in self._lazy:
            return None
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute or cmd_name.replace("-", "_"))
        if not isinstance(command, click.Command):
            raise TypeError(f"{cmd_name} is not a command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands from their one-line helps alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._lazy.items()])


@click.group(
    cls=LazyGroup,
    lazy={
        "demo": ("ticket_agent.cli.demo", "Watch tickets travel through the journal, a crash included."),
        "run": ("ticket_agent.cli.run", "Serve a hive until stopped."),
        "once": ("ticket_agent.cli.run", "Look once, move every ticket as far as it goes, exit."),
        "status": ("ticket_agent.cli.status", "Show what is open, uncertain, quarantined or held."),
        "journal": ("ticket_agent.cli.journal", "Read and verify a journal, offline and without root."),
        "peft": ("ticket_agent.cli.peft", "Read, verify and clean a registry of adapters."),
        "release": ("ticket_agent.cli.release", "Prepare, submit, follow and verify releases."),
        "snapshots": ("ticket_agent.cli.snapshots", "Publish this host's snapshots, read everybody's."),
        "submit": ("ticket_agent.cli.submit", "Compose a raw version-2 request and append it."),
        "doctor": ("ticket_agent.cli.doctor", "Check directory, fence, journal, clock, hive and GPUs."),
        "inventory": ("ticket_agent.cli.inventory", "List this host's GPUs by UUID and PCI bus id."),
        "ticket": ("ticket_agent.cli.ticket", "Show, check and mint capability tickets."),
        "hive": ("ticket_agent.cli.hive", "Run the reference hive."),
        "install": ("ticket_agent.cli.install", "Print a systemd unit, a configuration, an image recipe."),
        "completion": ("ticket_agent.cli.completion", "Print a completion script for bash, zsh or fish."),
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="ticket-agent")
def cli() -> None:
    """Host-side executor of a Cohesix hive.

    A side effect is dispatched at most once per admitted ticket, at every crash point; an unknown outcome is
    said to be unknown; nothing that was decided is lost.
    """
