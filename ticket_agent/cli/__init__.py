"""Command line: ``ticket-agent COMMAND``. Nothing heavy is imported before the command is known."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and end the process with its documented exit code."""
    from ticket_agent.cli.root import cli  # noqa: PLC0415 - click is only needed here

    sys.exit(cli(standalone_mode=True))
