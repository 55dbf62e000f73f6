"""Where reading the root's stream goes on, and the history of the hive's lives.

The cursor is a help, not the truth: it may lag behind the records, which decide.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from ticket_agent.journal import checks
from ticket_agent.journal.envelope import Kind, open_envelope, parse_body, seal
from ticket_agent.journal.errors import CursorError, RecordError
from ticket_agent.journal.state_dir import CURSOR
from ticket_agent.journal.values import MAX_TEXT_BYTES, MAX_UNIX_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.journal.fs import Fs

__all__ = [
    "MAX_CURSOR_BYTES",
    "MAX_EPOCHS",
    "Cursor",
    "EpochMark",
    "HeldGap",
    "StreamMark",
    "decode_cursor",
    "encode_cursor",
    "load_cursor",
    "require_forward",
]

MAX_CURSOR_BYTES = 65_536
MAX_EPOCHS = 64
MAX_LOGS = 32
MAX_EVIDENCE_LINE = 512
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochMark:
    """One life of the hive: number, when and by which evidence it was opened, completion fence."""

    number: int
    opened_unix_ms: int
    evidence: str
    completed_through: int = 0

    def __post_init__(self) -> None:
        checks.integer(self.number, "epochs.number", 1, checks.MAX_U64)
        checks.integer(self.opened_unix_ms, "epochs.opened_unix_ms", 0, MAX_UNIX_MS)
        checks.line(self.evidence, "epochs.evidence", MAX_EVIDENCE_LINE)
        checks.integer(self.completed_through, "epochs.completed_through", 0, checks.MAX_U64)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMark:
    """The last consumed line of the root's stream: where it stood, and its digest, to recognise it again.

    ``offset`` is None where the root tells no offsets; ``length`` includes the newline.
    """

    sequence: int
    sha256: str
    length: int
    offset: int | None

    def __post_init__(self) -> None:
        for member in ("length", "sequence"):
            checks.integer(getattr(self, member), f"mark.{member}", 0, checks.MAX_U64)
        if self.offset is not None:
            checks.integer(self.offset, "mark.offset", 0, checks.MAX_U64)
        checks.text(self.sha256, "mark.sha256", 64)
        if _SHA256.fullmatch(self.sha256) is None:
            raise RecordError("mark.sha256 must be 64 lowercase hex digits")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGap:
    """Sequences that may have been lost unseen; nothing later is executed until an operator has answered."""

    epoch: int
    first: int
    through: int
    reason: str
    since_unix_ms: int

    def __post_init__(self) -> None:
        checks.integer(self.epoch, "held.epoch", 1, checks.MAX_U64)
        checks.integer(self.first, "held.first", 1, checks.MAX_U64)
        checks.integer(self.through, "held.through", self.first, checks.MAX_U64)
        checks.line(self.reason, "held.reason", MAX_TEXT_BYTES)
        checks.integer(self.since_unix_ms, "held.since_unix_ms", 0, MAX_UNIX_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Where reading goes on.

    Attributes:
        epoch: number of the hive's present life, from 1.
        epochs: the newest lives, at most 64, in ascending order.
        consumed_sequence: highest admission sequence taken over from the stream in this epoch, 0 if none.
        mark: the last consumed line, if any.
        ends: for each of the root's logs, the highest end offset seen in this epoch; a lower one later proves
            a reboot.
        held: a possible loss that nobody has acknowledged, if any.
    """

    epoch: int = 1
    epochs: tuple[EpochMark, ...] = ()
    consumed_sequence: int = 0
    mark: StreamMark | None = None
    ends: Mapping[str, int] = field(default_factory=dict)
    held: HeldGap | None = None

    def __post_init__(self) -> None:
        checks.integer(self.epoch, "epoch", 1, checks.MAX_U64)
        checks.mapping(self.ends, "ends")
        if len(self.ends) > MAX_LOGS:
            raise RecordError(f"ends must hold at most {MAX_LOGS} logs")
        for log, end in self.ends.items():
            checks.line(log, "ends", MAX_TEXT_BYTES)
            checks.integer(end, f"ends.{log}", 0, checks.MAX_U64)
        checks.integer(self.consumed_sequence, "consumed_sequence", 0, checks.MAX_U64)
        if len(self.epochs) > MAX_EPOCHS:
            raise RecordError(f"epochs must hold at most {MAX_EPOCHS} entries")
        numbers = [mark.number for mark in self.epochs]
        if any(later <= earlier for earlier, later in pairwise(numbers)):
            raise RecordError("epochs must be in ascending order")
        if numbers and numbers[-1] > self.epoch:
            raise RecordError("epochs must not hold a number above epoch")

    def completed_through(self, epoch: int) -> int:
        """Completion fence of an epoch as saved; 0 for an epoch that is not kept."""
        return next((mark.completed_through for mark in self.epochs if mark.number == epoch), 0)


_PartT = TypeVar("_PartT", EpochMark, StreamMark, HeldGap)


def encode_cursor(cursor: Cursor) -> bytes:
    """Return the cursor's file."""
    body: dict[str, Any] = {
        "epoch": cursor.epoch,
        "epochs": [_members(mark) for mark in cursor.epochs],
        "consumed_sequence": cursor.consumed_sequence,
    }
    if cursor.mark is not None:
        body["mark"] = _members(cursor.mark)
    if cursor.ends:
        body["ends"] = dict(cursor.ends)
    if cursor.held is not None:
        body["held"] = _members(cursor.held)
    return seal(Kind.CURSOR, body)


def _members(value: EpochMark | StreamMark | HeldGap) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def decode_cursor(data: bytes) -> Cursor:
    """Return the cursor in a file.

    Raises:
        RecordError: reason and byte offset.
    """
    body, offset = open_envelope(Kind.CURSOR, data)
    members = parse_body(body, offset)
    try:
        return _cursor_of(members)
    except RecordError as error:
        raise RecordError(error.reason, offset=offset) from None


def _cursor_of(members: dict[str, Any]) -> Cursor:
    if not {"epoch", "epochs", "consumed_sequence"} <= members.keys() <= Cursor.__dataclass_fields__.keys():
        raise RecordError("the members of the cursor are wrong")
    epochs = members["epochs"]
    if not isinstance(epochs, list):
        raise RecordError("epochs must be a list")
    return Cursor(
        epoch=members["epoch"],
        epochs=tuple([_part(EpochMark, entry, "epochs") for entry in epochs]),
        consumed_sequence=members["consumed_sequence"],
        mark=_part(StreamMark, members["mark"], "mark") if "mark" in members else None,
        ends=members.get("ends", {}),
        held=_part(HeldGap, members["held"], "held") if "held" in members else None,
    )


def _part(kind: type[_PartT], value: object, what: str) -> _PartT:
    if not isinstance(value, dict) or value.keys() != kind.__dataclass_fields__.keys():
        raise RecordError(f"the members of {what} are wrong")
    return kind(**value)


def load_cursor(fs: Fs, root_fd: int) -> tuple[Cursor, str | None]:
    """Read the cursor: the value and None, or the initial value and what is wrong with the file.

    A missing file is the initial value. A file that cannot be read is left as it is.
    """
    try:
        return decode_cursor(fs.read(root_fd, CURSOR, MAX_CURSOR_BYTES)), None
    except FileNotFoundError:
        return Cursor(), None
    except OSError as error:
        return Cursor(), f"{CURSOR} cannot be read: {error.strerror or error}"
    except RecordError as error:
        return Cursor(), f"{CURSOR} is not valid: {error}"


def require_forward(old: Cursor, new: Cursor) -> None:
    """Refuse a cursor that would take something back.

    Raises:
        CursorError: the epoch or a completion fence would move back.
    """
    if new.epoch < old.epoch:
        raise CursorError(f"the cursor's epoch would move back from {old.epoch} to {new.epoch}")
    kept = {mark.number for mark in new.epochs}
    for mark in old.epochs:
        if mark.number in kept and new.completed_through(mark.number) < mark.completed_through:
            raise CursorError(
                f"the completion fence of epoch {mark.number} would move back from {mark.completed_through}"
            )
