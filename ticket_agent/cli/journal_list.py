"""`journal list`: which operations there are, narrowed by what is asked for, once or as they change."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ticket_agent.cli.assembly import now_ms, stop_on_signals
from ticket_agent.cli.journal_records import HEADERS, brief, is_uncertain, ordered, request_of, row
from ticket_agent.cli.options import default_state_dir, state_dir_option
from ticket_agent.cli.output import emit_json, plain, stamp, styled, table
from ticket_agent.cli.status import journal_view
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ticket_agent.journal.record import Record
    from ticket_agent.journal.view import JournalView

__all__ = ["Moment", "Selection", "list_operations", "selection_options"]

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

STATES = ("prepared", "executing", "provider-result-persisted", "result-published", "terminal")
WATCH_PERIOD_S = 0.5
_AGE = re.compile(r"([0-9]{1,9})(ms|s|min|m|h|d|w)")
_UNITS_MS = {
    "ms": 1,
    "s": 1_000,
    "min": 60_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}


class Moment(click.ParamType):  # type: ignore[type-arg]
    """A time as Unix milliseconds: an ISO time, UTC unless it names a zone, or an age such as ``2h``."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse an age or an ISO time."""
        from datetime import UTC, datetime  # noqa: PLC0415 - start-up time

        if isinstance(value, int):
            return value
        found = _AGE.fullmatch(value)
        if found is not None:
            return now_ms() - int(found[1]) * _UNITS_MS[found[2]]
        try:
            moment = datetime.fromisoformat(value)
            zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            return int(zoned.timestamp() * 1000)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is neither a time (2026-01-31T12:00:00Z) nor an age (90s, 2h)", param, ctx)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a record must be to be shown; an empty or absent member asks for nothing.

    Attributes:
        states: any of these states.
        actions: any of these actions.
        workers: any of these receipt Workers.
        subjects: any of these subjects.
        first: lowest admission sequence.
        through: highest admission sequence.
        since: earliest last change, Unix milliseconds, inclusive.
        until: latest last change, Unix milliseconds, inclusive.
        uncertain: only with an unknown outcome.
        prefixes: the ticket id or the journal key begins with any of these.
    """

    states: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    first: int | None = None
    through: int | None = None
    since: int | None = None
    until: int | None = None
    uncertain: bool = False
    prefixes: tuple[str, ...] = ()

    def takes(self, record: Record) -> bool:
        """Whether the record fits every member."""
        if self.states and record.state.value not in self.states:
            return False
        if self.uncertain and not is_uncertain(record):
            return False
        if not _within(record.sequence, self.first, self.through):
            return False
        return _within(record.changed_unix_ms, self.since, self.until) and self._takes_request(record)

    def _takes_request(self, record: Record) -> bool:
        if not (self.actions or self.workers or self.subjects or self.prefixes):
            return True
        request = request_of(record)
        asked = (
            (self.actions, "action"),
            (self.workers, "receipt_worker_id"),
            (self.subjects, "subject_ref"),
        )
        if any(wanted and request.get(member) not in wanted for wanted, member in asked):
            return False
        names = (str(request.get("id", "")), record.key)
        return not self.prefixes or any(name.startswith(self.prefixes) for name in names)


def _within(value: int, low: int | None, high: int | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


_SELECTION = (
    click.argument("prefixes", nargs=-1, metavar="[PREFIX]..."),
    click.option(
        "--state",
        "states",
        multiple=True,
        type=click.Choice(STATES),
        help="Only this state; may be repeated.",
    ),
    click.option("--action", "actions", multiple=True, help="Only this action; may be repeated."),
    click.option("--worker", "workers", multiple=True, help="Only this receipt Worker; may be repeated."),
    click.option("--subject", "subjects", multiple=True, help="Only this subject; may be repeated."),
    click.option("--from", "first", type=click.IntRange(1), help="From this admission sequence on."),
    click.option("--through", type=click.IntRange(1), help="Up to this admission sequence."),
    click.option("--since", type=Moment(), help="Changed since then: a UTC ISO time, or an age like 2h."),
    click.option("--until", type=Moment(), help="Changed until then: a UTC ISO time, or an age like 2h."),
    click.option("--uncertain", is_flag=True, help="Only operations whose outcome is unknown."),
)


def selection_options(command: CommandT) -> CommandT:
    """The members of a :class:`Selection` as options, for every command that takes some of the operations."""
    for decorate in reversed(_SELECTION):
        command = decorate(command)
    return command


@click.command(name="list")
@state_dir_option
@selection_options
@click.option("--watch", is_flag=True, help="Go on and show changes until SIGINT or SIGTERM.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line per operation (NDJSON).")
def list_operations(*, state_dir: Path | None, watch: bool, as_json: bool, **asked: Any) -> None:
    """List operations, oldest admission first.

    PREFIX is the beginning of a ticket id or of a journal key. With --watch the table is drawn again after
    every change; with --json each operation is printed once more when it changed, and an `operation-left`
    when it moved to the archive or no longer fits.
    """
    directory = state_dir or default_state_dir()
    selection = Selection(**asked)
    if watch:
        _watch(directory, selection, as_json=as_json)
        return
    view = journal_view(directory)
    _print(view, _chosen(view, selection), as_json=as_json)
    sys.exit(int(Exit.DEGRADED if view.quarantined else Exit.OK))


def _chosen(view: JournalView, selection: Selection) -> list[Record]:
    return ordered(record for record in view.records.values() if selection.takes(record))


def _print(view: JournalView, chosen: list[Record], *, as_json: bool) -> None:
    if as_json:
        for record in chosen:
            emit_json("operation", brief(record))
        for item in view.quarantined:
            emit_json("quarantined", {"file": item.name, "reason": item.reason})
        return
    click.echo(table(HEADERS, [row(record) for record in chosen]) if chosen else "no operations")
    for item in view.quarantined:
        click.echo(styled(f"quarantined: ops/{plain(item.name)}: {plain(item.reason)}", "red"))


def _watch(directory: Path, selection: Selection, *, as_json: bool) -> None:
    stop = stop_on_signals()
    shown: dict[str, dict[str, Any]] | None = None
    while not stop.is_set():
        view = journal_view(directory)
        chosen = _chosen(view, selection)
        found = {record.key: brief(record) for record in chosen}
        found |= {item.name: {"file": item.name, "reason": item.reason} for item in view.quarantined}
        if found != shown:
            if as_json:
                _emit_changes(shown or {}, found)
            else:
                _redraw(view, chosen)
            sys.stdout.flush()
            shown = found
        stop.wait(WATCH_PERIOD_S)


def _emit_changes(before: Mapping[str, dict[str, Any]], now: Mapping[str, dict[str, Any]]) -> None:
    for name, document in now.items():
        if before.get(name) != document:
            emit_json("quarantined" if "file" in document else "operation", document)
    for name in before.keys() - now.keys():
        emit_json("operation-left", {"key": name})


def _redraw(view: JournalView, chosen: list[Record]) -> None:
    if sys.stdout.isatty():
        click.clear()
    click.echo(f"{stamp(now_ms())}  {len(chosen)} of {len(view.records)} operations")
    _print(view, chosen, as_json=False)
