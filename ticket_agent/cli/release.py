"""The group of all commands on releases of adapters; each is imported only when it runs."""

from __future__ import annotations

import click

from ticket_agent.cli.root import LazyGroup

__all__ = ["release"]


@click.group(
    cls=LazyGroup,
    lazy={
        "init": ("ticket_agent.cli.release_init", "Make a directory that a first release can be made from."),
        "prepare": ("ticket_agent.cli.release_prepare", "Make a request and all that it names."),
        "plan": ("ticket_agent.cli.release_plan", "Look at every gate of a release; change nothing."),
        "submit": ("ticket_agent.cli.release_submit", "Ask the hive for a release, once."),
        "verify": ("ticket_agent.cli.release_verify", "Check a release's bundle, offline."),
    },
)
def release() -> None:
    """Prepare, plan, submit and verify releases of adapters."""
