"""Operators' acknowledgements that a range of sequences may have been lost.

Each is one new file that never changes. Writing one needs no fence, so that it works beside a running daemon,
which reads them again whenever it holds a gap.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ticket_agent.journal import checks
from ticket_agent.journal.atomic import ReplaceError, replace_file
from ticket_agent.journal.envelope import Kind, open_envelope, parse_body, seal
from ticket_agent.journal.errors import GapError, JournalIoError, RecordError, StateDirError
from ticket_agent.journal.fs import RealFs
from ticket_agent.journal.state_dir import GAPS, open_gaps, open_readable
from ticket_agent.journal.values import MAX_TEXT_BYTES, MAX_UNIX_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ticket_agent.journal.fs import Fs

__all__ = [
    "MAX_GAP_BYTES",
    "Acknowledgement",
    "acknowledge_gap",
    "acknowledgements_in",
    "covers",
    "decode_acknowledgement",
    "encode_acknowledgement",
    "read_acknowledgements",
]

MAX_GAP_BYTES = 4_096
_NAME = re.compile(r"[0-9]{1,20}-[0-9]{1,20}-[0-9]{1,20}\.ack")


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """Who gave up which sequences of which epoch, when and why."""

    epoch: int
    first: int
    through: int
    reason: str
    by: str
    unix_ms: int

    def __post_init__(self) -> None:
        checks.integer(self.epoch, "epoch", 1, checks.MAX_U64)
        checks.integer(self.first, "first", 1, checks.MAX_U64)
        checks.integer(self.through, "through", self.first, checks.MAX_U64)
        checks.line(self.reason, "reason", MAX_TEXT_BYTES)
        checks.line(self.by, "by", MAX_TEXT_BYTES)
        checks.integer(self.unix_ms, "unix_ms", 0, MAX_UNIX_MS)

    @property
    def name(self) -> str:
        """Name of the acknowledgement's file."""
        return f"{self.epoch}-{self.first}-{self.through}.ack"


def acknowledge_gap(
    state_dir: Path,
    *,
    epoch: int,
    first: int,
    through: int,
    reason: str,
    by: str,
    clock: Callable[[], int],
    fs: Fs | None = None,
) -> Acknowledgement:
    """Durably write one acknowledgement.

    Raises:
        RecordError: a value is out of range, or reason or author is not one line of 1..=192 bytes.
        GapError: the range is already acknowledged; the file stays as it is.
        StateDirError: the directory is not a state directory that we may write.
        JournalIoError: the directory cannot be opened.
        ReplaceError: the file could not be written.
    """
    value = Acknowledgement(
        epoch=epoch, first=first, through=through, reason=reason, by=by, unix_ms=max(0, clock())
    )
    seam = fs or RealFs()
    try:
        fd = open_gaps(state_dir, seam)
    except OSError as error:
        raise JournalIoError(f"{state_dir / GAPS} cannot be opened: {error}") from error
    try:
        replace_file(seam, fd, value.name, encode_acknowledgement(value), new=True)
    except ReplaceError as error:
        if error.errno == errno.EEXIST:
            raise GapError(
                f"{value.name} exists already; this range needs no second acknowledgement"
            ) from error
        raise
    finally:
        os.close(fd)
    return value


def encode_acknowledgement(value: Acknowledgement) -> bytes:
    """Return the file of an acknowledgement."""
    return seal(Kind.GAP, {name: getattr(value, name) for name in value.__dataclass_fields__})


def decode_acknowledgement(data: bytes, *, name: str | None = None) -> Acknowledgement:
    """Return the acknowledgement in a file, whose name must agree when given.

    Raises:
        RecordError: reason and byte offset.
    """
    body, offset = open_envelope(Kind.GAP, data)
    members = parse_body(body, offset)
    try:
        value = _acknowledgement_of(members)
    except RecordError as error:
        raise RecordError(error.reason, offset=offset) from None
    if name is not None and name != value.name:
        raise RecordError(f"the file's name should be {value.name}", offset=offset)
    return value


def _acknowledgement_of(members: dict[str, Any]) -> Acknowledgement:
    if members.keys() != Acknowledgement.__dataclass_fields__.keys():
        raise RecordError("the members of the acknowledgement are wrong")
    return Acknowledgement(**members)


def read_acknowledgements(state_dir: Path, *, fs: Fs | None = None) -> tuple[Acknowledgement, ...]:
    """Return every valid acknowledgement, ordered; one that cannot be read counts for nothing.

    Raises:
        OSError: the directory exists but cannot be read.
    """
    seam = fs or RealFs()
    try:
        fd = open_readable(state_dir / GAPS)
    except StateDirError:
        return ()
    try:
        return acknowledgements_in(seam, fd)
    finally:
        os.close(fd)


def acknowledgements_in(fs: Fs, gaps_fd: int) -> tuple[Acknowledgement, ...]:
    """As :func:`read_acknowledgements`, of an open directory."""
    found: list[Acknowledgement] = []
    for name in fs.list(gaps_fd):
        if _NAME.fullmatch(name) is None:
            continue
        try:
            found.append(decode_acknowledgement(fs.read(gaps_fd, name, MAX_GAP_BYTES), name=name))
        except (OSError, RecordError):
            continue
    return tuple(sorted(found, key=lambda value: (value.epoch, value.first, value.through)))


def covers(acknowledgements: Iterable[Acknowledgement], epoch: int, first: int, through: int) -> bool:
    """Tell whether acknowledgements of the epoch together cover every sequence of ``first..=through``."""
    wanted = first
    ranges = sorted((value.first, value.through) for value in acknowledgements if value.epoch == epoch)
    for start, end in ranges:
        if start > wanted:
            break
        wanted = max(wanted, end + 1)
    return wanted > through
