"""One look of one collector: what it was asked, and what came of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from ticket_agent.protocol.collecting import CollectError
from ticket_agent.protocol.redaction import redact_tickets
from ticket_agent.protocol.snapshot import SnapshotEntry, UnavailableReason
from ticket_agent.protocol.text import single_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ticket_agent.protocol.collecting import CollectContext, Collector

__all__ = ["MAX_LOOK_S", "Look", "Seen", "look_once", "not_begun", "too_late"]

MAX_LOOK_S = 10.0
"""Longest look, in seconds; a record that lives shorter shortens it (publisher, collection deadline)."""
MAX_DETAIL_BYTES = 200
_CREDENTIALS = re.compile(r"://[^/@\s]{1,512}@")
"""Name and password in a URL, which libraries put into their errors."""
MOST_ENTRIES = 4096
"""More are not taken from a collector; no record holds that many."""


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
        seen = Seen(look=look, entries=_entries(collector(context)))
    except CollectError as error:
        seen = _nothing(look, _reason(error), _words(getattr(error, "detail", error)))
    except BaseException as error:  # noqa: BLE001 - one collector must not end its thread, nor the others
        seen = _nothing(look, UnavailableReason.SOURCE_FAILED, f"{type(error).__name__}: {_words(error)}")
    return too_late(look) if context.deadline.passed() else seen


def _entries(found: Iterable[object]) -> tuple[SnapshotEntry, ...]:
    """What a collector brought; it may be a site's, and not typed."""
    entries: list[SnapshotEntry] = []
    for entry in islice(found, MOST_ENTRIES):
        if not isinstance(entry, SnapshotEntry):
            raise TypeError(f"a collector returns entries, not {type(entry).__name__}")
        for name in ("path", "value"):
            # A class of its own could say something else about its length than is sent.
            if type(getattr(entry, name)) is not str:
                raise TypeError(f"the {name} of an entry is a text, not {getattr(entry, name)!r:.40}")
        entries.append(entry)
    return tuple(entries)


def _reason(error: CollectError) -> UnavailableReason:
    """A collector's reason; one that no receiver would take is a failure of the collector."""
    try:
        return UnavailableReason(str(getattr(error, "reason", "")))
    except ValueError:
        return UnavailableReason.SOURCE_FAILED


def _words(said: object) -> str:
    try:
        return str(said)
    except BaseException:  # noqa: BLE001 - it is a site's, as what it says is
        return "it has no words for it"


def too_late(look: Look) -> Seen:
    """A look that was not done by its deadline."""
    return _nothing(
        look,
        UnavailableReason.TIMED_OUT,
        f"no answer within {look.deadline_s - look.began_s:.1f} s",
    )


def not_begun(look: Look, why: str) -> Seen:
    """A look that could not even begin."""
    return _nothing(look, UnavailableReason.SOURCE_FAILED, why)


def _nothing(look: Look, reason: UnavailableReason, detail: str) -> Seen:
    told = _CREDENTIALS.sub("://", redact_tickets(detail))
    return Seen(look=look, reason=reason, detail=single_line(told, MAX_DETAIL_BYTES))
