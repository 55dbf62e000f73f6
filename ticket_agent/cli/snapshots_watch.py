"""`snapshots watch`: snapshots while they come and go."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from ticket_agent.cli.assembly import now_ms, stop_on_signals
from ticket_agent.cli.options import hive_options
from ticket_agent.cli.snapshots_common import (
    enrolment_from,
    manifest_options,
    opened_reader,
    provider_named,
)
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Sequence

    from ticket_agent.cli.snapshots_display import Display
    from ticket_agent.protocol.namespace import HiveError
    from ticket_agent.protocol.snapshot_enrolment import SnapshotEnrolment
    from ticket_agent.snapshots.follow import Event
    from ticket_agent.snapshots.reader import SnapshotReader

__all__ = ["watch"]

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0


@click.command()
@click.argument("providers", nargs=-1, metavar="[PROVIDER]...")
@click.option("--source", metavar="ID", help="Only of this host.")
@manifest_options
@hive_options
@click.option(
    "--interval",
    type=click.FloatRange(0.05, 60),
    default=1.0,
    show_default=True,
    help="Seconds between two rounds of looks.",
)
@click.option("--for", "seconds", type=click.FloatRange(0, 604_800), help="End after that many seconds.")
@click.option("--count", type=click.IntRange(1), help="End after that many new records.")
@click.option("--table", "as_table", is_flag=True, help="Redraw one table; on a terminal only.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line per change (NDJSON).")
def watch(
    *,
    providers: tuple[str, ...],
    source: str | None,
    interval: float,
    seconds: float | None,
    count: int | None,
    as_table: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Follow snapshots: each new record and what changed in it, expiry, withdrawal, what was missed.

    A host's providers share one count, so missed numbers are told where all its providers are followed.

    A hive that does not answer is asked again after 1 to 30 seconds. Ctrl-C ends it with 0, as --count does,
    and --for, unless the hive does not answer at that moment: then the code is 5.
    """
    from ticket_agent.cli.snapshots_display import display_for  # noqa: PLC0415 - start-up time

    enrolment = enrolment_from(options)
    pairs = _pairs(enrolment, providers, source)
    if as_table and (as_json or not sys.stdout.isatty()):
        raise click.UsageError("--table needs a terminal, and no --json; leave it away")
    display = display_for(pairs, as_json=as_json, as_table=as_table)
    stop = stop_on_signals()
    deadline = None if seconds is None else time.monotonic() + seconds
    with opened_reader(options, enrolment) as reader:
        watching = _Watching(reader, pairs, display, stop=stop, deadline=deadline, count=count)
        answered = watching.run(interval)
    sys.exit(int(Exit.OK if answered else Exit.HIVE_UNREACHABLE))


def _pairs(
    enrolment: SnapshotEnrolment, names: Sequence[str], source: str | None
) -> tuple[tuple[str, str], ...]:
    wanted = {provider_named(enrolment, name) for name in names} or set(enrolment.providers())
    pairs = tuple(
        (provider, of) for provider, of in enrolment.pairs() if provider in wanted and source in {None, of}
    )
    if not pairs:
        known = ", ".join(publisher.source_id for publisher in enrolment.publishers) or "none"
        raise click.UsageError(f"nothing of that is enrolled; sources: {known}")
    return pairs


class _Watching:
    """The loop: look at every pair, tell what is new, pause."""

    def __init__(
        self,
        reader: SnapshotReader,
        pairs: Sequence[tuple[str, str]],
        display: Display,
        *,
        stop: threading.Event,
        deadline: float | None,
        count: int | None,
    ) -> None:
        from ticket_agent.snapshots.follow import Follower  # noqa: PLC0415 - start-up time

        self._reader = reader
        self._pairs = pairs
        self._display = display
        self._stop = stop
        self._deadline = deadline
        self._left = count
        self._follower = Follower(pairs, reader.enrolment)

    def run(self, interval: float) -> bool:
        """Go on until told to end; returns False if time ran out while the hive did not answer.

        Raises:
            HiveError: the hive refused, or broke the protocol.
        """
        from ticket_agent.protocol.namespace import (  # noqa: PLC0415 - start-up time
            HiveBusyError,
            HiveUnreachableError,
        )

        pause_s, answered = FIRST_PAUSE_S, True
        while True:
            try:
                self._round()
            except (HiveUnreachableError, HiveBusyError) as error:
                answered = self._lost(error)
                pause_s, wait_s = min(2 * pause_s, LONGEST_PAUSE_S), pause_s
            else:
                answered, pause_s, wait_s = True, FIRST_PAUSE_S, interval
            if self._over(wait_s):
                return answered or self._stop.is_set()

    def _round(self) -> None:
        from ticket_agent.cli.snapshots_list import outcome_of  # noqa: PLC0415 - start-up time

        for pair in self._pairs:
            outcome = outcome_of(self._reader, pair)
            at = now_ms()
            self._display.looked(pair, outcome)
            self._tell(self._follower.answered(at))
            self._tell(self._follower.looked(pair, outcome, at))
            if self._stop.is_set() or self._left == 0:
                return
        at = now_ms()
        self._tell(self._follower.round_over(at))
        self._display.round_over(at)

    def _lost(self, error: HiveError) -> bool:
        at = now_ms()
        self._tell(self._follower.lost(str(error), at))
        self._display.lost(at)
        return False

    def _tell(self, events: Iterable[Event]) -> None:
        for event in events:
            if self._left == 0:
                return
            self._display.tell(event)
            if self._left is not None and event.observation is not None:
                self._left -= 1

    def _over(self, wait_s: float) -> bool:
        """Pause; returns whether it is time to end."""
        if self._left == 0:
            return True
        left_s = None if self._deadline is None else self._deadline - time.monotonic()
        if left_s is None or left_s > wait_s:
            return self._stop.wait(wait_s)
        self._stop.wait(max(0.0, left_s))
        return True
