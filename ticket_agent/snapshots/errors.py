"""Why a host's snapshot could not be shown: what was found, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ticket_agent.protocol.errors import one_line

if TYPE_CHECKING:
    from ticket_agent.protocol.snapshot_status import SnapshotStatus

__all__ = [
    "ClockRegressedError",
    "DisagreementError",
    "ExpiredError",
    "MalformedRecordError",
    "MalformedStatusError",
    "NoSuchNodeError",
    "NotEnrolledError",
    "NotObservedError",
    "NothingVisibleError",
    "ReplacedError",
    "SnapshotReadError",
    "WithdrawnError",
]


class SnapshotReadError(Exception):
    """Root of what reading a snapshot raises, apart from the errors of the hive itself.

    Attributes:
        code: stable name, one word for lists and scripts.
        pair: ``provider/source``.
        detail: what was found and what to do, without the pair.
    """

    code = "snapshot-read"

    def __init__(self, pair: str, detail: str) -> None:
        super().__init__(one_line(f"{pair}: {detail}"))
        self.pair = one_line(pair)
        self.detail = one_line(detail)


class NotEnrolledError(SnapshotReadError):
    """The manifest does not enrol this pair; nothing was asked of the hive."""

    code = "not-enrolled"


class NoSuchNodeError(SnapshotReadError):
    """The hive does not have the node: no snapshots, or not of this pair."""

    code = "no-such-node"


class NothingVisibleError(SnapshotReadError):
    """The receiver shows no record, and says why.

    Attributes:
        status: what it says.
    """

    code = "nothing-visible"

    def __init__(self, pair: str, detail: str, status: SnapshotStatus) -> None:
        super().__init__(pair, detail)
        self.status = status


class NotObservedError(NothingVisibleError):
    """Nothing was accepted since the receiver started."""

    code = "unobserved"


class ExpiredError(NothingVisibleError):
    """The last record outlived its time, and none followed."""

    code = "expired"


class ClockRegressedError(NothingVisibleError):
    """The receiver's clock went back, so that it no longer knows the age of the last record."""

    code = "clock-regressed"


class ReplacedError(SnapshotReadError):
    """Another record took the place of the one that was read before its status was; reading again is safe."""

    code = "replaced"


class WithdrawnError(NothingVisibleError):
    """A record was read, and its status then said that there is none any more."""

    code = "withdrawn"


class DisagreementError(SnapshotReadError):
    """Record and status contradict each other though they speak of the same sequence."""

    code = "disagreement"


class MalformedRecordError(SnapshotReadError):
    """What the hive shows is no record that a receiver may accept from this pair."""

    code = "malformed-record"


class MalformedStatusError(SnapshotReadError):
    """What the hive shows is no status."""

    code = "malformed-status"
