"""Taking a JSON object apart, member by member, so that nothing unknown and nothing of a wrong type stays."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ticket_agent.peft.names import shown
from ticket_agent.protocol.errors import JsonError
from ticket_agent.protocol.json_strict import dumps, parse_object, sorted_members
from ticket_agent.protocol.text import has_control
from ticket_agent.protocol.tokens import SHA256_PATTERN, U64_MAX

if TYPE_CHECKING:
    from collections.abc import Collection

    from ticket_agent.peft.errors import PeftError

__all__ = ["Fields", "fields_of", "sorted_json"]

_SHA256: Final = re.compile(SHA256_PATTERN)


def sorted_json(value: object) -> bytes:
    """Encode our own documents: members sorted by name, no blanks, UTF-8, the shortest floats."""
    return dumps(sorted_members(value))


def fields_of(data: bytes, *, what: str, max_bytes: int, error: type[PeftError]) -> Fields:
    """Decode one strict JSON object.

    Raises:
        PeftError: of the class ``error``.
    """
    try:
        return Fields(parse_object(data, what=what, max_bytes=max_bytes), what=what, error=error)
    except JsonError as refused:
        raise error(str(refused)) from refused


class Fields:
    """The members of one object; each that is asked for is known, and :meth:`end` refuses any other.

    Every method raises the class ``error`` and names the member.
    """

    def __init__(self, value: object, *, what: str, error: type[PeftError]) -> None:
        self.what: Final = what
        self._error: Final = error
        if not isinstance(value, dict):
            raise error(f"{what} must be an object")
        self._members: Final[dict[str, Any]] = value
        self._known: Final[set[str]] = set()

    def text(self, name: str, *, max_bytes: int) -> str:
        """A string of 1..=``max_bytes`` bytes without control characters."""
        value = self._take(name)
        if not isinstance(value, str) or not 1 <= len(value.encode()) <= max_bytes or has_control(value):
            self.refuse(name, f"must be 1..={max_bytes} bytes of text without control characters")
        return value

    def optional_text(self, name: str, *, max_bytes: int) -> str | None:
        """The same, or null."""
        return None if self._is_null(name) else self.text(name, max_bytes=max_bytes)

    def one_of(self, name: str, values: Collection[str]) -> str:
        """One of the known words."""
        value = self._take(name)
        if not isinstance(value, str) or value not in values:
            self.refuse(name, f"must be one of {', '.join(values)}")
        return value

    def constant(self, name: str, expected: object) -> None:
        """Exactly this value, of this type."""
        value = self._take(name)
        if type(value) is not type(expected) or value != expected:
            self.refuse(name, f"must be {dumps(expected).decode()}")

    def sha256(self, name: str) -> str:
        """A SHA-256 in lowercase hexadecimal digits."""
        value = self._take(name)
        if not isinstance(value, str) or _SHA256.fullmatch(value) is None:
            self.refuse(name, "must be a SHA-256 of 64 lowercase hexadecimal digits")
        return value

    def optional_sha256(self, name: str) -> str | None:
        """The same, or null."""
        return None if self._is_null(name) else self.sha256(name)

    def integer(self, name: str, *, low: int = 0, high: int = U64_MAX) -> int:
        """An integer in ``low``..=``high``."""
        value = self._take(name)
        if type(value) is not int or not low <= value <= high:
            self.refuse(name, f"must be an integer in {low}..={high}")
        return value

    def number(self, name: str) -> float:
        """A float; an integer is another text for the same number and is refused."""
        value = self._take(name)
        if not is_number(value):
            self.refuse(name, "must be a finite number with a decimal point")
        return float(value)

    def boolean(self, name: str) -> bool:
        """True or false."""
        value = self._take(name)
        if not isinstance(value, bool):
            self.refuse(name, "must be true or false")
        return value

    def array(self, name: str, *, low: int = 0, high: int) -> list[Any]:
        """An array of ``low``..=``high`` items."""
        value = self._take(name)
        if not isinstance(value, list) or not low <= len(value) <= high:
            self.refuse(name, f"must be an array of {low}..={high} items")
        return value

    def object(self, name: str) -> Fields:
        """An object."""
        return Fields(self._take(name), what=f"{self.what}: {name}", error=self._error)

    def optional_object(self, name: str) -> Fields | None:
        """An object, or null."""
        return None if self._is_null(name) else self.object(name)

    def objects(self, name: str, *, low: int = 0, high: int) -> list[Fields]:
        """An array of ``low``..=``high`` objects."""
        items = self.array(name, low=low, high=high)
        return [
            Fields(item, what=f"{self.what}: {name}.{index}", error=self._error)
            for index, item in enumerate(items)
        ]

    def texts(self, name: str, *, low: int = 0, high: int, max_bytes: int) -> tuple[str, ...]:
        """An array of different strings as :meth:`text` takes them."""
        items = self.array(name, low=low, high=high)
        for item in items:
            if not isinstance(item, str) or not 1 <= len(item.encode()) <= max_bytes or has_control(item):
                self.refuse(name, f"must hold strings of 1..={max_bytes} bytes without control characters")
        if len(set(items)) != len(items):
            self.refuse(name, "names something twice")
        return tuple(items)

    def has(self, name: str) -> bool:
        """Tell whether a member is there, so that an optional one can be asked for."""
        return name in self._members

    def raw(self, name: str) -> Any:
        """The value as it is; the caller judges it."""
        return self._take(name)

    def names(self) -> list[str]:
        """All members, for an object whose names are data."""
        return list(self._members)

    def end(self) -> None:
        """Refuse members that nobody asked for."""
        for name in self._members:
            if name not in self._known:
                self.refuse(name, "is not known")

    def refuse(self, name: str, why: str) -> NoReturn:
        """Say what is wrong with a member."""
        raise self._error(f"{self.what}: {shown(name)} {why}")

    def _is_null(self, name: str) -> bool:
        return self._take(name) is None

    def _take(self, name: str) -> Any:
        self._known.add(name)
        if name not in self._members:
            self.refuse(name, "is missing")
        return self._members[name]


def is_number(value: object) -> bool:
    """Tell whether a value is a finite float, the only form in which metrics and losses are written."""
    return isinstance(value, float) and math.isfinite(value)
