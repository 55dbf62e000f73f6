"""The completion fence of one sequence space: through which sequence everything is terminal."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CompletionFence"]


class CompletionFence:
    """Highest sequence at or below which everything known is terminal; it only moves forward.

    It moves onto terminal sequences only, never onto a number that nobody has seen, because a root may skip
    numbers and may also show a skipped one later. The cost of each step is logarithmic at worst.

    Args:
        floor: where it stood before, by the cursor; nothing at or below it is asked for again.
        blockers: sequences of operations that cannot be read and therefore count as open.
    """

    def __init__(self, *, floor: int = 0, blockers: Iterable[int] = ()) -> None:
        self._through = floor
        self._highest = 0
        self._open: dict[str, int] = {}
        self._terminal: list[int] = []
        self._first_blocker = min((sequence for sequence in blockers if sequence > floor), default=None)

    @property
    def highest(self) -> int:
        """Highest sequence of any readable operation seen so far, 0 if none."""
        return self._highest

    def opened(self, key: str, sequence: int) -> None:
        """Note an operation that is not terminal."""
        self._open[key] = sequence
        self._highest = max(self._highest, sequence)

    def finished(self, key: str, sequence: int) -> None:
        """Note that an operation is terminal."""
        self._open.pop(key, None)
        self._highest = max(self._highest, sequence)
        heapq.heappush(self._terminal, sequence)

    def raise_floor(self, floor: int) -> None:
        """Take over what a saved cursor says."""
        self._through = max(self._through, floor)

    def through(self) -> int:
        """Return the fence."""
        first_open = min(self._open.values(), default=None)
        while self._terminal:
            sequence = self._terminal[0]
            if first_open is not None and sequence >= first_open:
                break
            if self._first_blocker is not None and sequence >= self._first_blocker:
                break
            heapq.heappop(self._terminal)
            self._through = max(self._through, sequence)
        return self._through
