"""Whether a peer may be contacted now: a circuit breaker as data. Pure; time is told by the caller."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

__all__ = ["FIRST_PAUSE_S", "LONGEST_PAUSE_S", "THRESHOLD", "Breaker", "Circuit"]

THRESHOLD = 3
"""Failed contacts in a row after which the circuit opens."""

FIRST_PAUSE_S = 0.25
"""Pause, in seconds, after the first failed contact; it doubles with every further one."""

LONGEST_PAUSE_S = 30.0


class Circuit(StrEnum):
    """State of the circuit to one peer."""

    CLOSED = "closed"
    """Contacts are made as they come."""
    OPEN = "open"
    """No contact before the pause is over."""
    HALF_OPEN = "half-open"
    """The pause is over: one contact decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """What is known of the contacts with one peer.

    Attributes:
        failures: contacts that failed since the last one that worked.
        not_before: monotonic seconds before which there is no contact.
        why: what the last failure said; empty after a contact that worked.
    """

    failures: int = 0
    not_before: float = 0.0
    why: str = ""

    def circuit(self, now: float) -> Circuit:
        """The state at a moment."""
        if self.failures < THRESHOLD:
            return Circuit.CLOSED
        return Circuit.OPEN if now < self.not_before else Circuit.HALF_OPEN

    def allows(self, now: float) -> bool:
        """Whether a contact may be made now; there is never more than one at a time."""
        return now >= self.not_before

    def failed(self, now: float, why: str) -> Breaker:
        """After a contact that failed; short of the threshold there is a pause too."""
        pause = min(FIRST_PAUSE_S * 2.0 ** min(self.failures, 16), LONGEST_PAUSE_S)
        return replace(self, failures=self.failures + 1, not_before=now + pause, why=why)

    def worked(self) -> Breaker:
        """After a contact in which the peer answered, whatever the answer was."""
        return Breaker()
