"""The group of all commands on releases of adapters."""

from __future__ import annotations

import click

from ticket_agent.cli.release_serve import serve_release
from ticket_agent.cli.release_verify import verify_release

__all__ = ["release"]


@click.group()
def release() -> None:
    """Serve what releases of adapters deployed, and check what they signed."""


release.add_command(serve_release)
release.add_command(verify_release)
