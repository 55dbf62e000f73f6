"""Documents that only this program reads back, with numbers of any size in them: losses and their statistics.

They have one spelling too: members sorted by name, no blanks, UTF-8 as it is, each float in the fewest digits
that give it back. Other programs verify them over the bytes, and need not print a number to do so.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ticket_agent.peft.release.canonical import require_spelling
from ticket_agent.peft.release.document_error import reading
from ticket_agent.peft.release.rules import array, refuse
from ticket_agent.protocol.json_strict import dumps, parse_object, sorted_members

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["decode_spelled", "finite", "finite_floats", "is_finite", "spell"]


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


def is_finite(value: object) -> bool:
    """Tell whether a value is a float, and neither NaN nor infinite nor -0."""
    if not isinstance(value, float) or not math.isfinite(value):
        return False
    return value != 0 or math.copysign(1, value) > 0


def finite(value: object, member: str, *, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite float in ``low..=high``; an integer is another spelling and refused."""
    if not isinstance(value, float) or not is_finite(value) or not low <= value <= high:
        bounds = "" if low == -math.inf else f" in {low}..={high}"
        refuse(member, f"a finite number with a fraction{bounds}")
    return value


def finite_floats(value: object, member: str, *, count: int, low: float, high: float) -> tuple[float, ...]:
    """A list of exactly ``count`` such floats."""
    items: Sequence[object] = array(value, member, count, count)
    return tuple(finite(item, member, low=low, high=high) for item in items)
