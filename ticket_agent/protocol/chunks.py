"""C1 groups: how a line longer than one wire line travels over the console (C1 chunk stream).

A frame is ``C1:<seq>:<count>:<sha256>:<payload>``: two numbers of four lowercase hexadecimal digits, the
digest of the whole line in every frame, and a slice of the line that is valid UTF-8 by itself.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import ChunkError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "FRAME_PAYLOAD_BYTES",
    "MAX_FRAMES",
    "MAX_RECORD_BYTES",
    "MAX_WIRE_BYTES",
    "decode_lines",
    "encode_line",
    "frame_count",
]

PREFIX = "C1:"
MAX_WIRE_BYTES = 256
"""Longest line on the wire, without its newline."""
FRAME_PAYLOAD_BYTES = 176
"""Payload that the root's emitter fills a frame with, so frames are at most 254 bytes long."""
MAX_FRAMES = 64
"""Most frames of one group, and of one answer."""
MAX_RECORD_BYTES = 8192
"""Longest reassembled line; older clients stop at 2048."""

_FRAME = re.compile(r"C1:([0-9a-f]{4}):([0-9a-f]{4}):([0-9a-f]{64}):(.+)", re.DOTALL)


def encode_line(line: str) -> list[str]:
    """Return the wire lines of one line.

    A line of at most 256 bytes goes out as it is, unless it would itself be taken for a frame.

    Raises:
        ChunkError: it would take more than 64 frames, or is not encodable as UTF-8.
    """
    data = _utf8(line)
    if not _needs_frames(data):
        return [line]
    payloads = [data[start:end].decode("utf-8") for start, end in _cuts(data)]
    if len(payloads) > MAX_FRAMES:
        raise ChunkError(
            f"a line of {len(data)} bytes needs {len(payloads)} C1 frames; the limit is {MAX_FRAMES}",
            code="chunk-too-many",
        )
    digest = hashlib.sha256(data).hexdigest()
    return [
        f"{PREFIX}{number:04x}:{len(payloads):04x}:{digest}:{payload}"
        for number, payload in enumerate(payloads)
    ]


def frame_count(line: str) -> int:
    """Return how many wire lines :func:`encode_line` would make of ``line``, without the limit of 64.

    Raises:
        ChunkError: the line is not encodable as UTF-8.
    """
    data = _utf8(line)
    return sum(1 for _ in _cuts(data)) if _needs_frames(data) else 1


def decode_lines(lines: Sequence[str], *, max_record_bytes: int = MAX_RECORD_BYTES) -> list[str]:
    """Reassemble the C1 groups of one answer; other lines pass unchanged.

    Any fill of the frames is accepted as long as each stays within 256 bytes.

    Raises:
        ChunkError: a group is malformed, incomplete, reordered, mixed, oversized or fails its digest. The
            whole answer is then worthless, since what stands around the group is not proven complete either.
    """
    logical: list[str] = []
    rest = iter(lines)
    for line in rest:
        if line.startswith(PREFIX):
            logical.append(_group(_frame(line), rest, max_record_bytes))
        else:
            logical.append(line)
    return logical


@dataclass(frozen=True, slots=True)
class _Frame:
    number: int
    count: int
    digest: str
    payload: bytes


def _group(first: _Frame, rest: Iterator[str], max_record_bytes: int) -> str:
    if first.number != 0:
        raise ChunkError(f"a C1 group starts with frame {first.number} instead of 0", code="chunk-order")
    record = bytearray(first.payload)
    for number in range(1, first.count):
        line = next(rest, None)
        if line is None:
            raise ChunkError(f"a C1 group of {first.count} frames ends after {number}", code="chunk-short")
        frame = _frame(line)
        if frame.number != number:
            raise ChunkError(
                f"C1 frame {frame.number} stands where frame {number} belongs", code="chunk-order"
            )
        if frame.count != first.count:
            raise ChunkError(f"C1 frame {number} changes the count of its group", code="chunk-count")
        if frame.digest != first.digest:
            raise ChunkError(f"C1 frame {number} changes the digest of its group", code="chunk-digest")
        record += frame.payload
        _check_size(record, max_record_bytes)
    _check_size(record, max_record_bytes)
    if hashlib.sha256(record).hexdigest() != first.digest:
        raise ChunkError("a reassembled C1 group does not have the digest it carries", code="chunk-digest")
    return record.decode("utf-8")


def _frame(line: str) -> _Frame:
    wire = len(_utf8(line))
    if wire > MAX_WIRE_BYTES:
        raise ChunkError(f"a C1 frame takes {wire} bytes; the limit is {MAX_WIRE_BYTES}", code="chunk-wire")
    match = _FRAME.fullmatch(line)
    if match is None:
        raise ChunkError(
            "a line of a C1 group is no frame (twice four lowercase hex digits, a SHA-256, a payload)",
            code="chunk-header",
        )
    number, count = int(match[1], 16), int(match[2], 16)
    if not 1 <= count <= MAX_FRAMES or number >= count:
        raise ChunkError(
            f"C1 frame {number} of {count} is outside 1..={MAX_FRAMES} frames", code="chunk-count"
        )
    return _Frame(number, count, match[3], match[4].encode("utf-8"))


def _check_size(record: bytearray, max_record_bytes: int) -> None:
    if len(record) > max_record_bytes:
        raise ChunkError(
            f"a C1 group reassembles to more than {max_record_bytes} bytes", code="chunk-too-long"
        )


def _needs_frames(data: bytes) -> bool:
    return len(data) > MAX_WIRE_BYTES or data.startswith(PREFIX.encode())


def _cuts(data: bytes) -> Iterator[tuple[int, int]]:
    start = 0
    while start < len(data):
        end = min(start + FRAME_PAYLOAD_BYTES, len(data))
        # A continuation byte (0b10xxxxxx) at the cut belongs to the character before it.
        while end < len(data) and data[end] & 0xC0 == 0x80:  # noqa: PLR2004
            end -= 1
        yield start, end
        start = end


def _utf8(line: str) -> bytes:
    try:
        return line.encode("utf-8")
    except UnicodeEncodeError:
        raise ChunkError("a line with a lone surrogate cannot travel as UTF-8", code="chunk-utf8") from None
