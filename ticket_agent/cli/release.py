"""The group of all commands on releases of adapters."""

from __future__ import annotations

import click

from ticket_agent.cli.release_verify import verify_release

__all__ = ["release"]


@click.group()
def release() -> None:
    """Look at releases of adapters."""


release.add_command(verify_release)
