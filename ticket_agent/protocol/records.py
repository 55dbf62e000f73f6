"""Record lines of the root: ``key=value`` fields with single blanks between them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .errors import RecordLineError
from .tokens import U64_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["parse_fields", "parse_number", "parse_numbers"]

_DECIMAL = re.compile(r"0|[1-9][0-9]{0,19}")


def parse_fields(
    text: str, *, what: str, keys: Collection[str], optional: Collection[str] = ()
) -> dict[str, str]:
    """Split a record into its fields.

    Raises:
        RecordLineError: a field without ``=``, without value, repeated or unknown; a key of ``keys`` that is
            missing; blanks other than one between two fields.
    """
    fields: dict[str, str] = {}
    for field in text.split(" "):
        key, separator, value = field.partition("=")
        if not separator or not value:
            raise RecordLineError(f"{what}: {field[:64]!r} is no key=value field", code="record-field")
        if key in fields:
            raise RecordLineError(f"{what}: {key} appears more than once", code="record-repeated", member=key)
        if key not in keys and key not in optional:
            raise RecordLineError(f"{what}: unknown field {key[:64]}", code="record-unknown", member=key[:64])
        fields[key] = value
    for key in keys:
        if key not in fields:
            raise RecordLineError(f"{what}: field {key} is missing", code="record-missing", member=key)
    return fields


def parse_number(fields: Mapping[str, str], key: str, *, what: str, low: int = 0, high: int = U64_MAX) -> int:
    """Return the decimal number of a field, without sign and leading zeros.

    Raises:
        RecordLineError: no such number in ``low..=high``.
    """
    return _number(fields[key], key, what, low, high)


def parse_numbers(fields: Mapping[str, str], key: str, *, what: str, count: int) -> tuple[int, ...]:
    """Return the comma-separated numbers of a field.

    Raises:
        RecordLineError: not exactly ``count`` unsigned 64-bit numbers.
    """
    parts = fields[key].split(",")
    if len(parts) != count:
        raise RecordLineError(f"{what}: {key} must be {count} numbers", code="record-number", member=key)
    return tuple(_number(part, key, what, 0, U64_MAX) for part in parts)


def _number(text: str, key: str, what: str, low: int, high: int) -> int:
    if _DECIMAL.fullmatch(text) is not None and low <= int(text) <= high:
        return int(text)
    raise RecordLineError(
        f"{what}: {key} must be a decimal number in {low}..={high}", code="record-number", member=key
    )
