"""Everything the journal raises; each class has a stable ``code`` and one line that says what to do."""

from __future__ import annotations

__all__ = [
    "CursorError",
    "FenceHeldError",
    "GapError",
    "IllegalTransitionError",
    "JournalError",
    "JournalIoError",
    "JournalPoisonedError",
    "KeyConflictError",
    "QuarantinedRecordError",
    "RecordError",
    "StateDirError",
    "StorageFullError",
    "TakeoverError",
    "UnknownKeyError",
]


class JournalError(Exception):
    """Root of the journal's errors."""

    code = "journal"


class IllegalTransitionError(JournalError):
    """The event is not possible in the operation's state; nothing changed."""

    code = "illegal-transition"


class RecordError(JournalError):
    """Bytes that are not a valid record, or a value that must not become one.

    Attributes:
        reason: what is wrong, in words for an operator.
        offset: first byte of the file that is known to be wrong; 0 when a value, not a file, was refused.
    """

    code = "record"

    def __init__(self, reason: str, *, offset: int = 0) -> None:
        super().__init__(f"{reason} (byte {offset})" if offset else reason)
        self.reason = reason
        self.offset = offset


class KeyConflictError(JournalError):
    """The key is already journaled with another epoch, sequence or request; nothing was written."""

    code = "key-conflict"


class QuarantinedRecordError(KeyConflictError):
    """The key's record exists but cannot be read; it is never overwritten and never executed."""

    code = "quarantined"


class UnknownKeyError(JournalError):
    """No operation with this key is in the journal."""

    code = "unknown-key"


class StorageFullError(JournalError):
    """Not enough space to go on safely. Nothing decided was lost; the same call may be repeated later."""

    code = "storage-full"


class JournalPoisonedError(JournalError):
    """A durable write failed, so memory and disk may differ: end the process and start again."""

    code = "journal-poisoned"


class JournalIoError(JournalError):
    """The state directory could not be read or prepared at start; nothing was dispatched."""

    code = "journal-io"


class FenceHeldError(JournalError):
    """Another process owns this state directory.

    Attributes:
        pid: the owner's process id as it wrote it down, or None when that is not readable.
        boot_id: boot id of the owner's start, or None.
    """

    code = "fence-held"

    def __init__(self, *, pid: int | None, boot_id: str | None) -> None:
        who = f"process {pid}" if pid is not None else "another process"
        super().__init__(
            f"{who} already owns this state directory; stop it first or use another state directory"
        )
        self.pid = pid
        self.boot_id = boot_id


class StateDirError(JournalError):
    """The state directory, or a directory inside it, is not one that a journal may trust."""

    code = "state-dir"


class CursorError(JournalError):
    """The cursor cannot be read, or the new value would move back; the file was left as it is."""

    code = "cursor"


class GapError(JournalError):
    """An acknowledgement of a gap cannot be written or read."""

    code = "gap"


class TakeoverError(JournalError):
    """A takeover from another program cannot begin, cannot go on or was not finished; nothing is executed."""

    code = "takeover"
