"""Why a snapshot is not published; each line says what to do."""

from __future__ import annotations

__all__ = [
    "BoundsError",
    "CursorError",
    "CursorFullError",
    "CursorPoisonedError",
    "DamagedCursorError",
    "NoCursorError",
    "PublishError",
    "ReceiverAheadError",
    "SourceClockError",
    "SourceHeldError",
    "TooLateError",
    "TransferRefusedError",
    "UnverifiedError",
]


class PublishError(Exception):
    """Root of these errors; ``code`` is stable."""

    code = "snapshot-publish"


class BoundsError(PublishError):
    """The manifest's bounds leave no room for a record, not even for one without entries."""

    code = "snapshot-bounds"


class CursorError(PublishError):
    """The state directory is not as it must be, or holds no cursor of this source and epoch."""

    code = "snapshot-cursor"


class NoCursorError(CursorError):
    """The source has a directory, and no cursor in it: what was published is not known."""

    code = "snapshot-no-cursor"


class DamagedCursorError(CursorError):
    """The cursor's bytes say nothing that can be believed."""

    code = "snapshot-cursor-damaged"


class CursorFullError(CursorError):
    """There is no room for the next reservation; its number is skipped, and a later one may succeed."""

    code = "snapshot-cursor-full"


class CursorPoisonedError(CursorError):
    """A reservation may or may not be on the disk: this process must not reserve anything again."""

    code = "snapshot-cursor-poisoned"


class SourceHeldError(PublishError):
    """Another process publishes for this source and epoch from this state directory."""

    code = "snapshot-source-held"


class SourceClockError(PublishError):
    """This host's clock stands before the last observation that was published."""

    code = "snapshot-clock"


class TooLateError(PublishError):
    """Looking, reserving or sending took longer than the record may live; nothing more is sent of it."""

    code = "snapshot-late"


class TransferRefusedError(PublishError):
    """The receiver answered a step of the transfer with ``ERR``, or has no such node."""

    code = "snapshot-refused"


class UnverifiedError(PublishError):
    """The receiver's status does not show what was sent; whether it took it is not known."""

    code = "snapshot-unverified"


class ReceiverAheadError(PublishError):
    """The receiver has taken a later record than this publisher ever reserved.

    Attributes:
        sequence: of that record.
    """

    code = "snapshot-receiver-ahead"

    def __init__(self, text: str, *, sequence: int) -> None:
        super().__init__(text)
        self.sequence = sequence
