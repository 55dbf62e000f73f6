"""`snapshots discover`: what a collector sees on this host now. A diagnosis: nothing is published."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.output import emit_json, plain, size, styled
from ticket_agent.cli.snapshots_common import enrolment_from, manifest_options
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from ticket_agent.protocol.snapshot import SnapshotBounds
    from ticket_agent.snapshots.looking import Seen

__all__ = ["discover"]

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

    Bounds are the usual ones, or those of --manifest. The exit code is 0 when there is something to see, 4
    when there is not.
    """
    from ticket_agent.cli.snapshots_look import look_at  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.registry import provider_named  # noqa: PLC0415 - start-up time

    provider = provider_named(name)
    seen = look_at(provider, _bounds(options), timeout_s)
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
                "entries": [{"path": entry.path, "value": entry.value} for entry in seen.entries],
            },
        )
    else:
        _show(seen)
    sys.exit(int(Exit.OK if seen.reason is None else Exit.DEGRADED))


def _bounds(options: dict[str, Any]) -> SnapshotBounds:
    from ticket_agent.protocol.snapshot import DEFAULT_BOUNDS  # noqa: PLC0415 - start-up time

    given = options["snapshot_manifest"] is not None or options["default_enrolment"]
    return enrolment_from(options).bounds if given else DEFAULT_BOUNDS


def _show(seen: Seen) -> None:
    provider = seen.look.provider
    if seen.reason is not None:
        click.echo(f"{provider}: {styled('unavailable', 'yellow')}, {seen.reason}: {plain(seen.detail)}")
        return
    from ticket_agent.protocol.errors import SnapshotError  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.volume import measured  # noqa: PLC0415 - start-up time

    try:
        found = measured(seen.entries, provider=provider, source_id="x")
    except SnapshotError as error:
        click.echo(f"{provider}: {styled('cannot be published', 'red')}: {plain(str(error))}")
    else:
        click.echo(
            f"{provider}: {styled('available', 'green')}, {found.entries} entries, {size(found.bytes)},"
            f" longest value {found.value_bytes} B"
        )
    width = max((len(entry.path) for entry in seen.entries), default=0)
    for entry in seen.entries:
        click.echo(f"{plain(entry.path):<{width}}  {plain(entry.value)}")
