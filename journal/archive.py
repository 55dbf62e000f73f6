"""The archive: old terminal records move from one file each into segments of many.

A segment is the records' files one behind the other, byte for byte. It is a new file that never changes. Only
after it is durable are the records' own files removed. A crash between the two leaves a record in both
places, which harms nobody: the next call recognises the bytes and only removes the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ticket_agent.journal.envelope import Kind, other_version, split_envelopes
from ticket_agent.journal.errors import RecordError
from ticket_agent.journal.record import decode_record

if TYPE_CHECKING:
    from ticket_agent.journal.fs import Fs
    from ticket_agent.journal.record import Record

__all__ = [
    "MAX_SEGMENT_BYTES",
    "Segment",
    "SegmentProblem",
    "is_segment",
    "newest_segment_parts",
    "next_segment_name",
    "read_segment",
    "segment_names",
]

MAX_SEGMENT_BYTES = 8 * 1_024 * 1_024
"""Longest segment; a retirement that would be longer stops at this and goes on with the next call."""
_NAME = re.compile(r"[0-9]{8}\.seg")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentProblem:
    """A place in a segment that is not a valid record."""

    offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What a segment holds."""

    name: str
    records: tuple[Record, ...]
    problems: tuple[SegmentProblem, ...]


def is_segment(name: str) -> bool:
    """Tell whether a name is that of a segment."""
    return _NAME.fullmatch(name) is not None


def segment_names(fs: Fs, archive_fd: int) -> list[str]:
    """Names of the segments, oldest first."""
    return sorted(name for name in fs.list(archive_fd) if is_segment(name))


def next_segment_name(fs: Fs, archive_fd: int) -> str:
    """Name of the segment behind the newest one."""
    names = segment_names(fs, archive_fd)
    number = int(names[-1].split(".")[0]) + 1 if names else 1
    return f"{number:08d}.seg"


def newest_segment_parts(fs: Fs, archive_fd: int) -> frozenset[bytes]:
    """Return the files in the newest segment.

    Only there can a crash have left records that were archived but not removed.
    """
    names = segment_names(fs, archive_fd)
    if not names:
        return frozenset()
    parts, _ = split_envelopes(Kind.RECORD, fs.read(archive_fd, names[-1], MAX_SEGMENT_BYTES))
    return frozenset(parts)


def read_segment(name: str, data: bytes) -> Segment:
    """Return the records of a segment, and what in it cannot be read."""
    parts, covered = split_envelopes(Kind.RECORD, data)
    records: list[Record] = []
    problems: list[SegmentProblem] = []
    at = 0
    for part in parts:
        try:
            records.append(decode_record(part))
        except RecordError as error:
            problems.append(SegmentProblem(offset=at + error.offset, reason=error.reason))
        at += len(part)
    if covered < len(data):
        reason = other_version(Kind.RECORD, data[covered:]) or "no whole record begins here"
        problems.append(SegmentProblem(offset=covered, reason=reason))
    return Segment(name=name, records=tuple(records), problems=tuple(problems))
