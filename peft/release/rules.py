"""What the members of release documents must be, one function for each kind of value.

Each takes a value as JSON or a caller gave it, whatever its type, and returns it unchanged or raises
:class:`DocumentError` with the member's name.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ticket_agent.peft.names import shown
from ticket_agent.peft.release.canonical import check_float
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.protocol.tokens import SHA256_PATTERN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

__all__ = [
    "MAX_OPERATION_ID",
    "array",
    "check_operation_id",
    "choice",
    "digest_text",
    "exact",
    "field_names",
    "flag",
    "integer",
    "is_operation_id",
    "number",
    "pairs",
    "refuse",
    "sorted_names",
    "text",
]

MAX_OPERATION_ID: Final = 64

_OPERATION_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
_SHA256 = re.compile(SHA256_PATTERN)


def refuse(member: str, rule: str, *, code: str = "release-document") -> NoReturn:
    """Raise the refusal of one member."""
    raise DocumentError(f"{member} must be {rule}", rule=code)


def check_operation_id(value: object, member: str = "operation_id") -> str:
    """An operation's or a recovery's id, as the most particular of all that use it as a name wants it.

    It becomes part of directories, unit names and tickets; only the intersection of their rules is accepted.
    """
    if not isinstance(value, str) or not is_operation_id(value):
        refuse(
            member,
            f"1..={MAX_OPERATION_ID} ASCII letters, digits, _ or - without a leading -",
            code="release-operation-id",
        )
    return value


def is_operation_id(value: str) -> bool:
    """Whether :func:`check_operation_id` accepts it."""
    return _OPERATION_ID.fullmatch(value) is not None


def digest_text(value: object, member: str, *, code: str = "release-artifact-identity") -> str:
    """A SHA-256 in lowercase hexadecimal digits."""
    if not isinstance(value, str) or _SHA256.fullmatch(value) is None:
        refuse(member, "a SHA-256 of 64 lowercase hexadecimal digits", code=code)
    return value


def integer(value: object, member: str, low: int, high: int, *, code: str = "release-bounds") -> int:
    """An integer in ``low..=high``; true and false are none."""
    if type(value) is not int or not low <= value <= high:
        refuse(member, str(low) if low == high else f"an integer in {low}..={high}", code=code)
    return value


def number(value: object, member: str, *, code: str = "release-bounds") -> float:
    """A number with a fraction that everybody prints alike; an integer is another spelling and refused."""
    if type(value) is not float:
        refuse(member, "a number with a fraction, like 4.0", code=code)
    try:
        check_float(value)
    except DocumentError as error:
        raise DocumentError(f"{member} {error.reason}", rule=code) from None
    return value


def flag(value: object, member: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        refuse(member, "true or false")
    return value


def text(value: object, member: str, max_bytes: int, *, ascii_only: bool = True) -> str:
    """1..=``max_bytes`` bytes of printable text."""
    good = (
        isinstance(value, str)
        and value.isprintable()
        and (value.isascii() or not ascii_only)
        and 1 <= len(value.encode("utf-8")) <= max_bytes
    )
    if not good or not isinstance(value, str):
        refuse(member, f"1..={max_bytes} bytes of printable {'ASCII ' if ascii_only else ''}text")
    return value


def choice(value: object, member: str, options: Collection[object], *, code: str = "release-bounds") -> Any:
    """One of ``options``, of the same type as the option."""
    if not any(type(value) is type(option) and value == option for option in options):
        refuse(member, " or ".join(_json(option) for option in options), code=code)
    return value


def array(value: object, member: str, low: int, high: int) -> tuple[Any, ...]:
    """A list of ``low..=high`` items; as a frozen value."""
    if not isinstance(value, list | tuple) or not low <= len(value) <= high:
        refuse(member, f"a list of {low}..={high} items")
    return tuple(value)


def sorted_names(value: object, member: str) -> dict[str, Any]:
    """An object with members of any names."""
    if not isinstance(value, dict):
        refuse(member, "an object")
    return value


def exact(value: object, names: Iterable[str], member: str = "") -> dict[str, Any]:
    """An object that has all of ``names`` as members and no other one; ``member`` is empty for a document."""
    where = f"{member}." if member else ""
    if not isinstance(value, dict):
        refuse(member or "the document", "an object")
    wanted = list(names)
    for name in value:
        if name not in wanted:
            raise DocumentError(f"has an unknown member {where}{shown(str(name))}", rule="member-unknown")
    for name in wanted:
        if name not in value:
            raise DocumentError(f"has no member {where}{name}", rule="member-missing")
    return value


def field_names(cls: type) -> tuple[str, ...]:
    """The fields of a dataclass in the order of their definition."""
    return tuple(field.name for field in fields(cls))


def pairs(values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """An object as a frozen value: its members sorted by name."""
    return tuple(sorted(values.items()))


def _json(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case _:
            return str(value)
