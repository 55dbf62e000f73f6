"""`snapshots list`: how every enrolled pair of provider and host stands."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.assembly import now_ms
from ticket_agent.cli.options import hive_options
from ticket_agent.cli.output import emit_json
from ticket_agent.cli.snapshots_common import enrolment_from, manifest_options, opened_reader
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ticket_agent.cli.snapshots_screen import Outcome
    from ticket_agent.snapshots.reader import SnapshotReader

__all__ = ["list_pairs", "outcome_of"]


@click.command()
@manifest_options
@hive_options
@click.option("--json", "as_json", is_flag=True, help="One JSON line per pair (NDJSON).")
def list_pairs(*, as_json: bool, **options: Any) -> None:
    """Show every enrolled pair: its state and why, the last number, age and life of the record.

    The exit code is 0 when every pair is available, 4 when one is not or shows nothing, 1 when one cannot be
    believed, 6 when the hive does not have one.
    """
    from ticket_agent.cli.snapshots_screen import (  # noqa: PLC0415 - start-up time
        error_members,
        observation_members,
        outcome_table,
    )
    from ticket_agent.snapshots.observation import HostObservation  # noqa: PLC0415 - start-up time

    enrolment = enrolment_from(options)
    with opened_reader(options, enrolment) as reader:
        outcomes = [(pair, outcome_of(reader, pair)) for pair in enrolment.pairs()]
    now = now_ms()
    if not as_json:
        click.echo(outcome_table(outcomes, now))
        click.echo(_summary([outcome for _, outcome in outcomes]))
    else:
        for pair, outcome in outcomes:
            if isinstance(outcome, HostObservation):
                emit_json("snapshots-list", observation_members(outcome, now))
            else:
                emit_json("snapshots-list", error_members(pair, outcome))
    sys.exit(int(_exit_of([outcome for _, outcome in outcomes])))


def outcome_of(reader: SnapshotReader, pair: tuple[str, str]) -> Outcome:
    """What a pair shows, or why it shows nothing.

    Raises:
        HiveError: the hive did not answer, or refused.
    """
    from ticket_agent.snapshots.errors import SnapshotReadError  # noqa: PLC0415 - start-up time

    try:
        return reader.read_settled(*pair)
    except SnapshotReadError as error:
        return error


def _summary(outcomes: Sequence[Outcome]) -> str:
    from ticket_agent.snapshots.observation import HostObservation  # noqa: PLC0415 - start-up time

    good = sum(1 for one in outcomes if isinstance(one, HostObservation) and one.available_at_read)
    more = "" if good == len(outcomes) else "; `ticket-agent snapshots read PROVIDER` says what to do"
    return f"{good} of {len(outcomes)} available{more}"


def _exit_of(outcomes: Sequence[Outcome]) -> Exit:
    """The worst of all: broken, absent, not available."""
    from ticket_agent.cli.snapshots_read import exit_of_read  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.observation import HostObservation  # noqa: PLC0415 - start-up time

    codes = {Exit.OK}
    for one in outcomes:
        if isinstance(one, HostObservation):
            codes.add(Exit.OK if one.available_at_read else Exit.DEGRADED)
        else:
            codes.add(exit_of_read(one))
    return next(code for code in (Exit.FAILURE, Exit.HIVE_REFUSED, Exit.DEGRADED, Exit.OK) if code in codes)
