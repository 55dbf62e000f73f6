"""`snapshots read`: one record, whole, or why there is none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.assembly import now_ms
from ticket_agent.cli.options import hive_options
from ticket_agent.cli.output import emit_json, fail
from ticket_agent.cli.snapshots_common import (
    enrolment_from,
    manifest_options,
    opened_reader,
    provider_named,
)
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from ticket_agent.protocol.snapshot_enrolment import SnapshotEnrolment
    from ticket_agent.snapshots.errors import SnapshotReadError

__all__ = ["exit_of_read", "read"]


@click.command()
@click.argument("provider")
@click.option("--source", metavar="ID", help="Of which host; needed when more than one publishes PROVIDER.")
@manifest_options
@hive_options
@click.option("--json", "as_json", is_flag=True, help="One JSON line.")
def read(*, provider: str, source: str | None, as_json: bool, **options: Any) -> None:
    """Show what PROVIDER of a host published, while its receiver vouches for it.

    The exit code is 0 for a state that is available, 4 when it is not or nothing is visible, 1 when record
    and status are broken or do not fit.
    """
    from ticket_agent.cli.snapshots_screen import (  # noqa: PLC0415 - start-up time
        error_members,
        observation_lines,
        observation_members,
    )
    from ticket_agent.snapshots.errors import SnapshotReadError  # noqa: PLC0415 - start-up time

    enrolment = enrolment_from(options)
    pair = _pair(enrolment, provider, source)
    with opened_reader(options, enrolment) as reader:
        try:
            observation = reader.read_settled(*pair)
        except SnapshotReadError as error:
            code = exit_of_read(error)
            if not as_json:
                fail(str(error), code)
            emit_json("snapshots-read", error_members(pair, error) | {"exit": int(code)})
            sys.exit(int(code))
    code = Exit.OK if observation.available_at_read else Exit.DEGRADED
    now = now_ms()
    if as_json:
        emit_json("snapshots-read", observation_members(observation, now) | {"exit": int(code)})
    else:
        click.echo("\n".join(observation_lines(observation, now)))
    sys.exit(int(code))


def exit_of_read(error: SnapshotReadError) -> Exit:
    """The code for a pair that shows no record."""
    from ticket_agent.snapshots.errors import (  # noqa: PLC0415 - start-up time
        NoSuchNodeError,
        NotEnrolledError,
        NothingVisibleError,
    )

    match error:
        case NothingVisibleError():
            return Exit.DEGRADED
        case NoSuchNodeError():
            return Exit.HIVE_REFUSED
        case NotEnrolledError():
            return Exit.USAGE
        case _:
            return Exit.FAILURE


def _pair(enrolment: SnapshotEnrolment, name: str, source: str | None) -> tuple[str, str]:
    provider = provider_named(enrolment, name)
    sources = enrolment.sources(provider)
    if source is None:
        if len(sources) > 1:
            raise click.UsageError(f"{provider} is published by {', '.join(sources)}; name one with --source")
        (source,) = sources
    if source not in sources:
        raise click.UsageError(
            f"source {source} is not enrolled for {provider}; enrolled: {', '.join(sources)}"
        )
    return provider, source
