"""Shape checks of single values; every refusal is a :class:`RecordError` that names the member."""

from __future__ import annotations

from collections.abc import Mapping

from ticket_agent.journal.errors import RecordError

__all__ = ["MAX_DEPTH", "MAX_U64", "boolean", "integer", "line", "mapping", "nesting", "text"]

MAX_U64 = 2**64 - 1
MAX_DEPTH = 32
"""Deepest nesting of a plan or of evidence."""
_CONTROLS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)])


def integer(value: object, what: str, low: int, high: int) -> None:
    """Refuse everything but an integer of ``low..=high``; a boolean is no integer."""
    if type(value) is not int:
        raise RecordError(f"{what} must be an integer")
    if not low <= value <= high:
        raise RecordError(f"{what} must be in {low}..={high}, not {value}")


def boolean(value: object, what: str) -> None:
    """Refuse everything but true and false."""
    if not isinstance(value, bool):
        raise RecordError(f"{what} must be true or false")


def mapping(value: object, what: str) -> None:
    """Refuse everything but a mapping, which is an object in JSON."""
    if not isinstance(value, Mapping):
        raise RecordError(f"{what} must be an object")


def text(value: object, what: str, max_bytes: int) -> None:
    """Refuse everything but a string of 1..=``max_bytes`` bytes of UTF-8."""
    if not isinstance(value, str):
        raise RecordError(f"{what} must be a string")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise RecordError(f"{what} holds a lone surrogate") from None
    if not 1 <= size <= max_bytes:
        raise RecordError(f"{what} must have 1..={max_bytes} bytes, not {size}")


def line(value: object, what: str, max_bytes: int) -> None:
    """Refuse everything but one line of text: as :func:`text`, and without control characters."""
    # Nearly every line of every record at every start is plain ASCII, so this way out is worth its place.
    if type(value) is str and value.isascii() and value.isprintable() and 0 < len(value) <= max_bytes:
        return
    text(value, what, max_bytes)
    if isinstance(value, str) and value.translate(_CONTROLS) != value:
        raise RecordError(f"{what} must not hold control characters")


def nesting(value: object, what: str, depth: int = 0) -> None:
    """Refuse what is nested deeper than 32 levels, whatever the caller's own depth in the stack is."""
    if depth > MAX_DEPTH:
        raise RecordError(f"{what} is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        for item in value.values():
            nesting(item, what, depth + 1)
    elif isinstance(value, list):
        for item in value:
            nesting(item, what, depth + 1)
