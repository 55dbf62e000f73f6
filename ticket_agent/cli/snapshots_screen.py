"""Snapshots as text and as JSON. Pure: time and width come from the caller.

Values come from other hosts. Whatever is in them, a terminal shows it and does no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ticket_agent.cli.output import age, plain, size, stamp, styled, table
from ticket_agent.protocol.redaction import redact_tickets
from ticket_agent.protocol.snapshot import UnavailableReason
from ticket_agent.snapshots.errors import NothingVisibleError, SnapshotReadError
from ticket_agent.snapshots.observation import HostObservation, ttl_left_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ticket_agent.snapshots.changes import EntryChange, SnapshotChange

__all__ = [
    "Outcome",
    "change_members",
    "entry_lines",
    "error_members",
    "observation_lines",
    "observation_members",
    "outcome_table",
    "reason_text",
    "shown",
    "volume",
]

Outcome = HostObservation | SnapshotReadError
"""What came of reading a pair."""

_BAR: Final = 10
_MOST: Final = 100
"""Characters of a value in a line about a change."""

_HEADERS: Final = ("PROVIDER", "SOURCE", "STATE", "REASON", "SEQUENCE", "OBSERVED", "LIFE LEFT", "SIZE")

_ADVICE: Final = {
    UnavailableReason.NOT_SUPPORTED: "its system has no such thing; nothing to do",
    UnavailableReason.NOT_ENABLED: "it is not set up there; set it up, or leave it out of the manifest",
    UnavailableReason.SOURCE_FAILED: "looking failed there; read the publisher's log on {source}",
    UnavailableReason.TIMED_OUT: "looking took too long there; see whether {source} is overloaded",
}


def shown(text: str, most: int | None = None) -> str:
    """A text of another host, made harmless and cut to ``most`` characters."""
    safe = plain(redact_tickets(text))
    return safe if most is None or len(safe) <= most else f"{safe[: most - 1]}…"


def reason_text(observation: HostObservation) -> str:
    """Why there is no state, and what to do."""
    if observation.reason is None:
        return ""
    return f"{observation.reason}: {_ADVICE[observation.reason].format(source=observation.source_id)}"


def volume(observation: HostObservation) -> str:
    """How much a record holds."""
    count = len(observation.entries)
    return f"{count} {'entry' if count == 1 else 'entries'}, {size(observation.size)}"


def observation_lines(observation: HostObservation, now_ms: int) -> list[str]:
    """Everything about one record."""
    state = _state(observation)
    when = age(observation.observed_unix_ms, now_ms)
    lines = [f"{observation.provider} of {observation.source_id}  {state}"]
    if observation.reason is not None:
        lines.append(f"reason    {reason_text(observation)}")
    lines += [
        f"observed  {stamp(observation.observed_unix_ms)}, {when} by this machine's clock",
        f"life left {_life(observation, now_ms)}",
        f"record    sequence {observation.sequence}, epoch {observation.epoch}, {volume(observation)}",
        f"sha256    {observation.sha256}",
    ]
    if observation.lag_s > 0:
        lines.append(f"read      through a gateway: this may be {observation.lag_s:.1f} s old")
    if observation.entries:
        width = max(len(entry.path) for entry in observation.entries)
        lines.append("")
        lines += [f"{entry.path:<{width}}  {shown(entry.value)}" for entry in observation.entries]
    return lines


def outcome_table(outcomes: Iterable[tuple[tuple[str, str], Outcome | None]], now_ms: int) -> str:
    """One row for each pair; None is a pair of which nothing is known."""
    return table(_HEADERS, [_row(pair, outcome, now_ms) for pair, outcome in outcomes])


def _row(pair: tuple[str, str], outcome: Outcome | None, now_ms: int) -> Sequence[str]:
    if outcome is None:
        return (*pair, styled("unknown", "red"), "unreachable", "-", "-", "-", "-")
    if isinstance(outcome, HostObservation):
        return (
            *pair,
            _state(outcome),
            "-" if outcome.reason is None else str(outcome.reason),
            str(outcome.sequence),
            age(outcome.observed_unix_ms, now_ms),
            _life(outcome, now_ms),
            size(outcome.size),
        )
    if isinstance(outcome, NothingVisibleError):
        last = str(outcome.status.sequence) if outcome.status.sequence else "-"
        return (*pair, styled("nothing", "yellow"), outcome.code, last, "-", "-", "-")
    return (*pair, styled("unreadable", "red"), outcome.code, "-", "-", "-", "-")


def _state(observation: HostObservation) -> str:
    if observation.available_at_read:
        return styled("available", "green")
    return styled("unavailable", "yellow")


def _life(observation: HostObservation, now_ms: int) -> str:
    left = ttl_left_ms(observation, now_ms)
    if left is None:
        return "until replaced"
    # A record that shows is not over yet, whatever the clocks say.
    filled = min(_BAR, -(-_BAR * left // observation.ttl_ms))
    return f"[{'#' * filled}{'-' * (_BAR - filled)}] {left / 1000:.0f} of {observation.ttl_ms / 1000:.0f} s"


def entry_lines(change: SnapshotChange) -> list[str]:
    """What differs, one line for each entry."""
    return [_entry_line(entry) for entry in change.entries]


def _entry_line(entry: EntryChange) -> str:
    if entry.before is None or entry.after is None:
        sign, value = ("+", entry.after) if entry.before is None else ("-", entry.before)
        return f"{sign} {entry.path}  {shown(value or '', _MOST)}"
    if not entry.members:
        return f"~ {entry.path}  {_step(entry.before, entry.after)}"
    inside = "; ".join(
        f"{shown(member.name, _MOST)} {_step(member.before, member.after)}" for member in entry.members
    )
    return f"~ {entry.path}  {inside}"


def _step(before: str | None, after: str | None) -> str:
    old, new = (shown(text, _MOST // 2) if text is not None else "nothing" for text in (before, after))
    return f"{old} -> {new}"


# -- JSON ----------------------------------------------------------------------------------------------------


def observation_members(observation: HostObservation, now_ms: int) -> dict[str, Any]:
    """A record for programs; capability tickets in values are replaced by their fingerprints."""
    return {
        "provider": observation.provider,
        "source_id": observation.source_id,
        "visible": True,
        "available": observation.available_at_read,
        "reason": observation.reason,
        "epoch": observation.epoch,
        "sequence": observation.sequence,
        "observed_unix_ms": observation.observed_unix_ms,
        "ttl_ms": observation.ttl_ms,
        "ttl_left_ms": ttl_left_ms(observation, now_ms),
        "read_unix_ms": observation.read_unix_ms,
        "lag_s": observation.lag_s,
        "size": observation.size,
        "sha256": observation.sha256,
        "entries": [
            {"path": entry.path, "value": redact_tickets(entry.value)} for entry in observation.entries
        ],
    }


def error_members(pair: tuple[str, str], error: SnapshotReadError) -> dict[str, Any]:
    """A pair that shows no record, for programs."""
    status = error.status if isinstance(error, NothingVisibleError) else None
    return {
        "provider": pair[0],
        "source_id": pair[1],
        "visible": False,
        "error": error.code,
        "detail": redact_tickets(error.detail),
        "sequence": None if status is None else status.sequence,
    }


def change_members(change: SnapshotChange) -> dict[str, Any]:
    """A difference for programs."""
    return {
        "step": change.step,
        "between": change.between,
        "reason_before": change.reason_before,
        "changes": [
            {
                "path": entry.path,
                "before": _redacted(entry.before),
                "after": _redacted(entry.after),
                "members": [
                    {
                        "name": redact_tickets(member.name),
                        "before": _redacted(member.before),
                        "after": _redacted(member.after),
                    }
                    for member in entry.members
                ],
            }
            for entry in change.entries
        ],
    }


def _redacted(text: str | None) -> str | None:
    return None if text is None else redact_tickets(text)
