"""Collectors at work in virtual time: a look is over at once, or at a moment of the test, or never."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ticket_agent.snapshots.looking import look_once

if TYPE_CHECKING:
    from collections.abc import Mapping

    from publisher_bench import Clocks

    from ticket_agent.protocol.collecting import CollectContext, Collector
    from ticket_agent.snapshots.looking import Look, Seen


class VirtualLookouts:
    """Stands in for the threads of :class:`ticket_agent.snapshots.lookouts.Lookouts`; waiting moves time.

    Attributes:
        takes_s: how long the looks of a provider take; those not named take no time.
    """

    def __init__(self, collectors: Mapping[str, Collector], clocks: Clocks) -> None:
        self._collectors = dict(collectors)
        self._clocks = clocks
        self.takes_s: dict[str, float] = {}
        self._out: dict[str, tuple[float, Look, CollectContext]] = {}
        self._given_up: set[str] = set()
        self.looks: list[tuple[str, float]] = []

    def idle(self, provider: str) -> bool:
        return provider not in self._out

    def start(self, look: Look, context: CollectContext) -> None:
        assert self.idle(look.provider)
        self.looks.append((look.provider, self._clocks.now_s))
        done_s = self._clocks.now_s + self.takes_s.get(look.provider, 0.0)
        self._out[look.provider] = (done_s, look, context)

    def overdue(self, now_s: float) -> list[Look]:
        late = [
            look
            for provider, (_, look, _) in self._out.items()
            if provider not in self._given_up and now_s >= look.deadline_s
        ]
        self._given_up.update(look.provider for look in late)
        return late

    def next_deadline_s(self) -> float | None:
        waited = [look.deadline_s for name, (_, look, _) in self._out.items() if name not in self._given_up]
        return min(waited, default=None)

    def stuck(self) -> dict[str, Look]:
        return {name: look for name, (_, look, _) in self._out.items() if name in self._given_up}

    def wait(self, timeout_s: float) -> list[Seen]:
        end_s = self._clocks.now_s + timeout_s
        done = sorted((at, name) for name, (at, _, _) in self._out.items() if at <= end_s)
        if not done:
            self._clocks.advance(timeout_s)
            return []
        at, provider = done[0]
        self._clocks.advance(max(0.0, at - self._clocks.now_s))
        _, look, context = self._out.pop(provider)
        seen = look_once(self._collectors[provider], context, look)
        if provider in self._given_up:
            self._given_up.remove(provider)
            return []
        return [seen]
