"""The losses of a training as they are told: all of them in a file, some of them in the observation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

from ticket_agent.peft.release.native.native_errors import TrainingError

__all__ = ["LOG_SCHEMA", "LossLog", "logging_interval"]

LOG_SCHEMA: Final = "ticket-agent-loss-log/v1"
MAX_EVENTS: Final = 1024
"""In the file."""
MAX_TOLD: Final = 32
"""In the observation."""
_DIGITS: Final = 6


def logging_interval(max_steps: int) -> int:
    """Steps between two logged losses, so that all of them fit into the file."""
    return -(-max_steps // MAX_EVENTS)


@dataclass(slots=True, kw_only=True)
class LossLog:
    """Losses by step, ascending. A logged loss is the mean since the one before."""

    events: list[tuple[int, float]] = field(default_factory=list)

    def add(self, step: int, loss: float) -> None:
        """Take in a loss.

        Raises:
            TrainingError: it is not finite, or comes too late; training must end.
        """
        if not math.isfinite(loss):
            raise TrainingError(f"the loss of step {step} is {loss}; lower the learning rate")
        if len(self.events) == MAX_EVENTS:
            raise TrainingError(f"training logged more than {MAX_EVENTS} losses")
        self.events.append((step, float(loss) + 0.0))

    def members(self) -> dict[str, Any]:
        """The file as an object of JSON."""
        return {
            "schema": LOG_SCHEMA,
            "steps": [step for step, _ in self.events],
            "losses": [loss for _, loss in self.events],
        }

    def told(self) -> list[list[float]]:
        """At most 32 of the events, evenly spread with the first and the last, in few digits."""
        return [[step, round(loss, _DIGITS)] for step, loss in self.spread(MAX_TOLD)]

    def spread(self, most: int) -> list[tuple[int, float]]:
        """At most ``most`` (2 or more) of the events, evenly spread with the first and the last."""
        count = len(self.events)
        if count <= most:
            return list(self.events)
        return [self.events[at * (count - 1) // (most - 1)] for at in range(most)]
