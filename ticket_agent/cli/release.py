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
        "serve": ("ticket_agent.cli.release_serve", "Serve what is deployed, or stop that."),
        "plan": ("ticket_agent.cli.release_plan", "Look at every gate of a release; change nothing."),
        "submit": ("ticket_agent.cli.release_submit", "Ask the hive for a release, once."),
        "watch": ("ticket_agent.cli.release_watch", "Follow a release: phases, losses, output."),
        "explain": ("ticket_agent.cli.release_explain", "Say what stopped a release and what to do."),
        "recover": (
            "ticket_agent.cli.release_recover",
            "Say what is blocked and the command that recovers it.",
        ),
        "history": ("ticket_agent.cli.release_history", "List the generations and how each release ended."),
        "report": ("ticket_agent.cli.release_report", "Draw a release as one HTML page."),
        "verify": ("ticket_agent.cli.release_verify", "Check a release's bundle, offline."),
        "gc": ("ticket_agent.cli.release_gc", "Remove what no release needs any more."),
    },
)
def release() -> None:
    """Prepare, submit, follow, explain, verify and clean releases of adapters."""
