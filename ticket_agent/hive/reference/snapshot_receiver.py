"""The receiver of host snapshots: transfers of all enrolled pairs, what is shown of them, and their status.

Moments are milliseconds of one monotonic clock. :meth:`SnapshotReceiver.poll` runs before every operation of
the namespace, with the moment of that operation.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ticket_agent.protocol.errors import SnapshotError
from ticket_agent.protocol.snapshot_status import SnapshotStatus, Withdrawn, encode_status
from ticket_agent.protocol.snapshot_transfer import (
    Begin,
    Chunk,
    decode_body,
    encoded_characters,
    parse_command,
)
from ticket_agent.protocol.tokens import U64_MAX

from .errors import invalid_path, invalid_payload
from .snapshot_slot import SnapshotSlot

if TYPE_CHECKING:
    from ticket_agent.protocol.snapshot_enrolment import SnapshotEnrolment

__all__ = ["SnapshotReceiver"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Upload:
    """A transfer that has begun.

    Attributes:
        begun: what was announced.
        text: base64 text so far, unchecked.
        received_ms: when it began.
        deadline_ms: the first moment at which it is too late for anything.
    """

    begun: Begin
    text: str = field(default="", repr=False)
    received_ms: int
    deadline_ms: int


@dataclass(slots=True, kw_only=True)
class _Pair:
    slot: SnapshotSlot
    status: SnapshotStatus
    body: str = ""
    upload: _Upload | None = None


class SnapshotReceiver:
    """Receives for everything that is enrolled, and for nothing else.

    1. Pairs of provider and source are independent; each has at most one upload.
    2. Only a complete transfer of a good record changes what is shown. A refusal changes neither record nor
       status; the one thing that it may cost is the upload that an ``end`` was meant for.

    Args:
        enrolment: who may publish what.
    """

    def __init__(self, enrolment: SnapshotEnrolment) -> None:
        self.enrolment = enrolment
        self._pairs = {
            (provider, source_id): _Pair(
                slot=SnapshotSlot(provider=provider, bounds=enrolment.bounds),
                status=SnapshotStatus(
                    source_id=source_id, provider=provider, sequence=0, reason=Withdrawn.UNOBSERVED
                ),
            )
            for provider, source_id in enrolment.pairs()
        }

    def poll(self, now: int) -> None:
        """Drop the uploads and withdraw the records whose time is over."""
        for pair in self._pairs.values():
            reason = pair.slot.poll(now)
            late = pair.upload is not None and now >= pair.upload.deadline_ms
            if late or reason is Withdrawn.CLOCK_REGRESSED:
                pair.upload = None
            # A pair that never showed anything has nothing to withdraw.
            if reason is not None and pair.slot.sequence > 0:
                _withdraw(pair, reason)

    def write(self, provider: str, source_id: str, payload: str, now: int) -> None:
        """Take one command of a transfer, without its newline and with all its blanks.

        Raises:
            RefusalError: invalid-path for a pair that is not enrolled; invalid-payload for everything else.
        """
        pair = self._pair(provider, source_id)
        try:
            command = parse_command(payload, max_bytes=self.enrolment.bounds.max_bytes)
            if isinstance(command, Begin):
                self._begin(pair, command, now)
            elif isinstance(command, Chunk):
                _append(pair, command.text, now)
            else:
                upload, pair.upload = pair.upload, None
                self._end(pair, source_id, _running(upload, now), now)
        except SnapshotError:
            raise invalid_payload() from None

    def snapshot(self, provider: str, source_id: str) -> str:
        """The visible record, or nothing.

        Raises:
            RefusalError: invalid-path.
        """
        return self._pair(provider, source_id).body

    def status(self, provider: str, source_id: str) -> str:
        """The status line.

        Raises:
            RefusalError: invalid-path.
        """
        return encode_status(self._pair(provider, source_id).status)

    def _pair(self, provider: str, source_id: str) -> _Pair:
        pair = self._pairs.get((provider, source_id))
        if pair is None:
            raise invalid_path()
        return pair

    def _begin(self, pair: _Pair, begun: Begin, now: int) -> None:
        deadline_ms = now + self.enrolment.bounds.max_ttl_ms
        if deadline_ms > U64_MAX:
            raise _no_upload("the receiver's clock has no deadline for it")
        pair.upload = _Upload(begun=begun, received_ms=now, deadline_ms=deadline_ms)

    def _end(self, pair: _Pair, source_id: str, upload: _Upload, now: int) -> None:
        data = decode_body(upload.text, upload.begun)
        pair.slot.apply(
            data, domain=self.enrolment.domain(source_id), received_ms=upload.received_ms, now=now
        )
        visible = pair.slot.visible(now)
        if visible is None:
            # An exact retry of something that has been withdrawn is good, and brings nothing back.
            _withdraw(pair, Withdrawn.EXPIRED)
        else:
            pair.body = visible.text
            pair.status = visible.status


def _append(pair: _Pair, text: str, now: int) -> None:
    upload = _running(pair.upload, now)
    longer = upload.text + text
    if len(longer.encode("utf-8", "surrogatepass")) > encoded_characters(upload.begun.bytes):
        raise _no_upload("more text comes than was announced")
    pair.upload = replace(upload, text=longer)


def _running(upload: _Upload | None, now: int) -> _Upload:
    if upload is None or now >= upload.deadline_ms:
        raise _no_upload("no transfer has begun, or its time is over")
    return upload


def _withdraw(pair: _Pair, reason: Withdrawn) -> None:
    pair.body = ""
    pair.status = SnapshotStatus(
        source_id=pair.status.source_id,
        provider=pair.status.provider,
        sequence=pair.slot.sequence,
        reason=reason,
    )


def _no_upload(why: str) -> SnapshotError:
    return SnapshotError(f"snapshot transfer is refused: {why}", code="snapshot-transfer")
