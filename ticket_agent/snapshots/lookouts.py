"""Collectors at work, each in a thread of its own, so that one that hangs holds up no other.

A thread cannot be ended from outside. One whose look is overdue is left alone until it comes back, and what
it brings then is thrown away; there is never more than one thread for a provider.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from ticket_agent.snapshots.looking import look_once, not_begun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.protocol.collecting import CollectContext, Collector
    from ticket_agent.snapshots.looking import Look, Seen

__all__ = ["Lookouts"]

_Order = tuple["Look", "CollectContext"]


class Lookouts:
    """One lookout for each provider; used by one thread.

    Args:
        collectors: by provider.
    """

    def __init__(self, collectors: Mapping[str, Collector]) -> None:
        self._collectors = dict(collectors)
        self._orders: dict[str, queue.SimpleQueue[_Order]] = {}
        self._came: queue.SimpleQueue[Seen | None] = queue.SimpleQueue()
        self._out: dict[str, Look] = {}
        self._given_up: set[str] = set()

    def idle(self, provider: str) -> bool:
        """Whether a provider's lookout is free."""
        return provider not in self._out

    def start(self, look: Look, context: CollectContext) -> None:
        """Begin a look; the provider's lookout must be idle."""
        assert self.idle(look.provider)
        self._out[look.provider] = look
        if look.provider not in self._orders:
            self._orders[look.provider] = queue.SimpleQueue()
            arguments = (self._collectors[look.provider], self._orders[look.provider], self._came)
            name = f"look-{look.provider}"[:15]
            try:
                threading.Thread(target=_work, args=arguments, name=name, daemon=True).start()
            except RuntimeError as error:
                # The system gives no thread now; there may be one at the next look.
                del self._orders[look.provider]
                self._came.put(not_begun(look, str(error)))
                return
        self._orders[look.provider].put((look, context))

    def overdue(self, now_s: float) -> list[Look]:
        """The looks that have just missed their deadline; each is told once."""
        late = [
            look
            for provider, look in self._out.items()
            if provider not in self._given_up and now_s >= look.deadline_s
        ]
        self._given_up.update(look.provider for look in late)
        return late

    def next_deadline_s(self) -> float | None:
        """When the next look will be overdue; None when nobody is waited for."""
        waited = [look.deadline_s for name, look in self._out.items() if name not in self._given_up]
        return min(waited, default=None)

    def stuck(self) -> dict[str, Look]:
        """Overdue looks that have not come back."""
        return {name: look for name, look in self._out.items() if name in self._given_up}

    def wait(self, timeout_s: float) -> list[Seen]:
        """What came back within ``timeout_s``, as soon as something did; or nothing, also after a wake-up."""
        found: list[Seen] = []
        try:
            came = self._came.get(timeout=max(0.0, timeout_s))
            while True:
                found += self._returned(came)
                came = self._came.get_nowait()
        except queue.Empty:
            return found

    def wake(self) -> None:
        """Let a :meth:`wait` end now, from whatever thread."""
        self._came.put(None)

    def _returned(self, seen: Seen | None) -> list[Seen]:
        if seen is None:
            return []
        provider = seen.look.provider
        del self._out[provider]
        if provider in self._given_up:
            self._given_up.remove(provider)
            return []
        return [seen]


def _work(
    collector: Collector, orders: queue.SimpleQueue[_Order], came: queue.SimpleQueue[Seen | None]
) -> None:
    while True:
        look, context = orders.get()
        came.put(look_once(collector, context, look))
