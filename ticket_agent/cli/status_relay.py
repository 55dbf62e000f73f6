"""The relay's part of `status`: how much waits for which peer, and how the way to each of them stands."""

from __future__ import annotations

from typing import Any

import click

from ticket_agent.cli.assembly import now_ms
from ticket_agent.cli.output import age, plain, styled, table

__all__ = ["print_relay"]

_COLOURS = {"closed": "green", "half-open": "yellow", "open": "red"}


def print_relay(told: object, *, running: bool) -> None:
    """Print what the daemon last said about its relay; nothing if it relays nothing or says nothing."""
    if not isinstance(told, dict) or told.get("enabled") is not True:
        return
    said = "" if running else " (the agent said so last)"
    oldest = told.get("oldest_pending_unix_ms")
    since = f", the oldest since {age(oldest, now_ms())}" if isinstance(oldest, int) else ""
    click.echo(
        f"relay: {told.get('queue_depth')} of {told.get('queue_max_entries')} waiting "
        f"({told.get('queue_bytes')} of {told.get('queue_max_bytes')} bytes){since}; "
        f"{told.get('awaiting_result')} delivered and awaiting a result{said}"
    )
    if told.get("held_in_log"):
        text = f"{told['held_in_log']} tickets stay in the hive's log until there is room"
        click.echo(styled(f"relay: the queue is full; {text}", "yellow"))
    _print_trouble(told)
    _print_peers(told.get("peers"))


def _print_trouble(told: dict[str, Any]) -> None:
    strangers = told.get("unknown_peers")
    for name, count in strangers.items() if isinstance(strangers, dict) else ():
        text = f"relay: {count} tickets for {plain(str(name))}, which is no configured peer"
        click.echo(styled(text, "yellow"))
    counters = told.get("counters")
    missed = counters.get("missed") if isinstance(counters, dict) else None
    if missed:
        text = f"relay: the hive dropped {missed} tickets before they could be queued; submit them again"
        click.echo(styled(text, "red"))


def _print_peers(peers: object) -> None:
    rows = [
        [
            plain(str(name)),
            styled(str(peer.get("circuit")), _COLOURS.get(str(peer.get("circuit")))),
            str(peer.get("pending")),
            str(peer.get("awaiting")),
            plain(str(peer.get("why") or "-")),
        ]
        for name, peer in (peers.items() if isinstance(peers, dict) else ())
        if isinstance(peer, dict)
    ]
    if rows:
        click.echo(table(["PEER", "CIRCUIT", "WAITING", "AWAITING", "LAST FAILURE"], rows))
