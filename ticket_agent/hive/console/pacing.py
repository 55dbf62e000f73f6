"""When the next connection may be tried. Pure: the caller brings the time and does the waiting.

A target counts refused attaches per machine, not per client, and locks everybody out for 90 s after three in
a minute. One misconfigured client must not do that to the others, which is why refusals are rationed here.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from ticket_agent.hive.console.handshake import MAX_DELAY_S, FailureKind, HandshakeFailure

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ATTACH_REFUSALS",
    "AUTH_REFUSALS",
    "BACKOFF_FIRST_S",
    "BACKOFF_MAX_S",
    "REFUSAL_WINDOW_S",
    "SILENT_RETRY_S",
    "Pacing",
    "retry_delay",
]

BACKOFF_FIRST_S: Final = 0.2
BACKOFF_MAX_S: Final = 2.0

SILENT_RETRY_S: Final = (0.05, 1.2)
"""Pauses before a silently closed AUTH is tried again: a listener needs up to 0.5 s, after a reset 1.1 s."""

AUTH_REFUSALS: Final = 3
"""Most refused (or silently closed) AUTHs per window."""

ATTACH_REFUSALS: Final = 2
"""Most refused ATTACHs per window: the third one would start the target's lock-out."""

REFUSAL_WINDOW_S: Final = 60.0


def retry_delay(failure: HandshakeFailure, retries: int) -> float | None:
    """Return the seconds after which the same call may try again, or None if it has to give up.

    Args:
        failure: how the attempt ended.
        retries: attempts of this call that were retries already.
    """
    if failure.kind is FailureKind.SILENT_CLOSE and retries < len(SILENT_RETRY_S):
        return SILENT_RETRY_S[retries]
    if failure.kind is FailureKind.THROTTLED and retries == 0 and failure.delay_s is not None:
        return failure.delay_s if failure.delay_s <= BACKOFF_MAX_S else None
    return None


class Pacing:
    """Back-off after failures and a ration of refusals; all times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._failures = 0
        self._not_before: float | None = None
        self._throttled_until: float | None = None
        self._auth: deque[float] = deque()
        self._attach: deque[float] = deque()

    def wait(self, now: float) -> float:
        """Seconds until the next attempt is due; 0 if it is."""
        return 0.0 if self._not_before is None else max(0.0, self._not_before - now)

    def throttled(self, now: float) -> float | None:
        """Seconds for which the console still asks to be left alone, or None."""
        if self._throttled_until is None or self._throttled_until <= now:
            return None
        return self._throttled_until - now

    def blocked(self, now: float) -> float | None:
        """Seconds until a further refusal may be risked, or None if it may be risked now."""
        remaining = [
            times[0] + REFUSAL_WINDOW_S - now
            for times, most in ((self._auth, AUTH_REFUSALS), (self._attach, ATTACH_REFUSALS))
            if len(_recent(times, now)) >= most
        ]
        return max(remaining, default=None)

    def refused(self, kind: FailureKind, now: float) -> None:
        """Count a refusal; other failures are not rationed."""
        if kind in {FailureKind.AUTH_REFUSED, FailureKind.SILENT_CLOSE}:
            self._auth.append(now)
        elif kind is FailureKind.ATTACH_REFUSED:
            self._attach.append(now)

    def failed(self, now: float, *, delay_s: float | None = None) -> None:
        """Note that a call gave up; the next one waits 0.2 s, doubling to 2 s.

        Args:
            now: the time.
            delay_s: seconds for which the console asked to be left alone.
        """
        backoff = min(BACKOFF_FIRST_S * 2.0 ** min(self._failures, 10), BACKOFF_MAX_S)
        self._failures += 1
        self._not_before = now + backoff
        if delay_s is not None:
            self._throttled_until = now + delay_s

    def attach_refusals(self, now: float) -> tuple[float, ...]:
        """When attaches were refused within the last minute."""
        return tuple(_recent(self._attach, now))

    def remind(self, attaches: Iterable[float], throttled_until: float | None, now: float) -> None:
        """Take over what other processes of this host learned; times to come count for a throttle only."""
        self._attach = deque(sorted({*self._attach, *attaches}))
        if throttled_until is not None:
            # A clock that was not this one must not lock us out for longer than a console could.
            until = min(throttled_until, now + MAX_DELAY_S)
            self._throttled_until = max(until, self._throttled_until or until)

    @property
    def throttled_until(self) -> float | None:
        """Until when the console asked to be left alone, or None."""
        return self._throttled_until

    def worked(self) -> None:
        """Note that a session did its work; the first reconnect after it need not wait."""
        self._failures = 0
        self._not_before = None


def _recent(times: deque[float], now: float) -> deque[float]:
    while times and times[0] <= now - REFUSAL_WINDOW_S:
        times.popleft()
    return times
