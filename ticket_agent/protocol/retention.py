"""What each ticket log still holds: ``<mount>/tickets/retention`` (namespace semantics: host tickets).

Offsets count bytes since the hive's boot. They tell lost records from records that never were, and a reboot
from an empty log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import RecordLineError
from .records import parse_fields, parse_number

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["LOGS", "Retention", "encode_retention", "parse_retention"]

PREFIX = "HOST_TICKET_RETENTION "
SCHEMA = "v1"
LOGS = ("spec", "status", "deadletter", "spec.snapshot", "status.snapshot", "deadletter.snapshot")
"""The logs, in the order root lists them."""
_NUMBERS = ("base", "next", "retained_bytes", "retained_wire_lines", "dropped_lines", "dropped_bytes")
_WHAT = "retention record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """State of one log.

    Attributes:
        path: name of the log below the tickets directory.
        base: offset of the oldest retained byte.
        next: offset of the next byte that will be appended.
        retained_bytes: bytes held, newlines included.
        retained_wire_lines: wire lines that the held records take, C1 frames counted singly.
        dropped_lines: records evicted since boot.
        dropped_bytes: their bytes.
    """

    path: str
    base: int
    next: int
    retained_bytes: int
    retained_wire_lines: int
    dropped_lines: int
    dropped_bytes: int


def parse_retention(lines: Iterable[str]) -> dict[str, Retention]:
    """Read the records of one answer, by log; blank lines are skipped.

    Raises:
        RecordLineError: another line, an unknown or repeated log, or offsets that run backwards.
    """
    records: dict[str, Retention] = {}
    for line in lines:
        if not line.strip():
            continue
        record = _parse(line)
        if record.path in records:
            raise RecordLineError(
                f"{_WHAT}: {record.path} is listed twice", code="record-repeated", member="path"
            )
        records[record.path] = record
    return records


def encode_retention(value: Retention) -> str:
    """Write one record as root does, without a newline."""
    numbers = " ".join(f"{name}={getattr(value, name)}" for name in _NUMBERS)
    return f"{PREFIX}schema={SCHEMA} path={value.path} {numbers}"


def _parse(line: str) -> Retention:
    if not line.startswith(PREFIX):
        raise RecordLineError(f"{_WHAT}: expected {PREFIX.strip()}, got {line[:64]!r}", code="record-prefix")
    fields = parse_fields(line.removeprefix(PREFIX), what=_WHAT, keys=("schema", "path", *_NUMBERS))
    if fields["schema"] != SCHEMA:
        raise RecordLineError(f"{_WHAT}: schema must be {SCHEMA}", code="record-schema", member="schema")
    if fields["path"] not in LOGS:
        raise RecordLineError(
            f"{_WHAT}: unknown log {fields['path'][:64]}", code="record-path", member="path"
        )
    numbers = {name: parse_number(fields, name, what=_WHAT) for name in _NUMBERS}
    if numbers["base"] > numbers["next"]:
        raise RecordLineError(f"{_WHAT}: base lies behind next", code="record-number", member="base")
    return Retention(path=fields["path"], **numbers)
