"""Which numbers of a source nobody saw. Its providers share one count: one pair alone cannot tell. Pure."""

from __future__ import annotations

__all__ = ["SequenceAccount"]


class SequenceAccount:
    """Counts the numbers of one source that no provider showed, while all its providers are looked at.

    Providers are read one after the other, so a number can be missing in this round and show in the next. It
    is given up when a whole round began after a higher one had been seen. When a count goes back, it needs a
    new account.
    """

    def __init__(self) -> None:
        self._began = False
        self._floor = 0
        self._ceiling = 0
        self._highest = 0
        self._seen: set[int] = set()

    def saw(self, sequence: int) -> None:
        """Note a visible record's number; seeing it again changes nothing."""
        self._highest = max(self._highest, sequence)
        if sequence > self._floor:
            self._seen.add(sequence)

    def round_over(self) -> int:
        """End a round of looks.

        Returns:
            How many numbers are given up now: the publisher skipped them, or their records were replaced
            before they were read.
        """
        if not self._began:
            # What was there before the first look is not missed.
            self._began, self._floor = bool(self._seen), self._highest
            self._ceiling = self._floor
            self._seen.clear()
            return 0
        missed = self._ceiling - self._floor - sum(1 for one in self._seen if one <= self._ceiling)
        self._seen = {one for one in self._seen if one > self._ceiling}
        self._floor, self._ceiling = self._ceiling, self._highest
        return missed
