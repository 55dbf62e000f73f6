"""The attach limiters: one state for the whole hive, so that a bad client delays the next one."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["AttachLimiter"]

_BASE_MS: Final = 250
_MAX_DOUBLINGS: Final = 8
_FAILURES: Final = 3
_WINDOW_MS: Final = 60_000
_COOLDOWN_MS: Final = 90_000


class AttachLimiter:
    """Exponential throttle after each failure, and a cooldown after three failures within a minute.

    Args:
        monotonic: seconds that never go back.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._failures: deque[int] = deque(maxlen=_FAILURES)
        self._consecutive = 0
        self._throttled_until = 0
        self._cooldown_until = 0

    def refusal(self) -> str | None:
        """Return why an attach may not even be tried now, as ``detail=… delay_ms=…``, or None."""
        now = self._now()
        if now < self._cooldown_until:
            return f"detail=rate-limited delay_ms={self._cooldown_until - now}"
        if now < self._throttled_until:
            return f"detail=throttled delay_ms={self._throttled_until - now}"
        return None

    def failed(self) -> None:
        """Record a refused attach."""
        now = self._now()
        self._throttled_until = now + _BASE_MS * 2 ** min(self._consecutive, _MAX_DOUBLINGS)
        self._consecutive += 1
        self._failures.append(now)
        if len(self._failures) == _FAILURES and now - self._failures[0] <= _WINDOW_MS:
            self._cooldown_until = now + _COOLDOWN_MS
            self._failures.clear()

    def succeeded(self) -> None:
        """Record an attach; the throttle starts anew."""
        self._consecutive = 0

    def _now(self) -> int:
        return int(self._monotonic() * 1000)
