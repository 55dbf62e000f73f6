"""The group of all commands on host snapshots; each is imported only when it runs."""

from __future__ import annotations

import click

from ticket_agent.cli.root import LazyGroup

__all__ = ["snapshots"]


@click.group(
    cls=LazyGroup,
    lazy={
        "read": ("ticket_agent.cli.snapshots_read", "Show what one provider of one host published."),
        "list": ("ticket_agent.cli.snapshots_list:list_pairs", "Show how every enrolled pair stands."),
        "watch": ("ticket_agent.cli.snapshots_watch", "Follow snapshots: changes, expiry, gaps."),
        "publish": ("ticket_agent.cli.snapshots_publish", "Publish this host's snapshots."),
        "discover": ("ticket_agent.cli.snapshots_discover", "Look once and print; publishes nothing."),
        "doctor": ("ticket_agent.cli.snapshots_doctor", "Check what publishing needs."),
    },
)
def snapshots() -> None:
    """Publish what this host observes of itself, and read what hosts published.

    A snapshot is an observation with a short life. It admits nothing and proves no execution.
    """
