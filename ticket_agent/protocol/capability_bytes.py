"""The fields of a capability ticket's payload: little-endian numbers, ULEB128 in version 2, short texts."""

from __future__ import annotations

from typing import Final

from .errors import ProtocolError

__all__ = ["CapabilityError", "Reader", "Writer"]

MAX_TEXT_BYTES: Final = 255
U64_BYTES: Final = 8
_LENGTH_BYTES: Final = 2
_MORE: Final = 0x80
_MAX_GROUPS: Final = 10
"""Groups of seven bits that 64 bits need."""


class CapabilityError(ProtocolError):
    """Not a capability ticket, or claims that fit into none. The text never quotes the ticket."""


def _short() -> CapabilityError:
    return CapabilityError("the ticket ends in the middle of a field", code="ticket-short")


class Reader:
    """Reads fields from the front; every way in which a payload can be wrong is a :class:`CapabilityError`.

    Args:
        data: the payload.
        start: where to begin.
        compact: numbers are ULEB128 (version 2), and only their shortest form is legal.
    """

    def __init__(self, data: bytes, *, start: int, compact: bool) -> None:
        self._data = data
        self._at = start
        self._compact = compact

    def fixed(self, size: int) -> int:
        """Read a number of ``size`` bytes."""
        return int.from_bytes(self._take(size), "little")

    def number(self) -> int:
        """Read a number of 64 bits in the version's form."""
        return self._uleb() if self._compact else self.fixed(U64_BYTES)

    def text(self) -> str:
        """Read a text of at most 255 bytes."""
        length = self.fixed(_LENGTH_BYTES)
        if length > MAX_TEXT_BYTES:
            raise CapabilityError(
                f"a text of {length} bytes exceeds the {MAX_TEXT_BYTES} of a ticket's field",
                code="ticket-text",
            )
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise CapabilityError("a text of the ticket is not UTF-8", code="ticket-text") from None

    def end(self) -> None:
        """Require that nothing is left."""
        if self._at != len(self._data):
            raise CapabilityError("bytes follow the end of the ticket", code="ticket-trailing")

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) != size:
            raise _short()
        self._at += size
        return taken

    def _uleb(self) -> int:
        value = 0
        for group in range(_MAX_GROUPS):
            byte = self.fixed(1)
            value |= (byte & ~_MORE) << (7 * group)
            if byte & _MORE:
                continue
            if byte == 0 and group > 0:
                raise CapabilityError(
                    "a number of the ticket is not in its shortest form", code="ticket-canonical"
                )
            if value >> 64:
                break
            return value
        raise CapabilityError("a number of the ticket exceeds 64 bits", code="ticket-number")


class Writer:
    """Writes the fields that :class:`Reader` reads."""

    def __init__(self, *, compact: bool) -> None:
        self.data = bytearray()
        self._compact = compact

    def fixed(self, value: int, size: int) -> None:
        """Write a number of ``size`` bytes."""
        if not 0 <= value < 1 << (8 * size):
            raise CapabilityError(f"{value} does not fit into {size} bytes", code="ticket-number")
        self.data += value.to_bytes(size, "little")

    def number(self, value: int) -> None:
        """Write a number of 64 bits in the version's form."""
        if not self._compact:
            self.fixed(value, U64_BYTES)
            return
        if not 0 <= value < 1 << 64:
            raise CapabilityError(f"{value} does not fit into 64 bits", code="ticket-number")
        while value >= _MORE:
            self.data.append(value & ~_MORE & 0xFF | _MORE)
            value >>= 7
        self.data.append(value)

    def text(self, value: str) -> None:
        """Write a text of at most 255 bytes."""
        try:
            data = value.encode()
        except UnicodeEncodeError:
            raise CapabilityError("a text holds a lone surrogate", code="ticket-text") from None
        if len(data) > MAX_TEXT_BYTES:
            raise CapabilityError(
                f"a text of {len(data)} bytes exceeds the {MAX_TEXT_BYTES} of a ticket's field",
                code="ticket-text",
            )
        self.fixed(len(data), _LENGTH_BYTES)
        self.data += data
