"""Reading what was kept of a phase's output, as bytes and for people."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from ticket_agent.journal.text import plain
from ticket_agent.peft.release.output_ring import OUTPUT_NAME, output_name

__all__ = ["PhaseLog", "Piece", "read_log"]

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_PIECE: Final = 1 << 26
_MAX_PIECES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes of the output that stand together; ``offset`` is the place of the first one."""

    offset: int
    data: bytes

    @property
    def end(self) -> int:
        """Place of the first byte after it."""
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseLog:
    """The pieces in order, none touching the next."""

    pieces: tuple[Piece, ...]

    @property
    def left_out(self) -> int:
        """Bytes that are missing before and between the pieces."""
        return (self.pieces[-1].end if self.pieces else 0) - sum(len(piece.data) for piece in self.pieces)

    def lines(self) -> list[str]:
        r"""Text for a terminal: everything that is not printable escaped, a line for what is missing.

        Bytes that are not UTF-8 are shown as ``\xNN``.
        A carriage return ends a line, because progress bars write one.
        """
        found: list[str] = []
        at = 0
        for piece in self.pieces:
            if missing := piece.offset - at:
                found.append(f"... {missing} bytes left out ...")
            text = piece.data.decode(errors="backslashreplace").replace("\r\n", "\n").replace("\r", "\n")
            found += [plain(line.expandtabs()) for line in text.removesuffix("\n").split("\n")]
            at = piece.end
        return found


def read_log(dir_fd: int) -> PhaseLog:
    """Read the output files of a run directory, while they are written to or later.

    Raises:
        OSError: the file system failed.
    """
    offsets = sorted(int(match[1]) for name in os.listdir(dir_fd) if (match := OUTPUT_NAME.fullmatch(name)))
    pieces: list[Piece] = []
    for offset in offsets[:_MAX_PIECES]:
        try:
            fd = os.open(output_name(offset), _READ, dir_fd=dir_fd)
        except FileNotFoundError:
            continue  # made room for later output in this moment
        with os.fdopen(fd, "rb") as file:
            data = file.read(_MAX_PIECE)
        if pieces and pieces[-1].end == offset:
            pieces[-1] = Piece(offset=pieces[-1].offset, data=pieces[-1].data + data)
        elif data:
            pieces.append(Piece(offset=offset, data=data))
    return PhaseLog(pieces=tuple(pieces))
