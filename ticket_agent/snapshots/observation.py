"""What a reader hands out: one record as it stood at one moment. Keeping it does not keep it true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ticket_agent.protocol.snapshot import SnapshotEntry, UnavailableReason

__all__ = ["HostObservation", "ttl_left_ms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostObservation:
    """A record that its receiver vouched for while it was read.

    It says what a publisher saw before ``read_unix_ms``, and nothing about any moment after that. It admits
    nothing, is no receipt and no attestation. To know more, read again.

    Attributes:
        provider: whose state.
        source_id: of which host, as the manifest calls it.
        epoch: writer epoch.
        sequence: of the record; the source's providers share one count.
        observed_unix_ms: when the publisher began to look, by its own clock.
        ttl_ms: how long the receiver shows it, counted from the beginning of its transfer.
        available_at_read: the provider's state had been observed.
        reason: why it had not; None exactly when ``available_at_read``.
        entries: in ascending order of their paths.
        sha256: of the record's bytes.
        size: number of these bytes.
        read_unix_ms: this machine's clock right before the status was asked for; the receiver showed the
            record then or later, apart from ``lag_s``.
        lag_s: what was read may have been that many seconds old already, because a gateway keeps answers; 0
            on a console.
    """

    provider: str
    source_id: str
    epoch: int
    sequence: int
    observed_unix_ms: int
    ttl_ms: int
    available_at_read: bool
    reason: UnavailableReason | None
    entries: tuple[SnapshotEntry, ...]
    sha256: str
    size: int
    read_unix_ms: int
    lag_s: float

    @property
    def pair(self) -> str:
        """``provider/source``, for people."""
        return f"{self.provider}/{self.source_id}"

    def text(self, path: str) -> str | None:
        """The value under a path as it was published, JSON as a rule; None if there is no such entry."""
        return next((entry.value for entry in self.entries if entry.path == path), None)


def ttl_left_ms(observation: HostObservation, now_unix_ms: int) -> int | None:
    """Milliseconds for which the receiver shows the record at least, 0 to its TTL.

    The receiver counts from the beginning of the transfer, which is later than the observation, so that the
    record lives at least as long as this. It is a bound only as far as the publisher's clock and this
    machine's agree, and a new record or a restart can end it earlier. 0 does not mean that it is gone.

    Returns:
        None for a record without state: these do not expire.
    """
    if not observation.available_at_read:
        return None
    left = observation.observed_unix_ms + observation.ttl_ms - now_unix_ms
    return max(0, min(left, observation.ttl_ms))
