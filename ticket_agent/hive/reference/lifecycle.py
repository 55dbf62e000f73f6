"""The lifecycle of the hive and what it gates (root side, lifecycle gate)."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ticket_agent.protocol.lifecycle import LifecycleState

from .errors import denied, invalid_payload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["COMMANDS", "GATES", "Gate", "Lifecycle"]

_S = LifecycleState


class Gate(StrEnum):
    """A class of operations that lifecycle states allow or deny."""

    HOST_PUBLISH = "host-publish"
    NEW_WORK = "new-work"
    TELEMETRY = "telemetry"


GATES: Final[Mapping[Gate, frozenset[LifecycleState]]] = {
    Gate.HOST_PUBLISH: frozenset({_S.ONLINE, _S.DEGRADED}),
    Gate.NEW_WORK: frozenset({_S.ONLINE, _S.DEGRADED}),
    Gate.TELEMETRY: frozenset({_S.ONLINE, _S.DEGRADED, _S.DRAINING}),
}
"""States in which each gate is open. Lease control has no gate at all."""

COMMANDS: Final[Mapping[str, tuple[frozenset[LifecycleState], LifecycleState]]] = {
    "cordon": (frozenset({_S.ONLINE, _S.DEGRADED}), _S.DRAINING),
    "drain": (frozenset({_S.DRAINING}), _S.QUIESCED),
    "resume": (frozenset(_S) - {_S.ONLINE}, _S.ONLINE),
    "quiesce": (frozenset({_S.ONLINE, _S.DEGRADED, _S.DRAINING}), _S.QUIESCED),
    "reset": (frozenset(_S) - {_S.BOOTING}, _S.BOOTING),
}
"""Control word -> (states it may be given in, state it leads to)."""

_NEEDS_NO_WORKERS: Final = frozenset({"drain", "quiesce", "reset"})


class Lifecycle:
    """The state machine behind ``/queen/lifecycle/ctl`` and ``/proc/lifecycle``.

    Starts in BOOTING and goes to ONLINE by itself.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._booted_ms = clock()
        self.state = _S.BOOTING
        self.reason = "booting"
        self.since_ms = 0
        self.enter(_S.ONLINE, "boot-complete")

    def enter(self, state: LifecycleState, reason: str) -> None:
        """Go to a state whatever the current one is."""
        self.state = state
        self.reason = reason
        self.since_ms = max(0, self._clock() - self._booted_ms)

    def require(self, gate: Gate) -> None:
        """Raise EPERM when the current state closes the gate."""
        if self.state not in GATES[gate]:
            raise denied()

    def control(self, payload: str, *, workers_exist: bool) -> None:
        """Obey one control word.

        Raises:
            RefusalError: invalid-payload for an unknown word or a transition the table does not have;
                EPERM while Workers exist and the word needs a hive without any.
        """
        word = payload.strip().lower()
        if word not in COMMANDS:
            raise invalid_payload()
        allowed_in, target = COMMANDS[word]
        if self.state not in allowed_in:
            raise invalid_payload()
        if word in _NEEDS_NO_WORKERS and workers_exist:
            raise denied()
        self.enter(target, word)

    def node(self, name: str) -> str | None:
        """Return the line of ``/proc/lifecycle/<name>``, or None when there is no such node."""
        return {
            "state": f"state={self.state}",
            "reason": f"reason={self.reason}",
            "since": f"since_ms={self.since_ms}",
        }.get(name)
