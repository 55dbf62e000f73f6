"""What a receiver remembers of one pair of provider and source: replay fence, time to live, clock.

Pure: every moment is an argument, in milliseconds of the receiver's one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ticket_agent.protocol.errors import SnapshotError, SnapshotLimitError
from ticket_agent.protocol.snapshot import decode_snapshot, snapshot_digest
from ticket_agent.protocol.snapshot_status import Withdrawn, status_of
from ticket_agent.protocol.tokens import U64_MAX

if TYPE_CHECKING:
    from ticket_agent.protocol.snapshot import HostSnapshot, SnapshotBounds, SnapshotDomain
    from ticket_agent.protocol.snapshot_status import SnapshotStatus

__all__ = ["Accepted", "SnapshotSlot", "SnapshotVerdict"]


class SnapshotVerdict(StrEnum):
    """What became of a record that was not refused."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A visible record.

    Attributes:
        snapshot: the record.
        text: its canonical encoding.
        sha256: digest of that.
        expires_ms: the first moment at which it is gone; None for a withdrawal, which stays.
    """

    snapshot: HostSnapshot
    text: str
    sha256: str
    expires_ms: int | None

    @property
    def status(self) -> SnapshotStatus:
        """What the receiver says while it is visible."""
        return status_of(self.snapshot, self.sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fence:
    """What the last accepted record leaves behind, visible or not."""

    domain: tuple[str, str, int]
    sequence: int
    observed_unix_ms: int
    sha256: str


class SnapshotSlot:
    """One slot.

    1. Sequences only grow; the bytes under one sequence never change; the source's clock never goes back.
    2. A record is visible from its acceptance until its time to live, counted from the moment at which its
       transfer began, is over. Neither a retry nor anything else makes that later.
    3. A refused record changes nothing, and its sequence may be used again.
    4. A clock that runs backwards withdraws the record; nothing is accepted before it has caught up.

    Args:
        provider: whose records these are.
        bounds: of every record.
    """

    def __init__(self, *, provider: str, bounds: SnapshotBounds) -> None:
        self._provider = provider
        self._bounds = bounds
        self._fence: _Fence | None = None
        self._current: Accepted | None = None
        self._last_now = 0

    @property
    def sequence(self) -> int:
        """Of the last record that was accepted; 0 before the first."""
        return 0 if self._fence is None else self._fence.sequence

    def visible(self, now: int) -> Accepted | None:
        """The record that is shown at a moment."""
        current = self._current
        if current is None or now < self._last_now:
            return None
        return None if current.expires_ms is not None and now >= current.expires_ms else current

    def poll(self, now: int) -> Withdrawn | None:
        """Withdraw what may not be shown any more; say why if something was, or if the clock ran back."""
        if now < self._last_now:
            self._current = None
            return Withdrawn.CLOCK_REGRESSED
        self._last_now = now
        if self._current is not None and self.visible(now) is None:
            self._current = None
            return Withdrawn.EXPIRED
        return None

    def apply(self, data: bytes, *, domain: SnapshotDomain, received_ms: int, now: int) -> SnapshotVerdict:
        """Accept a record.

        Args:
            data: its canonical bytes.
            domain: who is enrolled.
            received_ms: when its transfer began.
            now: the present.

        Raises:
            SnapshotError: it breaks a rule of the record or of the slot; nothing changed.
        """
        if now < self._last_now or received_ms > now:
            raise _refused("clock", "the receiver's clock ran backwards")
        snapshot = decode_snapshot(data, domain=domain, bounds=self._bounds)
        sha256 = snapshot_digest(data)
        if snapshot.provider != self._provider:
            raise _refused("provider", f"it belongs to {snapshot.provider}, not to {self._provider}")
        origin = (snapshot.source_id, snapshot.provider, snapshot.epoch)
        fence = self._fence
        if fence is not None and self._is_retry(fence, snapshot, origin, sha256):
            self.poll(now)
            return SnapshotVerdict.DUPLICATE
        expires_ms = received_ms + snapshot.ttl_ms
        if expires_ms > U64_MAX:
            raise SnapshotLimitError("host snapshot outlives the receiver's clock", code="slot-deadline")
        if now >= expires_ms:
            raise _refused("late", "its time to live was over before its transfer was")
        self._fence = _Fence(
            domain=origin,
            sequence=snapshot.sequence,
            observed_unix_ms=snapshot.observed_unix_ms,
            sha256=sha256,
        )
        self._current = Accepted(
            snapshot=snapshot,
            text=data.decode("utf-8"),
            sha256=sha256,
            expires_ms=expires_ms if snapshot.available else None,
        )
        self._last_now = now
        return SnapshotVerdict.APPLIED

    @staticmethod
    def _is_retry(fence: _Fence, snapshot: HostSnapshot, origin: tuple[str, str, int], sha256: str) -> bool:
        """Whether it is the last record once more; False if it is a later one.

        Raises:
            SnapshotError: it is neither.
        """
        if snapshot.observed_unix_ms < fence.observed_unix_ms:
            raise _refused("observed", "it was observed before the last one")
        if origin != fence.domain:
            raise _refused("domain", "it is of another source or writer epoch than the last one")
        if snapshot.sequence > fence.sequence:
            return False
        if snapshot.sequence == fence.sequence and sha256 == fence.sha256:
            return True
        raise _refused("sequence", f"sequence {snapshot.sequence} was used up at {fence.sequence}")


def _refused(what: str, why: str) -> SnapshotError:
    return SnapshotError(f"host snapshot is refused: {why}", code=f"slot-{what}")
