"""The group of all commands on releases of adapters; each is imported only when it runs."""

from __future__ import annotations

import click

from ticket_agent.cli.root import LazyGroup

__all__ = ["release"]


@click.group(
    cls=LazyGroup,
    lazy={
        "watch": ("ticket_agent.cli.release_watch", "Follow a release: phases, losses, output."),
        "explain": ("ticket_agent.cli.release_explain", "Say what stopped a release and what to do."),
        "recover": (
            "ticket_agent.cli.release_recover",
            "Say what is blocked and the command that recovers it.",
        ),
        "history": ("ticket_agent.cli.release_history", "List the generations and how each release ended."),
        "report": ("ticket_agent.cli.release_report", "Draw a release as one HTML page."),
        "gc": ("ticket_agent.cli.release_gc", "Remove what no release needs any more."),
        "verify": ("ticket_agent.cli.release_verify", "Check a release's bundle, offline."),
    },
)
def release() -> None:
    """Follow, explain, verify and clean releases of adapters."""
