"""Documents that only this program reads back, with numbers of any size in them: losses and their statistics.

They have one spelling too: members sorted by name, no blanks, UTF-8 as it is, each float in the fewest digits
that give it back. Other programs verify them over the bytes, and need not print a number to do so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ticket_agent.peft.release.canonical import require_spelling
from ticket_agent.peft.release.document_error import reading
from ticket_agent.peft.release.rules import array, refuse
from ticket_agent.protocol.json_strict import dumps, parse_object, sorted_members

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["decode_spelled", "finite", "finite_floats", "spell"]


def spell(value: object) -> bytes:
    """Return the one spelling of a value of JSON.

    Raises:
        JsonError: it has none.
    """
    return dumps(sorted_members(value))


def decode_spelled(data: bytes, *, what: str, max_bytes: int) -> dict[str, Any]:
    """Read an object in its one spelling.

    Raises:
        DocumentError: anything else; the line begins with ``what``.
    """
    with reading(what):
        value = parse_object(data, what="the document", max_bytes=max_bytes)
        require_spelling(data, spell(value))
    return value


def finite(value: object, member: str, *, low: float, high: float) -> float:
    """A float in ``low..=high``, which are finite; an integer is another spelling and refused, like -0.0."""
    # NaN is in no range.
    if not isinstance(value, float) or not low <= value <= high or str(value) == "-0.0":
        refuse(member, f"a number with a fraction in {low}..={high}")
    return value


def finite_floats(value: object, member: str, *, count: int, low: float, high: float) -> tuple[float, ...]:
    """A list of exactly ``count`` such floats."""
    items: Sequence[object] = array(value, member, count, count)
    return tuple(finite(item, member, low=low, high=high) for item in items)
