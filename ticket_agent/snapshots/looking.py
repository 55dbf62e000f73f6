"""One look of one collector: what it was asked, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ticket_agent.protocol.collecting import CollectError
from ticket_agent.protocol.snapshot import SnapshotEntry, UnavailableReason
from ticket_agent.protocol.text import single_line

if TYPE_CHECKING:
    from ticket_agent.protocol.collecting import CollectContext, Collector

__all__ = ["MAX_LOOK_S", "Look", "Seen", "look_once", "too_late"]

MAX_LOOK_S = 10.0
"""Longest look, in seconds; a record that lives shorter shortens it (publisher, collection deadline)."""
MAX_DETAIL_BYTES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A look that begins.

    Attributes:
        provider: at what.
        observed_unix_ms: when, by the wall clock; before anything was looked at.
        began_s: when, by the monotonic clock; the record's life counts from here.
        deadline_s: by when it has to be done, by the monotonic clock.
    """

    provider: str
    observed_unix_ms: int
    began_s: float
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What came of a look.

    Attributes:
        look: the look.
        entries: what was seen.
        reason: why nothing was; None when something was, if only that there is nothing.
        detail: one line for this host's operator about ``reason``; it is not published.
    """

    look: Look
    entries: tuple[SnapshotEntry, ...] = ()
    reason: UnavailableReason | None = None
    detail: str = ""


def look_once(collector: Collector, context: CollectContext, look: Look) -> Seen:
    """Have a collector look; whatever it raises becomes a reason.

    What comes after the deadline is thrown away: it may have been true at any moment since.
    """
    try:
        entries = tuple(collector(context))
        if not all(isinstance(entry, SnapshotEntry) for entry in entries):
            raise TypeError("a collector returns entries")  # noqa: TRY301 - told like its other faults
    except CollectError as error:
        seen = _nothing(look, error.reason, error.detail)
    except Exception as error:  # noqa: BLE001 - one collector must not end the others
        seen = _nothing(look, UnavailableReason.SOURCE_FAILED, f"{type(error).__name__}: {error}")
    else:
        seen = Seen(look=look, entries=entries)
    return too_late(look) if context.deadline.passed() else seen


def too_late(look: Look) -> Seen:
    """A look that was not done by its deadline."""
    return _nothing(
        look,
        UnavailableReason.TIMED_OUT,
        f"no answer within {look.deadline_s - look.began_s:.1f} s",
    )


def _nothing(look: Look, reason: UnavailableReason, detail: str) -> Seen:
    return Seen(look=look, reason=reason, detail=single_line(detail, MAX_DETAIL_BYTES))
