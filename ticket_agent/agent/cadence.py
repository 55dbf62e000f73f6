"""How fast the hive's request logs turn over, and how often they must be looked at so that nothing is missed.

A log is a ring of so many bytes and so many wire lines; with records of the greatest size it holds five. What
is evicted between two looks can be lost, so that a look has to come several times within the time in which
the whole ring is replaced. The pace is measured in bytes, from the offsets that the hive shows.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.agent.feed import CALLERS_PERIOD_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ticket_agent.agent.events import EventLog
    from ticket_agent.agent.feed import Feed
    from ticket_agent.protocol.retention import Retention

__all__ = ["Cadence", "LogPace", "Pace"]

REQUEST_LOGS: Final = ("spec.snapshot", "spec")
RING_BYTES: Final = 16384
RING_WIRE_LINES: Final = 64
"""What a ticket log holds at most; one that has evicted something shows by itself what it holds."""

LOOKS_PER_TURN: Final = 4
"""Looks within the time in which a ring is replaced."""

WINDOW_S: Final = 1.0
"""Shortest time over which a pace is measured: one record that just came is no pace yet."""

RELAX_S: Final = 10.0
"""A pace that is not reached again is forgotten by half in this time."""

CLOSE: Final = 0.5
"""Part of a ring that was replaced between two looks from which on a burst could overtake them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How the looks stand against the log that turns over fastest.

    Attributes:
        log: its name; empty while none moves.
        turnover_s: seconds in which all of it would be replaced at the pace of late; None while none moves.
        replaced: part of it that was replaced between two looks, the greatest of late.
    """

    log: str = ""
    turnover_s: float | None = None
    replaced: float = 0.0

    @property
    def longest_pause_s(self) -> float | None:
        """Seconds within which the next look must come; None if any cadence will do."""
        return None if self.turnover_s is None else self.turnover_s / LOOKS_PER_TURN

    @property
    def close(self) -> bool:
        """Whether looks come so late that a burst of requests could be evicted unseen."""
        return self.replaced >= CLOSE


class LogPace:
    """Watches the offsets look by look; times are seconds of one clock."""

    def __init__(self) -> None:
        self._logs = {name: _Log(name) for name in REQUEST_LOGS}

    def saw(self, retention: Mapping[str, Retention], now: float) -> None:
        """Note the offsets of a look."""
        for name, log in self._logs.items():
            if name in retention:
                log.saw(retention[name], now)

    def pace(self, now: float) -> Pace:
        """The pace of late, of the log that turns over fastest."""
        paces = [log.pace(now) for log in self._logs.values()]
        moving = [pace for pace in paces if pace.turnover_s is not None]
        fastest = min(moving, key=lambda pace: pace.turnover_s or 0.0, default=Pace())
        return Pace(
            log=fastest.log,
            turnover_s=fastest.turnover_s,
            replaced=max(pace.replaced for pace in paces),
        )


class Cadence:
    """Sees to it that the looks of a feed come often enough, and says so once when they do not.

    Args:
        feed: whose looks they are; how often it reads the callers' log is set here.
        events: hears when a burst could overtake the looks.
        monotonic: seconds.
    """

    def __init__(self, feed: Feed, events: EventLog, *, monotonic: Callable[[], float]) -> None:
        self._feed = feed
        self._events = events
        self._monotonic = monotonic
        self._logs = LogPace()
        self.pace = Pace()

    @property
    def longest_pause_s(self) -> float:
        """Seconds within which the next look must come; infinite if any cadence will do."""
        return math.inf if self.pace.longest_pause_s is None else self.pace.longest_pause_s

    def looked(self) -> None:
        """Note that the feed has just looked."""
        now = self._monotonic()
        self._logs.saw(self._feed.retention, now)
        self.pace = self._logs.pace(now)
        self._feed.callers_period_s = min(CALLERS_PERIOD_S, self.longest_pause_s)
        if not self.pace.close:
            self._events.settled("log-nearly-outrun", "pace")
            return
        share = f"{min(self.pace.replaced, 1):.0%}"
        detail = "requests come so fast that some could be evicted before they are seen; see `status`"
        self._events.once("warning", "log-nearly-outrun", "pace", detail, replaced=share)


class _Log:
    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: deque[tuple[float, int]] = deque()
        self._turns_per_s = 0.0
        self._replaced = 0.0
        self._at = 0.0

    def saw(self, log: Retention, now: float) -> None:
        if self._seen and log.next < self._seen[-1][1]:
            self._seen.clear()  # the hive booted again
        turns_per_s, replaced = self._of_late(now)
        if self._seen:
            holds = _capacity(log)
            before = self._seen[-1][1]
            # The newest reading from before the window, or the oldest there is.
            while len(self._seen) > 1 and self._seen[1][0] <= now - WINDOW_S:
                self._seen.popleft()
            since, start = self._seen[0]
            turns_per_s = max(turns_per_s, (log.next - start) / holds / max(now - since, WINDOW_S))
            replaced = max(replaced, (log.next - before) / holds)
        self._turns_per_s, self._replaced, self._at = turns_per_s, replaced, now
        self._seen.append((now, log.next))

    def pace(self, now: float) -> Pace:
        turns_per_s, replaced = self._of_late(now)
        moves = turns_per_s > 1 / 3600
        return Pace(
            log=self._name if moves else "",
            turnover_s=1 / turns_per_s if moves else None,
            replaced=replaced,
        )

    def _of_late(self, now: float) -> tuple[float, float]:
        kept = 0.5 ** (max(0.0, now - self._at) / RELAX_S)
        return self._turns_per_s * kept, self._replaced * kept


def _capacity(log: Retention) -> float:
    """Bytes that the ring holds of records like those in it."""
    if log.dropped_lines and log.retained_bytes:
        return log.retained_bytes
    if not log.retained_wire_lines or not log.retained_bytes:
        return RING_BYTES
    return min(RING_BYTES, RING_WIRE_LINES * log.retained_bytes / log.retained_wire_lines)
