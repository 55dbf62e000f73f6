"""The rows that a candidate is trained and evaluated on: plain texts, and none of them in both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ticket_agent.peft.release.canonical import MAX_JSON_BYTES, decode_array, encode
from ticket_agent.peft.release.document_error import DocumentError, reading

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "MAX_ROWS",
    "MIN_ROWS",
    "MIN_TOKENS",
    "check_disjoint",
    "check_tokens",
    "encode_rows",
    "parse_rows",
]

MIN_ROWS: Final = 16
MAX_ROWS: Final = 256
MIN_CHARACTERS: Final = 16
MAX_CHARACTERS: Final = 2048
MIN_TOKENS: Final = 8
"""Of one row, after tokenizing: fewer give no loss worth comparing."""


def parse_rows(data: bytes, *, what: str, low: int = MIN_ROWS, high: int = MAX_ROWS) -> tuple[str, ...]:
    """Read a canonical list of rows.

    Args:
        data: the document, at most 262144 bytes.
        what: what to call it in error lines.
        low: fewest rows.
        high: most rows; for evaluation both bounds are the number that the profile says.

    Raises:
        DocumentError: anything but a list of ``low..=high`` different strings of 16..=2048 characters.
    """
    rows = decode_array(data, what=what)
    with reading(what):
        return _checked(rows, low, high)


def encode_rows(rows: Sequence[str], *, what: str, low: int = MIN_ROWS, high: int = MAX_ROWS) -> bytes:
    """Write rows canonically.

    Raises:
        DocumentError: as :func:`parse_rows`.
    """
    with reading(what):
        data = encode(_checked(rows, low, high))
        if len(data) > MAX_JSON_BYTES:
            raise DocumentError(
                f"takes {len(data)} bytes; the limit is {MAX_JSON_BYTES}", rule="json-too-long"
            )
    return data


def check_disjoint(train: Sequence[str], evaluation: Sequence[str]) -> None:
    """Refuse to evaluate on what was trained on.

    Raises:
        DocumentError: a row is in both.
    """
    known = set(train)
    for at, row in enumerate(evaluation):
        if row in known:
            raise DocumentError(
                f"evaluation row {at} is a training row too; keep the two distinct", rule="data-overlap"
            )


def check_tokens(counts: Sequence[int], *, what: str) -> None:
    """Refuse rows that are too short once they are tokenized.

    Args:
        counts: tokens of each row.
        what: what to call the rows in error lines.

    Raises:
        DocumentError: a row has fewer than 8 tokens.
    """
    for at, count in enumerate(counts):
        if count < MIN_TOKENS:
            raise DocumentError(f"{what}: row {at} has {count} tokens; at least {MIN_TOKENS} are needed")


def _checked(rows: Sequence[object], low: int, high: int) -> tuple[str, ...]:
    if not low <= len(rows) <= high:
        wanted = str(low) if low == high else f"{low}..={high}"
        raise DocumentError(f"has {len(rows)} rows; it must have {wanted}", rule="data-rows")
    seen: dict[str, int] = {}
    for at, row in enumerate(rows):
        if not isinstance(row, str) or not MIN_CHARACTERS <= len(row) <= MAX_CHARACTERS:
            raise DocumentError(
                f"row {at} must be text of {MIN_CHARACTERS}..={MAX_CHARACTERS} characters", rule="data-row"
            )
        if row in seen:
            raise DocumentError(
                f"rows {seen[row]} and {at} are the same; rows must be distinct", rule="data-rows"
            )
        seen[row] = at
    return tuple(seen)
