"""How `snapshots watch` shows what is new: lines, JSON lines, or a table that is drawn over."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final, Protocol

import click

from ticket_agent.cli.output import emit_json, plain, stamp, styled
from ticket_agent.cli.snapshots_screen import (
    Outcome,
    change_members,
    entry_lines,
    observation_members,
    outcome_table,
    reason_text,
    shown,
    volume,
)
from ticket_agent.protocol.redaction import redact_tickets
from ticket_agent.snapshots.changes import Step
from ticket_agent.snapshots.follow import What

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ticket_agent.snapshots.changes import SnapshotChange
    from ticket_agent.snapshots.follow import Event
    from ticket_agent.snapshots.observation import HostObservation

__all__ = ["Display", "display_for", "event_lines", "event_members"]

Pair = tuple[str, str]

_UP: Final = "\x1b[{}A"
_CLEAR: Final = "\x1b[J"
_NOTES: Final = 5
"""Lines below the table: what happened last."""

_COLOURS: Final = {What.GONE: "yellow", What.PROBLEM: "red", What.LOST: "red", What.MISSED: "yellow"}


class Display(Protocol):
    """What the loop tells."""

    def looked(self, pair: Pair, outcome: Outcome) -> None:
        """A pair was looked at, whether or not anything is new."""

    def tell(self, event: Event) -> None:
        """Something is new."""

    def round_over(self, at_unix_ms: int) -> None:
        """Every pair was looked at."""

    def lost(self, at_unix_ms: int) -> None:
        """The hive did not answer."""


def display_for(pairs: Sequence[Pair], *, as_json: bool, as_table: bool) -> Display:
    """The display that the options ask for."""
    if as_json:
        return _Json()
    return _Table(pairs) if as_table else _Lines()


class _Lines:
    """A few lines for each event."""

    def looked(self, pair: Pair, outcome: Outcome) -> None:
        """Nothing: only what is new is told."""

    def tell(self, event: Event) -> None:
        click.echo("\n".join(event_lines(event)))

    def round_over(self, at_unix_ms: int) -> None:
        """Nothing."""

    def lost(self, at_unix_ms: int) -> None:
        """Nothing: there was an event."""


class _Json(_Lines):
    """One object for each event."""

    def tell(self, event: Event) -> None:
        emit_json("snapshots-change", event_members(event))


class _Table:
    """One row for each pair, and what happened last; drawn over after each round."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._outcomes: dict[Pair, Outcome | None] = dict.fromkeys(pairs)
        self._notes: list[str] = []
        self._drawn = 0

    def looked(self, pair: Pair, outcome: Outcome) -> None:
        self._outcomes[pair] = outcome

    def tell(self, event: Event) -> None:
        if event.what is not What.RECORD:
            self._notes = [*self._notes, *event_lines(event)][-_NOTES:]

    def round_over(self, at_unix_ms: int) -> None:
        self._draw(at_unix_ms)

    def lost(self, at_unix_ms: int) -> None:
        # What was seen before must not look like what is.
        self._outcomes = dict.fromkeys(self._outcomes)
        self._draw(at_unix_ms)

    def _draw(self, at_unix_ms: int) -> None:
        window = shutil.get_terminal_size()
        lines = [stamp(at_unix_ms), *outcome_table(self._outcomes.items(), at_unix_ms).split("\n")]
        lines += ["", *self._notes] if self._notes else []
        # More than the window holds could not be drawn over.
        lines = [_cut(line, window.columns) for line in lines][: max(1, window.lines - 1)]
        over = _UP.format(self._drawn) if self._drawn else ""
        self._drawn = len(lines)
        click.echo(f"{over}\r{_CLEAR}" + "\n".join(lines))


def _cut(line: str, width: int) -> str:
    bare = click.unstyle(line)
    # A cut line loses its colour: where the codes stand in it no longer matters.
    return line if len(bare) <= width else f"{bare[: width - 1]}…"


def event_lines(event: Event) -> list[str]:
    """An event for people: when, of whom, what; below it what changed inside."""
    head = f"{stamp(event.at_unix_ms)}  {_who(event)}"
    if event.observation is None:
        word = event.code or event.what
        return [f"{head}  {styled(plain(word), _COLOURS.get(event.what))}: {shown(event.detail)}"]
    lines = [f"{head}  {_record(event.observation, event.change)}"]
    if event.change is not None:
        lines += [f"    {line}" for line in entry_lines(event.change)]
    return lines


def _who(event: Event) -> str:
    if event.provider is None:
        return plain(event.source_id or "hive")
    return plain(f"{event.provider}/{event.source_id}")


def _record(observation: HostObservation, change: SnapshotChange | None) -> str:
    state = "available" if observation.available_at_read else f"unavailable, {reason_text(observation)}"
    if change is None:
        return f"sequence {observation.sequence}, {state}, {volume(observation)}"
    told = [f"sequence {observation.sequence}"]
    match change.step:
        case Step.RESTARTED:
            told.append("the count went back: the hive restarted, and the publisher has another cursor")
        case Step.REWRITTEN:
            told.append("the same number with other bytes: do two publishers use this source?")
        case Step.SAME:
            told.append("visible again")
        case Step.FORWARD:
            pass
    if change.availability_changed:
        told.append(f"now {state}")
    elif not observation.available_at_read:
        told.append(f"still {state}")
    elif not change.entries:
        told.append("nothing changed")
    return ", ".join(told)


def event_members(event: Event) -> dict[str, object]:
    """An event for programs; members that do not concern it are left away."""
    members: dict[str, object] = {
        "event": event.what,
        "at_unix_ms": event.at_unix_ms,
        "provider": event.provider,
        "source_id": event.source_id,
    }
    if event.observation is not None:
        members |= observation_members(event.observation, event.at_unix_ms)
        members["change"] = None if event.change is None else change_members(event.change)
        return members
    if event.code is not None:
        members["error"] = event.code
    if event.what is What.MISSED:
        members["count"] = event.count
    return members | {"detail": redact_tickets(event.detail)}
