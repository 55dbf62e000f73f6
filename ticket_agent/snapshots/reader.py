"""Reading snapshots: a record, then its receiver's status, and only what both agree on.

The two are read one after the other. Whatever happens in between shows in the status: then nothing is handed
out. Nothing is kept between two calls either; there is no last known state.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from ticket_agent.protocol.errors import SnapshotError
from ticket_agent.protocol.namespace import HiveRefusedError
from ticket_agent.protocol.snapshot import decode_snapshot, snapshot_digest
from ticket_agent.protocol.snapshot_status import Withdrawn, parse_status, status_of

from .errors import (
    ClockRegressedError,
    DisagreementError,
    ExpiredError,
    MalformedRecordError,
    MalformedStatusError,
    NoSuchNodeError,
    NotEnrolledError,
    NothingVisibleError,
    NotObservedError,
    ReplacedError,
    WithdrawnError,
)
from .observation import HostObservation

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.protocol.namespace import Namespace
    from ticket_agent.protocol.snapshot import HostSnapshot
    from ticket_agent.protocol.snapshot_enrolment import SnapshotEnrolment, SnapshotPaths
    from ticket_agent.protocol.snapshot_status import SnapshotStatus

__all__ = ["SnapshotReader"]

MARGIN_S: Final = 0.02
"""A gateway's clock and ours may differ a little in how long its answers are kept."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class SnapshotReader:
    """Reads what is enrolled, from one hive. For one thread, as its namespace is.

    Args:
        namespace: the hive.
        enrolment: what its manifest enrols. It has to come from there: nothing is taken from what the hive
            shows, and nothing is assumed.
        lag_s: seconds for which a gateway in between may keep an answer; 0 on a console.
        clock: Unix milliseconds.
        sleep: pauses for seconds; only used between two attempts through a gateway.
    """

    def __init__(
        self,
        namespace: Namespace,
        enrolment: SnapshotEnrolment,
        *,
        lag_s: float = 0.0,
        clock: Callable[[], int] = _now_ms,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.enrolment: Final = enrolment
        self.lag_s: Final = lag_s
        self._namespace = namespace
        self._clock = clock
        self._sleep = sleep

    def read(self, provider: str, source_id: str) -> HostObservation:
        """Read one pair once: two reads, or one when the record is worthless by itself.

        Raises:
            SnapshotReadError: one of its subclasses; nothing is handed out.
            HiveError: the hive did not answer, or refused.
        """
        paths = self._paths(provider, source_id)
        pair = f"{provider}/{source_id}"
        data = self._record(paths, pair)
        snapshot = None if data is None else self._decoded(data, provider, source_id)
        read_unix_ms = self._clock()
        status = self._status(paths, provider, source_id)
        if data is None or snapshot is None:
            raise _nothing(pair, source_id, status)
        sha256 = snapshot_digest(data)
        expected = status_of(snapshot, sha256)
        if self.lag_s > 0 and status.sequence < expected.sequence:
            raise ReplacedError(
                pair,
                f"the gateway's status (sequence {status.sequence}) is older than its record (sequence"
                f" {expected.sequence}); read it again in {self.lag_s:.1f} s",
            )
        _agree(pair, status, expected)
        return HostObservation(
            provider=provider,
            source_id=source_id,
            epoch=snapshot.epoch,
            sequence=snapshot.sequence,
            observed_unix_ms=snapshot.observed_unix_ms,
            ttl_ms=snapshot.ttl_ms,
            available_at_read=snapshot.available,
            reason=snapshot.reason,
            entries=snapshot.entries,
            sha256=sha256,
            size=len(data),
            read_unix_ms=read_unix_ms,
            lag_s=self.lag_s,
        )

    def read_settled(self, provider: str, source_id: str, attempts: int = 3) -> HostObservation:
        """Like :meth:`read`, and once more, up to ``attempts`` in all, if the record was replaced meanwhile.

        Through a gateway there is a pause of ``lag_s`` before each further attempt: until then its answers
        may be the ones that did not fit.

        Raises:
            SnapshotReadError: as for :meth:`read`; :class:`ReplacedError` when it was each time.
            HiveError: as for :meth:`read`.
        """
        for _ in range(attempts - 1):
            try:
                return self.read(provider, source_id)
            except ReplacedError:
                if self.lag_s > 0:
                    self._sleep(self.lag_s + MARGIN_S)
        return self.read(provider, source_id)

    def status(self, provider: str, source_id: str) -> SnapshotStatus:
        """What the receiver says about a pair; one read. A status alone is no observation.

        Raises:
            SnapshotReadError: the pair is not enrolled, has no node, or the status is malformed or another's.
            HiveError: the hive did not answer, or refused.
        """
        return self._status(self._paths(provider, source_id), provider, source_id)

    def _paths(self, provider: str, source_id: str) -> SnapshotPaths:
        try:
            return self.enrolment.require(provider, source_id)
        except SnapshotError as error:
            raise NotEnrolledError(f"{provider}/{source_id}", str(error)) from None

    def _record(self, paths: SnapshotPaths, pair: str) -> bytes | None:
        """The bytes that the node shows; None for nothing."""
        lines = self._lines(paths.snapshot, pair)
        if len(lines) > 1:
            raise MalformedRecordError(pair, f"the snapshot has {len(lines)} lines, not one; {_BROKEN}")
        if not lines or not lines[0]:
            return None
        try:
            return lines[0].encode("utf-8")
        except UnicodeEncodeError:
            raise MalformedRecordError(pair, f"the snapshot is not UTF-8; {_BROKEN}") from None

    def _decoded(self, data: bytes, provider: str, source_id: str) -> HostSnapshot:
        pair = f"{provider}/{source_id}"
        try:
            snapshot = decode_snapshot(
                data, domain=self.enrolment.domain(source_id), bounds=self.enrolment.bounds
            )
        except SnapshotError as error:
            raise MalformedRecordError(pair, f"{error}; {_BROKEN}") from None
        if snapshot.provider != provider:
            raise MalformedRecordError(pair, f"the record is of {snapshot.provider}; {_BROKEN}")
        return snapshot

    def _status(self, paths: SnapshotPaths, provider: str, source_id: str) -> SnapshotStatus:
        pair = f"{provider}/{source_id}"
        lines = self._lines(paths.status, pair)
        if len(lines) != 1:
            raise MalformedStatusError(pair, f"the status has {len(lines)} lines, not one; {_BROKEN}")
        try:
            status = parse_status(lines[0])
        except SnapshotError as error:
            raise MalformedStatusError(pair, f"{error}; {_BROKEN}") from None
        if (status.provider, status.source_id) != (provider, source_id):
            raise DisagreementError(
                pair, f"the status is of {status.provider}/{status.source_id}; check the receiver"
            )
        return status

    def _lines(self, path: str, pair: str) -> list[str]:
        try:
            return self._namespace.read(path)
        except HiveRefusedError as error:
            if not error.absent:
                raise
            raise NoSuchNodeError(
                pair, f"the hive has no {path}; it runs with another manifest, or without snapshots"
            ) from error


_BROKEN: Final = "check that the manifest is this hive's, then the receiver"


def _nothing(pair: str, source_id: str, status: SnapshotStatus) -> NothingVisibleError | ReplacedError:
    """The error for a snapshot that was empty."""
    last = f"the last record had sequence {status.sequence}"
    match status.reason:
        case None:
            return ReplacedError(
                pair, f"sequence {status.sequence} appeared while it was read; read it again"
            )
        case Withdrawn.UNOBSERVED:
            return NotObservedError(
                pair,
                f"nothing was published since the receiver started; start the publisher on {source_id}",
                status,
            )
        case Withdrawn.EXPIRED:
            return ExpiredError(
                pair,
                f"expired, {last}; see on {source_id} whether its publisher runs and reaches the hive",
                status,
            )
        case Withdrawn.CLOCK_REGRESSED:
            return ClockRegressedError(
                pair,
                f"withdrawn because the receiver's clock went back, {last}; the next record shows it again,"
                " and if none does, look at the hive's clock",
                status,
            )


def _agree(pair: str, status: SnapshotStatus, expected: SnapshotStatus) -> None:
    """Hold a status against the one that the record calls for.

    Raises:
        SnapshotReadError: they differ; which subclass tells what must have happened in between.
    """
    if status.reason is not None:
        raise WithdrawnError(pair, _withdrawn(status, expected), status)
    if status == expected:
        return
    if status.sequence != expected.sequence:
        back = " (the receiver restarted)" if status.sequence < expected.sequence else ""
        raise ReplacedError(
            pair,
            f"sequence {expected.sequence} gave way to {status.sequence} while it was read{back}; read it"
            " again",
        )
    named = {
        "epoch": (expected.epoch, status.epoch),
        "observed_unix_ms": (expected.observed_unix_ms, status.observed_unix_ms),
        "ttl_ms": (expected.ttl_ms, status.ttl_ms),
        "sha256": (expected.sha256, status.sha256),
        "state": (_state(expected), _state(status)),
    }
    name, (ours, theirs) = next((each, both) for each, both in named.items() if both[0] != both[1])
    raise DisagreementError(
        pair,
        f"record and status of sequence {status.sequence} differ in {name}: {ours} and {theirs}; do not use"
        " either, check the receiver",
    )


def _withdrawn(status: SnapshotStatus, expected: SnapshotStatus) -> str:
    if status.reason is Withdrawn.UNOBSERVED:
        return f"the receiver restarted while sequence {expected.sequence} was read; wait for a new record"
    why = (
        "expired" if status.reason is Withdrawn.EXPIRED else "was withdrawn, the receiver's clock went back,"
    )
    return f"sequence {status.sequence} {why} while it was read; wait for a new record"


def _state(status: SnapshotStatus) -> str:
    return "available" if status.available else "unavailable"
