"""Frames of the TCP console: a little-endian total length, then one text line (transports, framing).

Sans-I/O and usable by both sides. A client treats an over-long frame as an error; a server reports it and
drains exactly the declared payload, so that the session survives (``drain_overlong``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = [
    "HEADER_LEN",
    "MAX_COMPONENT_LEN",
    "MAX_DATA_FRAMES",
    "MAX_DEPTH",
    "MAX_ECHO_LEN",
    "MAX_FRAME_LEN",
    "MAX_LINE_LEN",
    "MAX_PATH_LEN",
    "MAX_RESPONSE_LEN",
    "MAX_ROLE_LEN",
    "MAX_TICKET_LEN",
    "NEWER_BOUNDS",
    "OLDER_BOUNDS",
    "Bounds",
    "FrameDecoder",
    "FrameError",
    "OverlongFrame",
    "encode_frame",
]

HEADER_LEN: Final = 4
"""Bytes of the length header; the length counts them too."""

MAX_FRAME_LEN: Final = 8192
"""Largest legal total length of a frame, header included."""

MAX_LINE_LEN: Final = 2304
"""Longest command line a network console accepts, in bytes (256 in the older bounds)."""

MAX_ECHO_LEN: Final = 2048
"""Longest payload of one append, in bytes (128 in the older bounds)."""

MAX_RESPONSE_LEN: Final = 256
"""Longest line a console sends, in bytes."""

MAX_PATH_LEN: Final = 96
"""Longest path, in characters."""

MAX_DEPTH: Final = 8
"""Most components of a path."""

MAX_COMPONENT_LEN: Final = 64
"""Longest component of a path, in bytes."""

MAX_TICKET_LEN: Final = 224
"""Longest capability token of an attach, in characters."""

MAX_ROLE_LEN: Final = 16
"""Longest role token of an attach, in characters."""

MAX_DATA_FRAMES: Final = 64
"""Most data frames of one streamed answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a generation of consoles accepts.

    Attributes:
        line: longest command line, in bytes.
        echo: longest payload of one append, in bytes.
    """

    line: int
    echo: int


NEWER_BOUNDS: Final = Bounds(line=MAX_LINE_LEN, echo=MAX_ECHO_LEN)
OLDER_BOUNDS: Final = Bounds(line=256, echo=128)


class FrameError(Exception):
    """The byte stream cannot be cut into frames; the connection is beyond repair."""

    code = "console-frame"


@dataclass(frozen=True, slots=True)
class OverlongFrame:
    """A frame over the decoder's bound; its payload is skipped, the stream stays in step.

    Attributes:
        declared: total length that its header announced, in bytes.
    """

    declared: int


def encode_frame(text: str) -> bytes:
    """Return one frame: header and the line as UTF-8.

    Raises:
        FrameError: the frame would be longer than 8192 bytes, or the text cannot be encoded.
    """
    try:
        payload = text.encode()
    except UnicodeEncodeError as error:
        raise FrameError("the line holds a lone surrogate and cannot be sent; escape it") from error
    total = HEADER_LEN + len(payload)
    if total > MAX_FRAME_LEN:
        raise FrameError(f"a frame of {total} bytes exceeds the console's {MAX_FRAME_LEN}; shorten the line")
    return total.to_bytes(HEADER_LEN, "little") + payload


class FrameDecoder:
    """Cuts a byte stream into frames, however it was split.

    1. The sequence of frames does not depend on how the bytes were cut into ``receive`` calls.
    2. A frame over ``max_total`` is an error, or with ``drain_overlong`` one :class:`OverlongFrame`, reported
       as soon as its header is complete.
    3. A declared total below the header's own length is always an error, and every later call repeats it.
    """

    def __init__(self, max_total: int = MAX_FRAME_LEN, *, drain_overlong: bool = False) -> None:
        self._max_total = max_total
        self._drain_overlong = drain_overlong
        self._buffer = bytearray()
        self._draining = 0

    @property
    def mid_frame(self) -> bool:
        """Whether the bytes so far end inside a frame."""
        return bool(self._buffer) or self._draining > 0

    @property
    def buffered(self) -> int:
        """Bytes that are held; after ``next_frame`` returned None less than one frame."""
        return len(self._buffer)

    def receive(self, data: bytes) -> None:
        """Add bytes from the peer; ``next_frame`` hands out what they complete."""
        skipped = min(self._draining, len(data))
        self._draining -= skipped
        self._buffer += data[skipped:]

    def next_frame(self) -> bytes | OverlongFrame | None:
        """Return the next payload, the report of an over-long frame, or None when more bytes are needed.

        Raises:
            FrameError: the length header is illegal.
        """
        if len(self._buffer) < HEADER_LEN:
            return None
        total = int.from_bytes(self._buffer[:HEADER_LEN], "little")
        if total < HEADER_LEN:
            raise FrameError(
                f"a frame declares {total} bytes, less than its own header; the stream is broken"
            )
        if total > self._max_total:
            return self._overlong(total)
        if len(self._buffer) < total:
            return None
        payload = bytes(self._buffer[HEADER_LEN:total])
        del self._buffer[:total]
        return payload

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes and return every payload they complete; for streams without ``drain_overlong``.

        Raises:
            FrameError: a length header is illegal or over the bound.
        """
        self.receive(data)
        payloads: list[bytes] = []
        while (frame := self.next_frame()) is not None:
            if isinstance(frame, OverlongFrame):
                raise FrameError(f"a frame of {frame.declared} bytes exceeds the bound of {self._max_total}")
            payloads.append(frame)
        return payloads

    def _overlong(self, total: int) -> OverlongFrame:
        if not self._drain_overlong:
            raise FrameError(f"a frame declares {total} bytes, more than the bound of {self._max_total}")
        available = min(total, len(self._buffer))
        del self._buffer[:available]
        self._draining = total - available
        return OverlongFrame(total)
