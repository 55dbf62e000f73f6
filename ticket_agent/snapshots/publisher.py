"""Publishing one observation: its record, its number, its transfer, and what the receiver then shows.

The record's life begins with the look. What looking, reserving and the beginning of the transfer take is
taken off its time to live, so that a receiver, which counts from ``begin``, shows it no longer than if it had
been there at once, but for a quarter of a second.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ticket_agent.journal.text import stamp
from ticket_agent.protocol.errors import SnapshotError
from ticket_agent.protocol.namespace import HiveRefusedError, RefusalKind
from ticket_agent.protocol.snapshot import (
    HostSnapshot,
    UnavailableReason,
    encode_snapshot,
    snapshot_digest,
    with_entries,
)
from ticket_agent.protocol.snapshot_status import parse_status
from ticket_agent.protocol.tokens import U64_MAX
from ticket_agent.snapshots.looking import MAX_LOOK_S, Look, Seen
from ticket_agent.snapshots.publish_errors import (
    BoundsError,
    ReceiverAheadError,
    SourceClockError,
    TooLateError,
    TransferRefusedError,
    UnverifiedError,
)
from ticket_agent.snapshots.upload import BeginTooSlowError, StepRefusedError, Upload

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.protocol.namespace import Namespace, Refusal
    from ticket_agent.protocol.snapshot_enrolment import SnapshotEnrolment, SnapshotPaths
    from ticket_agent.protocol.snapshot_status import SnapshotStatus
    from ticket_agent.snapshots.source_state import SourceState

__all__ = ["Publication", "SnapshotPublisher", "clock_behind"]

LONG_S: Final = 3600.0
"""From here on a clock that went back is no matter of waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A record that the receiver shows.

    Attributes:
        provider: of what.
        sequence: its number.
        reason: why it has no entries; None when the provider's state was observed.
        detail: a line for this host's operator about ``reason``.
        entries: how many it has.
        sha256: of its bytes.
        size: its bytes.
        sent: characters of all appends of its transfer.
        ttl_ms: its time to live when the transfer began.
        visible_ms: from the beginning of the look until the receiver was seen to show it.
    """

    provider: str
    sequence: int
    reason: UnavailableReason | None
    detail: str
    entries: int
    sha256: str
    size: int
    sent: int
    ttl_ms: int
    visible_ms: int


class SnapshotPublisher:
    """Publishes for one source; used by one thread.

    Args:
        namespace: the hive.
        enrolment: what its manifest enrols.
        state: the source's reserved numbers.
        clock: wall clock in Unix milliseconds.
        monotonic: in seconds.
        lag_s: seconds for which a gateway may show an old status, because somebody else has read it; 0 on a
            console.
        pause: waits for seconds.
        alive: called before each command to the hive, any of which may take long.

    Raises:
        SnapshotError: the source is not enrolled.
    """

    def __init__(
        self,
        namespace: Namespace,
        enrolment: SnapshotEnrolment,
        state: SourceState,
        *,
        clock: Callable[[], int],
        monotonic: Callable[[], float],
        lag_s: float = 0.0,
        pause: Callable[[float], None] = time.sleep,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self.enrolment = enrolment
        self.source_id = state.cursor.source_id
        self._domain = enrolment.domain(self.source_id)
        self._namespace = namespace
        self._state = state
        self._clock = clock
        self._monotonic = monotonic
        self._lag_s = lag_s
        self._pause = pause
        self._alive = alive
        self._upload = Upload(namespace, monotonic=monotonic, alive=alive)
        self._compared: set[str] = set()

    @property
    def sent(self) -> int:
        """Characters of all appends so far."""
        return self._upload.sent

    @property
    def sequence(self) -> int:
        """The last number that was reserved."""
        return self._state.cursor.sequence

    def begin_look(self, provider: str) -> Look:
        """Note the beginning of a look, before anything is looked at.

        Raises:
            SourceClockError: the wall clock stands before what was published.
        """
        began_s, observed = self._monotonic(), self._clock()
        last = self._state.cursor.observed_unix_ms
        if not 1 <= observed <= U64_MAX or observed < last:
            raise SourceClockError(clock_behind(observed, last))
        life_s = min(self.enrolment.bounds.max_ttl_ms / 1000, MAX_LOOK_S)
        return Look(
            provider=provider, observed_unix_ms=observed, began_s=began_s, deadline_s=began_s + life_s
        )

    def compare(self, provider: str) -> None:
        """Before the first record of a provider: the receiver must not know numbers that are not ours.

        Asked once; :meth:`publish` asks for itself. Through a gateway, which keeps what it shows for a while,
        it is quicker to ask for all providers before the first of them is published.

        Raises:
            ReceiverAheadError: it has taken more than this state directory reserved.
            TransferRefusedError: it has no such node.
            UnverifiedError: its status cannot be read.
            HiveError: the hive did not answer.
        """
        if provider in self._compared:
            return
        status = self._status(self.enrolment.require(provider, self.source_id))
        if status.sequence > self._state.cursor.sequence:
            raise _ahead(status, self._state.cursor.sequence)
        if status.epoch is not None and status.epoch != self.enrolment.epoch:
            raise TransferRefusedError(
                f"{provider}: the hive is in writer epoch {status.epoch}, the manifest says"
                f" {self.enrolment.epoch}; take the manifest that the hive was built with"
            )
        self._compared.add(provider)

    def publish(self, seen: Seen) -> Publication:
        """Publish what came of a look, or that nothing did.

        Raises:
            TooLateError: it took too long; a number may be skipped.
            BoundsError: not even a withdrawal fits.
            CursorError: no number could be reserved.
            TransferRefusedError: the receiver refused it.
            ReceiverAheadError: somebody else publishes for this source.
            UnverifiedError: the receiver does not show it, and did not refuse it either.
            HiveError: the hive could not be reached; nobody knows whether the record was taken.
        """
        look = seen.look
        paths = self.enrolment.require(look.provider, self.source_id)
        self.compare(look.provider)
        draft, detail = self._draft(seen)
        self._left_ms(look, "looking")
        number = self._state.reserve(look.observed_unix_ms)
        record, data, sent = self._transfer(paths, look, replace(draft, sequence=number))
        self._verify(paths, record, snapshot_digest(data))
        return Publication(
            provider=look.provider,
            sequence=number,
            reason=record.reason,
            detail=detail,
            entries=len(record.entries),
            sha256=snapshot_digest(data),
            size=len(data),
            sent=sent,
            ttl_ms=record.ttl_ms,
            visible_ms=round((self._monotonic() - look.began_s) * 1000),
        )

    def _draft(self, seen: Seen) -> tuple[HostSnapshot, str]:
        """The record without its number; what would not fit becomes a withdrawal, whole."""
        empty = HostSnapshot(
            provider=seen.look.provider,
            source_id=self.source_id,
            epoch=self.enrolment.epoch,
            # The longest there are: a record that fits with them fits with its own.
            sequence=U64_MAX,
            observed_unix_ms=seen.look.observed_unix_ms,
            ttl_ms=self.enrolment.bounds.max_ttl_ms,
        )
        if seen.reason is not None:
            return self._withdrawal(replace(empty, reason=seen.reason)), seen.detail
        draft = with_entries(empty, seen.entries)
        try:
            encode_snapshot(draft, domain=self._domain, bounds=self.enrolment.bounds)
        except SnapshotError as error:
            return self._withdrawal(replace(empty, reason=UnavailableReason.SOURCE_FAILED)), str(error)
        return draft, seen.detail

    def _withdrawal(self, draft: HostSnapshot) -> HostSnapshot:
        try:
            encode_snapshot(draft, domain=self._domain, bounds=self.enrolment.bounds)
        except SnapshotError as error:
            raise BoundsError(
                f"{draft.provider}: not even a withdrawal fits ({error}); raise the bounds in the manifest"
            ) from error
        return draft

    def _left_ms(self, look: Look, doing: str, *, spare_s: float = 0.0) -> int:
        gone_ms = (self._monotonic() - look.began_s) * 1000
        left = self.enrolment.bounds.max_ttl_ms - gone_ms - spare_s * 1000
        if left < 1:
            raise TooLateError(
                f"{look.provider}: {doing} took until {gone_ms / 1000:.1f} s after the look began, and a"
                f" record lives {self.enrolment.bounds.max_ttl_ms / 1000:g} s; it was not published"
            )
        return int(left)

    def _transfer(
        self, paths: SnapshotPaths, look: Look, numbered: HostSnapshot
    ) -> tuple[HostSnapshot, bytes, int]:
        """Send the record.

        Returns:
            The record as it was sent, its bytes, and the characters that were sent.
        """
        record = numbered

        def encoded(spare_s: float) -> bytes:
            nonlocal record
            left_ms = self._left_ms(look, "coming to its transfer", spare_s=spare_s)
            record = replace(numbered, ttl_ms=left_ms)
            return encode_snapshot(record, domain=self._domain, bounds=self.enrolment.bounds)

        before = self.sent
        try:
            data = self._upload.send(paths.ctl, encoded, lambda: self._left_ms(look, "sending"))
        except StepRefusedError as error:
            raise self._explained(paths, record, error.line, error.refusal) from None
        except BeginTooSlowError as error:
            raise TooLateError(
                f"{look.provider}: {error}; the record was not sent, it would have been shown for too long"
            ) from None
        return record, data, self.sent - before

    def _explained(
        self, paths: SnapshotPaths, record: HostSnapshot, line: str, refusal: Refusal
    ) -> TransferRefusedError | ReceiverAheadError:
        step = line.partition(" ")[0].partition(":")[0]
        text = f"{record.provider}: the receiver refused {step} ({refusal.text})"
        if refusal.kind in {RefusalKind.DENIED, RefusalKind.BUSY}:
            return TransferRefusedError(
                f"{text}; look at /proc/lifecycle/state, and at what this session's role and ticket may write"
            )
        if refusal.kind is RefusalKind.INVALID_PATH:
            return TransferRefusedError(
                f"{text}; the hive does not enrol {record.provider} for {record.source_id}: compare its"
                " manifest with this one"
            )
        if step == "end":
            status = self._status(paths)
            if status.sequence > record.sequence or self._foreign(status, record):
                return _ahead(status, record.sequence)
        return TransferRefusedError(
            f"{text}; compare the hive's manifest (bounds, writer epoch) with this one, and its clock"
        )

    @staticmethod
    def _foreign(status: SnapshotStatus, record: HostSnapshot) -> bool:
        """Whether the receiver shows another record under the number of this one, which it refused."""
        return status.sequence == record.sequence and status.visible

    def _verify(self, paths: SnapshotPaths, record: HostSnapshot, sha256: str) -> None:
        status = self._status(paths)
        if status.sequence < record.sequence and self._lag_s > 0:
            # A gateway may have kept what it told another reader before.
            self._pause(self._lag_s)
            status = self._status(paths)
        if (status.sequence, status.sha256) == (record.sequence, sha256):
            return
        if status.sequence == record.sequence and status.reason is not None:
            raise TooLateError(
                f"{record.provider}: the receiver took sequence {record.sequence}, and it has lapsed already"
                f" ({status.reason}); was this host, or the way to the hive, asleep? Publish anew"
                " (--watch does)"
            )
        if status.sequence >= record.sequence:
            raise _ahead(status, record.sequence)
        raise UnverifiedError(
            f"{record.provider}: the receiver's status shows sequence {status.sequence}"
            f"{'' if status.reason is None else f' ({status.reason})'}, not {record.sequence}; publish anew"
            " (--watch does)"
        )

    def _status(self, paths: SnapshotPaths) -> SnapshotStatus:
        self._alive()
        try:
            lines = self._namespace.read(paths.status)
        except HiveRefusedError as error:
            if not error.absent:
                raise
            raise TransferRefusedError(
                f"the hive has no {paths.status}: it does not enrol this pair, or takes no snapshots; compare"
                " its manifest with this one"
            ) from error
        if len(lines) != 1:
            raise UnverifiedError(f"{paths.status} shows {len(lines)} lines, not one; this is no receiver")
        try:
            return parse_status(lines[0])
        except SnapshotError as error:
            raise UnverifiedError(f"{paths.status} cannot be read: {error}") from error


def clock_behind(now_ms: int, last_ms: int) -> str:
    """What to say when the wall clock stands before the last published observation; Unix milliseconds."""
    behind_s = (last_ms - now_ms) / 1000
    text = f"this host's clock is {behind_s:.1f} s behind the last published observation ({stamp(last_ms)})"
    if behind_s < LONG_S:
        return f"{text}; set it right, or wait: publishing goes on when it has caught up"
    return (
        f"{text}. Set it right; if it is right, then it was wrong when that was published, and this source"
        " can go on only in a new epoch: raise authority.writer_epoch in the manifest, and restart the hive"
        " with it"
    )


def _ahead(status: SnapshotStatus, mine: int) -> ReceiverAheadError:
    return ReceiverAheadError(
        f"the receiver has taken sequence {status.sequence} of {status.source_id}/{status.provider}, and this"
        f" publisher is at {mine}: another one publishes for this source, or its state directory was lost."
        f" Stop the other one; then start once with --continue-after {status.sequence}",
        sequence=status.sequence,
    )
