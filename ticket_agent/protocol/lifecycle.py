"""The hive's lifecycle and what it allows (lifecycle gate)."""

from __future__ import annotations

from enum import StrEnum

from .errors import RecordLineError

__all__ = ["LifecycleState", "parse_lifecycle_state", "publishing_allowed"]


class LifecycleState(StrEnum):
    """States in ``/proc/lifecycle/state``."""

    BOOTING = "BOOTING"
    DEGRADED = "DEGRADED"
    ONLINE = "ONLINE"
    DRAINING = "DRAINING"
    QUIESCED = "QUIESCED"
    OFFLINE = "OFFLINE"


def parse_lifecycle_state(line: str) -> LifecycleState:
    """Read the line ``state=<STATE>``.

    Raises:
        RecordLineError: another line, or a state that this protocol does not know.
    """
    name, separator, value = line.strip(" \t\r\n").partition("=")
    try:
        if name == "state" and separator:
            return LifecycleState(value)
    except ValueError:
        pass
    raise RecordLineError(
        f"lifecycle: expected state=<{'|'.join(LifecycleState)}>, got {line[:64]!r}",
        code="lifecycle",
        member="state",
    )


def publishing_allowed(state: LifecycleState) -> bool:
    """Tell whether the hive takes ticket requests and results; everywhere else each write is EPERM."""
    return state in {LifecycleState.ONLINE, LifecycleState.DEGRADED}
