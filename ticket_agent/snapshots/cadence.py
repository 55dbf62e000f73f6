"""When each provider is looked at again. Pure; times are seconds of one monotonic clock."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["DEFAULT_INTERVALS_MS", "DEFAULT_INTERVAL_MS", "Cadence", "interval_ms"]

DEFAULT_INTERVALS_MS: Final[Mapping[str, int]] = MappingProxyType(
    {"nvidia": 1000, "systemd": 2000, "docker": 2000, "k8s": 5000}
)
DEFAULT_INTERVAL_MS: Final = 1000
MOST_BACK_OFF_S: Final = 30.0
FIRST_BACK_OFF_S: Final = 1.0


def interval_ms(provider: str, chosen: Mapping[str, int]) -> int:
    """Milliseconds between a provider's publications, as chosen or as is usual."""
    return chosen.get(provider, DEFAULT_INTERVALS_MS.get(provider, DEFAULT_INTERVAL_MS))


class Cadence:
    """Due times of providers, and their back-off after failures.

    Args:
        intervals_s: by provider, more than 0.
        now_s: every provider is due then.
    """

    def __init__(self, intervals_s: Mapping[str, float], now_s: float) -> None:
        self._intervals_s = dict(intervals_s)
        self._due_s = dict.fromkeys(intervals_s, now_s)
        self._failures: dict[str, int] = {}
        self._held_until_s = now_s
        self._holds = 0

    @property
    def providers(self) -> tuple[str, ...]:
        """Who is looked at, in the order they were named."""
        return tuple(self._intervals_s)

    def due(self, now_s: float) -> list[str]:
        """The providers whose time has come, the longest overdue first; none while the hive is left alone."""
        if self.held(now_s):
            return []
        return sorted(
            (name for name, due in self._due_s.items() if due <= now_s), key=self._due_s.__getitem__
        )

    def next_s(self, providers: Iterable[str]) -> float:
        """When the first of these providers will be due."""
        first = min((self._due_s[name] for name in providers), default=self._held_until_s)
        return max(first, self._held_until_s)

    def published(self, provider: str, now_s: float) -> None:
        """Note a publication: the next one is an interval later, and everything works."""
        self._failures.pop(provider, None)
        self._holds = 0
        self._due_s[provider] = now_s + self._intervals_s[provider]

    def failed(self, provider: str, now_s: float) -> float:
        """Note that one provider could not be published; returns the seconds until it is tried again."""
        count = self._failures[provider] = self._failures.get(provider, 0) + 1
        pause = min(MOST_BACK_OFF_S, self._intervals_s[provider] * float(2 ** min(count - 1, 10)))
        self._due_s[provider] = now_s + pause
        return pause

    def hold(self, now_s: float) -> float:
        """Note that nothing can be published; returns the seconds until anything is tried again."""
        self._holds += 1
        pause = min(MOST_BACK_OFF_S, FIRST_BACK_OFF_S * float(2 ** min(self._holds - 1, 10)))
        self._held_until_s = now_s + pause
        return pause

    def held(self, now_s: float) -> bool:
        """Whether everything waits."""
        return now_s < self._held_until_s
