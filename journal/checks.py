"""Shape checks of single values; every refusal is a :class:`RecordError` that names the member."""

from __future__ import annotations

from collections.abc import Mapping

from ticket_agent.journal.errors import RecordError

__all__ = ["MAX_U64", "boolean", "integer", "json_value", "line", "mapping", "text"]

MAX_U64 = 2**64 - 1
MAX_DEPTH = 32
_MIN_I64 = -(2**63)
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
    text(value, what, max_bytes)
    # A printable string holds no control character, and finding that out costs one pass in C.
    if isinstance(value, str) and not value.isprintable() and value.translate(_CONTROLS) != value:
        raise RecordError(f"{what} must not hold control characters")


def json_value(value: object, what: str, depth: int = 0) -> None:
    """Refuse what would not come back from JSON as the same value.

    Allowed are null, booleans, 64-bit integers, strings, lists and objects with string names, to a depth of
    32.
    """
    if depth > MAX_DEPTH:
        raise RecordError(f"{what} is nested deeper than {MAX_DEPTH} levels")
    if value is None or isinstance(value, str | bool):
        return
    if isinstance(value, int):
        integer(value, what, _MIN_I64, MAX_U64)
    elif isinstance(value, list):
        for item in value:
            json_value(item, what, depth + 1)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(name, str):
                raise RecordError(f"{what} has a member name that is not a string")
            json_value(item, what, depth + 1)
    else:
        raise RecordError(f"{what} holds a {type(value).__name__}, which JSON cannot carry exactly")
