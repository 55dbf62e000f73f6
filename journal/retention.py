"""Which terminal records may move to the archive, and why each other one stays. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from ticket_agent.journal.space import Limits

__all__ = ["Ended", "Judged", "Stays", "choose_retired", "judge_retention"]


class Stays(StrEnum):
    """Why a terminal record stays, the first reason that holds."""

    COUNT = "count"
    """It is one of the newest, of which so many always stay."""
    VISIBLE = "visible"
    """The root may still show its request, which without the record would be taken for a new one."""
    NEWEST = "newest"
    """It has the highest sequence of its family, from which the next one is counted."""
    AGE = "age"
    """It ended too recently."""
    FENCE = "fence"
    """Something before it has not ended."""


class Ended(Protocol):
    """What retention looks at."""

    @property
    def key(self) -> str:
        """The operation's identity."""

    @property
    def family(self) -> str:
        """Its sequence space."""

    @property
    def epoch(self) -> int:
        """The hive's life that it belongs to."""

    @property
    def sequence(self) -> int:
        """Its place in family and epoch."""

    @property
    def changed_unix_ms(self) -> int:
        """When it ended."""


EndedT = TypeVar("EndedT", bound=Ended)


@dataclass(frozen=True, slots=True)
class Judged(Generic[EndedT]):
    """One record and why it stays; None lets it leave."""

    record: EndedT
    stays: Stays | None


def judge_retention(
    ended: Iterable[EndedT],
    *,
    limits: Limits,
    now_unix_ms: int,
    keep: Container[str],
    completed_through: Callable[[str, int], int],
) -> list[Judged[EndedT]]:
    """Judge every terminal record, oldest first.

    Args:
        ended: the terminal records.
        limits: how many and how long.
        now_unix_ms: the present time.
        keep: keys whose requests the root may still show.
        completed_through: the completion fence of a family in an epoch, which counts in fenced families.
    """
    ordered = sorted(ended, key=lambda record: (record.epoch, record.sequence))
    highest = {record.family: record.key for record in ordered}
    beyond_count = max(0, len(ordered) - limits.retain_records)
    through: dict[tuple[str, int], int] = {}

    def why(index: int, record: EndedT) -> Stays | None:
        if index >= beyond_count:
            return Stays.COUNT
        if record.key in keep:
            return Stays.VISIBLE
        if record.key == highest[record.family]:
            return Stays.NEWEST
        if now_unix_ms - record.changed_unix_ms < limits.retain_ms:
            return Stays.AGE
        group = (record.family, record.epoch)
        if limits.fenced(record.family):
            if group not in through:
                through[group] = completed_through(*group)
            if record.sequence > through[group]:
                return Stays.FENCE
        return None

    return [Judged(record, why(index, record)) for index, record in enumerate(ordered)]


def choose_retired(
    ended: Iterable[EndedT],
    *,
    limits: Limits,
    now_unix_ms: int,
    keep: Container[str],
    completed_through: Callable[[str, int], int],
) -> list[EndedT]:
    """The terminal records that may leave, oldest first."""
    judged = judge_retention(
        ended, limits=limits, now_unix_ms=now_unix_ms, keep=keep, completed_through=completed_through
    )
    return [entry.record for entry in judged if entry.stays is None]
