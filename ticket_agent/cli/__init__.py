"""Command line: ``ticket-agent COMMAND``. Nothing heavy is imported before the command is known."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line and end the process with its documented exit code."""
    from ticket_agent.cli.entry import enter  # noqa: PLC0415 - click is only needed here

    enter()
