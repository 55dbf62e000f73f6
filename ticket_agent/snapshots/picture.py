"""The publisher as others may see it: a value, taken by its thread after each turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.snapshots.publisher import Publication
    from ticket_agent.snapshots.watch import Figures

__all__ = ["Picture", "picture_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The publisher as it stood at the end of a turn; nobody changes it.

    Attributes:
        unix_ms: when it was taken.
        providers: who is published.
        published: see :class:`ticket_agent.snapshots.watch.Figures`, as the next three.
        sequence: the last number that was reserved.
        sent: characters of all appends so far.
        stuck: providers whose collector does not come back.
        healthy: nothing has failed since the last publication.
    """

    unix_ms: int = 0
    providers: tuple[str, ...] = ()
    published: Mapping[tuple[str, str], int] = field(default_factory=dict)
    failed: Mapping[tuple[str, str], int] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)
    last: Mapping[str, Publication] = field(default_factory=dict)
    last_unix_ms: Mapping[str, int] = field(default_factory=dict)
    sequence: int = 0
    sent: int = 0
    stuck: frozenset[str] = frozenset()
    healthy: bool = False


def picture_of(
    figures: Figures,
    *,
    unix_ms: int,
    providers: tuple[str, ...],
    sequence: int,
    sent: int,
    stuck: frozenset[str],
) -> Picture:
    """Take a picture."""
    return Picture(
        unix_ms=unix_ms,
        providers=providers,
        published=dict(figures.published),
        failed=dict(figures.failed),
        held=dict(figures.held),
        last=dict(figures.last),
        last_unix_ms=dict(figures.last_unix_ms),
        sequence=sequence,
        sent=sent,
        stuck=stuck,
        healthy=figures.healthy,
    )
