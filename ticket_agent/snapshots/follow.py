"""Following snapshots: turns one look after another into what is new. Pure: looks and time come from outside.

What was seen last is kept to compare with, and for nothing else: no event shows it as the present state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from .changes import SnapshotChange, Step, changes_between
from .errors import NothingVisibleError, SnapshotReadError, WithdrawnError
from .observation import HostObservation
from .sequence_account import SequenceAccount

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ticket_agent.protocol.snapshot_enrolment import SnapshotEnrolment

__all__ = ["Event", "Follower", "What"]

Pair = tuple[str, str]


class What(StrEnum):
    """What an event is about."""

    RECORD = "record"
    """A record that was not there at the last look."""
    GONE = "gone"
    """Nothing is visible any more, or yet."""
    PROBLEM = "problem"
    """The pair cannot be read."""
    MISSED = "missed"
    """Numbers of a source that no provider showed."""
    LOST = "lost"
    """The hive does not answer: nothing is known about anything."""
    BACK = "back"
    """It answers again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something new.

    Attributes:
        what: kind.
        at_unix_ms: when it was noticed.
        provider: of the pair; None for what concerns a whole source or the hive.
        source_id: of the pair; None for what concerns the hive.
        observation: the record, for ``RECORD``.
        change: how it differs from the last one that was seen of the pair; None for the first.
        code: stable name of why, for ``GONE`` and ``PROBLEM``.
        count: numbers that were missed, for ``MISSED``.
        detail: one line, for everything but ``RECORD``.
    """

    what: What
    at_unix_ms: int
    provider: str | None = None
    source_id: str | None = None
    observation: HostObservation | None = None
    change: SnapshotChange | None = None
    code: str | None = None
    count: int = 0
    detail: str = ""


class Follower:
    """Follows some pairs of one hive.

    Args:
        pairs: which ones.
        enrolment: what else there is: numbers are only missed where all of a source's providers are followed.
    """

    def __init__(self, pairs: Sequence[Pair], enrolment: SnapshotEnrolment) -> None:
        self._seen: dict[Pair, HostObservation] = {}
        self._trouble: dict[Pair, tuple[str, int]] = {}
        self._accounts = {
            publisher.source_id: SequenceAccount()
            for publisher in enrolment.publishers
            if all((provider, publisher.source_id) in pairs for provider in publisher.providers)
        }
        self._lost_ms: int | None = None

    def looked(
        self, pair: Pair, outcome: HostObservation | SnapshotReadError, at_unix_ms: int
    ) -> Iterator[Event]:
        """Take one look at one pair."""
        if isinstance(outcome, HostObservation):
            yield from self._record(pair, outcome, at_unix_ms)
            return
        if isinstance(outcome, WithdrawnError):
            # The next look says it more simply.
            return
        gone = isinstance(outcome, NothingVisibleError)
        trouble = (outcome.code, outcome.status.sequence if isinstance(outcome, NothingVisibleError) else 0)
        if self._trouble.get(pair) != trouble:
            self._trouble[pair] = trouble
            yield Event(
                what=What.GONE if gone else What.PROBLEM,
                at_unix_ms=at_unix_ms,
                provider=pair[0],
                source_id=pair[1],
                code=outcome.code,
                detail=outcome.detail,
            )

    def _record(self, pair: Pair, observation: HostObservation, at_unix_ms: int) -> Iterator[Event]:
        before = self._seen.get(pair)
        change = None if before is None else changes_between(before, observation)
        if pair[1] in self._accounts:
            if change is not None and change.step is Step.RESTARTED:
                self._accounts[pair[1]] = SequenceAccount()
            self._accounts[pair[1]].saw(observation.sequence)
        self._seen[pair] = observation
        troubled = self._trouble.pop(pair, None) is not None
        if change is None or change.step is not Step.SAME or troubled:
            yield Event(
                what=What.RECORD,
                at_unix_ms=at_unix_ms,
                provider=pair[0],
                source_id=pair[1],
                observation=observation,
                change=change,
            )

    def round_over(self, at_unix_ms: int) -> Iterator[Event]:
        """End a round in which every pair was looked at."""
        for source_id, account in self._accounts.items():
            count = account.round_over()
            if count:
                numbers = "number was" if count == 1 else "numbers were"
                yield Event(
                    what=What.MISSED,
                    at_unix_ms=at_unix_ms,
                    source_id=source_id,
                    count=count,
                    detail=f"{count} {numbers} not seen here: skipped by the publisher, or replaced between"
                    " two looks",
                )

    def lost(self, why: str, at_unix_ms: int) -> Iterator[Event]:
        """The hive did not answer; told once, until it does again."""
        if self._lost_ms is None:
            self._lost_ms = at_unix_ms
            yield Event(
                what=What.LOST,
                at_unix_ms=at_unix_ms,
                detail=f"{why}; nothing is known about any snapshot, trying again until it answers",
            )

    def answered(self, at_unix_ms: int) -> Iterator[Event]:
        """The hive answered."""
        if self._lost_ms is not None:
            away_s = max(0, at_unix_ms - self._lost_ms) / 1000
            self._lost_ms = None
            yield Event(
                what=What.BACK, at_unix_ms=at_unix_ms, detail=f"the hive answers again after {away_s:.0f} s"
            )
