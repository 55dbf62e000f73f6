"""Logs of the root task: whole-line logs with absolute offsets, and the byte-wise telemetry ring."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ticket_agent.protocol.chunks import frame_count

from .errors import buffer_full

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ByteRing", "LineLog"]


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    size: int
    frames: int


def _measure(text: str) -> _Line:
    return _Line(text, len(text.encode()) + 1, frame_count(text))


class LineLog:
    """A log of whole lines within two budgets (root side, retention).

    1. ``next - base`` is the number of retained bytes, newlines included; ``base`` is the number dropped.
    2. Retained bytes and wire frames never exceed their limits.
    3. An evicting log drops whole oldest lines and refuses only what would not fit into an empty log;
       a log without eviction refuses everything that would pass its limits, for ever.
    """

    def __init__(self, *, max_bytes: int, max_frames: int | None = None, evicting: bool = True) -> None:
        self._max_bytes = max_bytes
        self._max_frames = max_frames
        self._evicting = evicting
        self._lines: deque[_Line] = deque()
        self.retained_bytes = 0
        self.retained_frames = 0
        self.dropped_bytes = 0
        self.dropped_lines = 0

    @property
    def base(self) -> int:
        """Absolute offset of the first retained byte since boot."""
        return self.dropped_bytes

    @property
    def next(self) -> int:
        """Absolute offset behind the last byte ever appended."""
        return self.dropped_bytes + self.retained_bytes

    def lines(self) -> list[str]:
        """Return the retained lines, oldest first."""
        return [line.text for line in self._lines]

    def preflight(self, lines: Sequence[str]) -> None:
        """Raise the buffer-full refusal when ``append`` of the same lines would be refused."""
        size = sum(_measure(line).size for line in lines)
        frames = sum(_measure(line).frames for line in lines)
        if not self._evicting:
            size += self.retained_bytes
            frames += self.retained_frames
        if not self._fits(size, frames):
            raise buffer_full()

    def append(self, lines: Sequence[str]) -> None:
        """Append lines, all or none.

        Raises:
            RefusalError: buffer-full.
        """
        self.preflight(lines)
        for text in lines:
            line = _measure(text)
            while not self._fits(self.retained_bytes + line.size, self.retained_frames + line.frames):
                self._drop_oldest()
            self._lines.append(line)
            self.retained_bytes += line.size
            self.retained_frames += line.frames

    def slide(self, count: int) -> int:
        """Drop up to ``count`` oldest lines as eviction would; return how many were dropped."""
        dropped = min(count, len(self._lines))
        for _ in range(dropped):
            self._drop_oldest()
        return dropped

    def _fits(self, size: int, frames: int) -> bool:
        return size <= self._max_bytes and (self._max_frames is None or frames <= self._max_frames)

    def _drop_oldest(self) -> None:
        line = self._lines.popleft()
        self.retained_bytes -= line.size
        self.retained_frames -= line.frames
        self.dropped_bytes += line.size
        self.dropped_lines += 1


class ByteRing:
    """The last ``capacity`` bytes that were written; the first line may be a fragment."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._data = b""

    def write(self, data: bytes) -> None:
        """Add bytes; the oldest ones make room."""
        self._data = (self._data + data)[-self._capacity :]

    def lines(self) -> list[str]:
        """Return the text between newlines, a leading fragment and an unfinished last line included."""
        text = self._data.decode(errors="replace").replace("\ufffd", "?")
        lines = text.split("\n")
        return lines[:-1] if lines[-1] == "" else lines
