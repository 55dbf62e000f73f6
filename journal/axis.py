"""A time axis on which a step of one millisecond and a night without work are both visible. Pure.

Between two neighbouring instants the axis is linear; how much room such an interval gets grows with the
logarithm of its length. The order of things is therefore exact, and lengths are read from the labels.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Axis", "axis_of"]

_PER_INSTANT = 10.0
"""Units of width that an average instant wants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Where each time stands, in units of width from 0 to ``width``.

    Attributes:
        instants: ascending Unix milliseconds, at least one.
        places: for each instant its place.
        width: the place of the end.
    """

    instants: tuple[int, ...]
    places: tuple[float, ...]
    width: float

    def at(self, unix_ms: int) -> float:
        """The place of a time; what lies outside stands at the nearer end."""
        if unix_ms <= self.instants[0]:
            return self.places[0]
        if unix_ms >= self.instants[-1]:
            return self.places[-1]
        index = bisect_right(self.instants, unix_ms) - 1
        left, right = self.instants[index], self.instants[index + 1]
        share = (unix_ms - left) / (right - left)
        return self.places[index] + share * (self.places[index + 1] - self.places[index])

    def ticks(self, apart: float) -> list[tuple[float, int]]:
        """Instants to be labelled, with their places, at least ``apart`` from each other."""
        chosen: list[tuple[float, int]] = []
        for place, unix_ms in zip(self.places, self.instants, strict=True):
            if not chosen or place - chosen[-1][0] >= apart:
                chosen.append((place, unix_ms))
        return chosen


def axis_of(times: Iterable[int], *, narrowest: float, widest: float, margin: float) -> Axis:
    """Return an axis over times.

    Args:
        times: Unix milliseconds in any order; at least one.
        narrowest: least width.
        widest: greatest width.
        margin: room that stays free at both ends.
    """
    instants = sorted(set(times))
    shares = [1.0 + math.log2(1 + after - before) for before, after in pairwise(instants)]
    width = min(max(narrowest, _PER_INSTANT * len(instants)), widest)
    scale = (width - 2 * margin) / sum(shares) if shares else 0.0
    places = [margin]
    for share in shares:
        places.append(places[-1] + share * scale)
    return Axis(instants=tuple(instants), places=tuple(places), width=width)
