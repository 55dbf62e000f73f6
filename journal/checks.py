"""Shape checks of single values; every refusal is a :class:`RecordError` that names the member."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ticket_agent.journal.errors import RecordError

if TYPE_CHECKING:
    from ticket_agent.journal.outcome import JsonValue

__all__ = [
    "MAX_DEPTH",
    "MAX_U64",
    "boolean",
    "integer",
    "line",
    "mapping",
    "nesting",
    "plain",
    "plain_members",
    "text",
]

MAX_U64 = 2**64 - 1
MAX_DEPTH = 32
"""Deepest nesting of a plan or of evidence."""
_SCALARS = (str, int)
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


def plain(value: object, what: str, depth: int = 0) -> JsonValue:
    """Return a private copy of a value that will come back from JSON as the same value, and refuse any other.

    Allowed are null, booleans, integers, strings, lists and objects with string names, to a depth of 32.
    """
    if depth > MAX_DEPTH:
        raise RecordError(f"{what} is nested deeper than {MAX_DEPTH} levels")
    if value is None or isinstance(value, _SCALARS):
        return value
    if isinstance(value, list):
        return [plain(item, what, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return plain_members(value, what, depth)
    raise RecordError(f"{what} holds a {type(value).__name__}, which JSON cannot carry exactly")


def plain_members(value: Mapping[Any, object], what: str, depth: int = 0) -> dict[str, JsonValue]:
    """As :func:`plain`, of an object."""
    members: dict[str, JsonValue] = {}
    for name, item in value.items():
        if not isinstance(name, str):
            raise RecordError(f"{what} has a member name that is not a string")
        members[name] = plain(item, what, depth + 1)
    return members
