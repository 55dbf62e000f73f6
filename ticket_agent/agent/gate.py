"""The hive's lifecycle as the agent saw it last: whether results can be written now, and since when not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.lifecycle import LifecycleState, parse_lifecycle_state, publishing_allowed
from ticket_agent.protocol.namespace import HiveError, HiveRefusedError
from ticket_agent.protocol.paths import LIFECYCLE_STATE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.agent.events import EventLog
    from ticket_agent.protocol.namespace import Namespace

__all__ = ["LifecycleGate"]

LOOK_PERIOD_S: Final = 2.0
"""Longest time between two looks while nothing asks for one."""


class LifecycleGate:
    """Reads the lifecycle where it matters, and now and then for those who watch.

    Args:
        namespace: the hive.
        events: hears when the gate closes and when it opens.
        clock: wall clock in Unix milliseconds.
        monotonic: seconds, for the pace of looks that nothing asked for.
    """

    def __init__(
        self,
        namespace: Namespace,
        events: EventLog,
        *,
        clock: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        self._namespace = namespace
        self._events = events
        self._clock = clock
        self._monotonic = monotonic
        self._due = 0.0
        self.state: LifecycleState | None = None
        """What the hive said last; None if it does not say or was not asked yet."""
        self.closed_unix_ms: int | None = None
        """Since when this process knows that results cannot be written; None while they can."""

    @property
    def open(self) -> bool:
        """Whether results can be written, as far as known."""
        return self.closed_unix_ms is None

    def refusal(self) -> str | None:
        """Why results cannot be written now, in words; None if they can.

        Raises:
            HiveError: the hive could not be read.
            ProtocolError: it says something that is no lifecycle.
        """
        self._due = self._monotonic() + LOOK_PERIOD_S
        try:
            lines = self._namespace.read(LIFECYCLE_STATE)
        except HiveRefusedError as error:
            if error.absent:
                self._saw(None)
                return None
            return f"the lifecycle cannot be read: {error.refusal.text}"
        state = parse_lifecycle_state(lines[0] if lines else "")
        self._saw(state)
        return None if publishing_allowed(state) else f"the hive is {state}; results cannot be written now"

    def look_if_due(self) -> None:
        """Look once more if the last look is a while ago, sooner if it found the gate closed.

        It is for those who watch: what goes wrong with it is no reason to end a pass.
        """
        if self._monotonic() < self._due:
            return
        try:
            self.refusal()
        except HiveError:
            return
        except ProtocolError as error:
            self._events.once("warning", "lifecycle-unreadable", "hive", str(error))

    def doubt(self) -> None:
        """Make the next look come at once: the hive refused what an open gate lets pass."""
        self._due = 0.0

    def _saw(self, state: LifecycleState | None) -> None:
        self.state = state
        if state is None or publishing_allowed(state):
            if self.closed_unix_ms is not None:
                self._events.emit("info", "lifecycle-opened", state=state.value if state else "unknown")
            self.closed_unix_ms = None
            return
        self._due = self._monotonic() + 1.0
        if self.closed_unix_ms is None:
            self.closed_unix_ms = self._clock()
            why = "results stay staged and are published when the hive takes them again"
            self._events.emit("warning", "lifecycle-closed", state=state.value, detail=why)
