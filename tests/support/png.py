"""Pixels of a PNG, as far as a browser's screenshots need it: 8 bits, RGB or RGBA, not interlaced."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

SIGNATURE = b"\x89PNG\r\n\x1a\n"

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Picture:
    width: int
    height: int
    channels: int
    rows: list[bytes]

    def at(self, x: float, y: float) -> Colour:
        """The colour of one pixel."""
        start = int(x) * self.channels
        red, green, blue = self.rows[int(y)][start : start + 3]
        return red, green, blue

    def colours(self, left: float, top: float, right: float, bottom: float) -> set[Colour]:
        """Every colour in a rectangle."""
        return {self.at(x, y) for y in range(int(top), int(bottom)) for x in range(int(left), int(right))}


def decode(data: bytes) -> Picture:
    assert data.startswith(SIGNATURE)
    packed, at = b"", len(SIGNATURE)
    width = height = channels = 0
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            assert (depth, interlaced) == (8, 0)
            channels = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            packed += body
        at += size + 12
    flat, stride = zlib.decompress(packed), width * channels
    rows: list[bytes] = []
    above = bytes(stride)
    for row in range(height):
        start = row * (stride + 1)
        above = _unfilter(flat[start], bytearray(flat[start + 1 : start + 1 + stride]), above, channels)
        rows.append(above)
    return Picture(width, height, channels, rows)


def _unfilter(kind: int, row: bytearray, above: bytes, step: int) -> bytes:
    if kind == 0:
        return bytes(row)
    if kind == 2:
        return bytes([(value + up) & 255 for value, up in zip(row, above, strict=True)])
    for at, value in enumerate(row):
        left = row[at - step] if at >= step else 0
        up = above[at]
        corner = above[at - step] if at >= step else 0
        if kind == 1:
            guess = left
        elif kind == 3:
            guess = (left + up) // 2
        else:
            estimate = left + up - corner
            guess = min((left, up, corner), key=lambda near: abs(estimate - near))
        row[at] = (value + guess) & 255
    return bytes(row)
