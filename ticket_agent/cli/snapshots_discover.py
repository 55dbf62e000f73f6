"""`snapshots discover`: what a collector sees on this host now. A diagnosis: nothing is published."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.output import emit_json, fail, plain, size, styled
from ticket_agent.cli.snapshots_common import enrolment_from, manifest_options
from ticket_agent.exits import Exit
from ticket_agent.protocol.redaction import redact_tickets

if TYPE_CHECKING:
    from ticket_agent.protocol.snapshot import SnapshotBounds
    from ticket_agent.snapshots.looking import Seen
    from ticket_agent.snapshots.volume import Volume

__all__ = ["discover"]

LONGEST_SOURCE = "s" * 32
"""Whose record it would be is not known here; what fits this one fits all."""
DISCOVERY_SCHEMA = "cohesix-native-discovery/v1"


@click.command()
@click.argument("name", metavar="PROVIDER")
@manifest_options
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1, 60.0),
    default=10.0,
    show_default=True,
    help="Seconds the look may take.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line.")
def discover(*, name: str, timeout_s: float, as_json: bool, **options: Any) -> None:
    """Look at PROVIDER once and print what a publisher would publish. Proves and grants nothing.

    Bounds are the usual ones, or those of --manifest. The exit code is 0 when there is something to see
    that fits, 4 when not.
    """
    from ticket_agent.cli.snapshots_look import look_at  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.registry import provider_named  # noqa: PLC0415 - start-up time

    provider = _provider(provider_named(name))
    bounds = _bounds(options)
    seen = look_at(provider, bounds, timeout_s)
    volume, obstacle = _volume(seen, bounds)
    if as_json:
        emit_json(
            "snapshots-discovery",
            {
                "discovery_schema": DISCOVERY_SCHEMA,
                "provider_id": provider,
                "observed_mode": "live",
                "proof_class": "read_only",
                "authoritative": False,
                "available": seen.reason is None,
                "reason": seen.reason,
                "detail": seen.detail or None,
                "obstacle": obstacle,
                "entries": [
                    {"path": redact_tickets(entry.path), "value": redact_tickets(entry.value)}
                    for entry in seen.entries
                ],
            },
        )
    else:
        _show(seen, volume, obstacle)
    sys.exit(int(Exit.OK if seen.reason is None and obstacle is None else Exit.DEGRADED))


def _provider(name: str) -> str:
    from ticket_agent.protocol.errors import SnapshotError  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.snapshot_names import check_provider  # noqa: PLC0415 - start-up time

    try:
        return check_provider(name)
    except SnapshotError as error:
        fail(str(error), Exit.USAGE)


def _bounds(options: dict[str, Any]) -> SnapshotBounds:
    from ticket_agent.protocol.snapshot import DEFAULT_BOUNDS  # noqa: PLC0415 - start-up time

    given = options["snapshot_manifest"] is not None or options["default_enrolment"]
    return enrolment_from(options).bounds if given else DEFAULT_BOUNDS


def _volume(seen: Seen, bounds: SnapshotBounds) -> tuple[Volume | None, str | None]:
    """What the record takes, and why a publisher would withdraw it."""
    from ticket_agent.protocol.errors import SnapshotError  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.volume import measured  # noqa: PLC0415 - start-up time

    try:
        found = measured(seen.entries, provider=seen.look.provider, source_id=LONGEST_SOURCE)
    except SnapshotError as error:
        return None, str(error)
    if found.share(bounds) <= 1:
        return found, None
    return found, (
        f"a record holds at most {bounds.max_entries} entries, {bounds.max_bytes} bytes and"
        f" {bounds.max_value_bytes} bytes per value"
    )


def _show(seen: Seen, volume: Volume | None, obstacle: str | None) -> None:
    provider = seen.look.provider
    if seen.reason is not None:
        click.echo(f"{provider}: {styled('unavailable', 'yellow')}, {seen.reason}: {plain(seen.detail)}")
        return
    takes = (
        ""
        if volume is None
        else (f", {volume.entries} entries, {size(volume.bytes)}, longest value {volume.value_bytes} B")
    )
    if obstacle is None:
        click.echo(f"{provider}: {styled('available', 'green')}{takes}")
    else:
        click.echo(f"{provider}: {styled('cannot be published', 'red')}{takes}: {plain(obstacle)}")
    width = max((len(entry.path) for entry in seen.entries), default=0)
    for entry in seen.entries:
        click.echo(redact_tickets(f"{plain(entry.path):<{width}}  {plain(entry.value)}"))
