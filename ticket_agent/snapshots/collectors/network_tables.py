"""The tables of ``ip -json`` as arrays of declared columns. Pure.

Column names stand once, in entries of their own, and each row is an array in their order with null for what a
row does not have. Names inside a row's counters and addresses are whatever this ``ip`` prints, up to 32 names
of 64 bytes; a row that would bring more, or that has another shape, is in no table.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.protocol.collecting import fact
from ticket_agent.protocol.errors import JsonError
from ticket_agent.protocol.json_strict import dumps

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ticket_agent.protocol.snapshot import SnapshotEntry

__all__ = [
    "ADDRESS_COLUMNS",
    "LINK_COLUMNS",
    "ROUTE_COLUMNS",
    "Tables",
    "address_fields",
    "address_items",
    "address_row",
    "info_head",
    "info_text",
    "link_fields",
    "link_row",
    "names_of",
    "parse_rows",
    "route_fields",
    "route_row",
    "rows_digest",
    "statistics_names",
]

LINK_COLUMNS: Final = ("ifindex", "ifname", "flags", "mtu", "operstate", "address", "stats64", "stats")
ADDRESS_COLUMNS: Final = ("ifindex", "ifname", "addr_info")
ROUTE_COLUMNS: Final = (
    "dst",
    "gateway",
    "dev",
    "protocol",
    "scope",
    "prefsrc",
    "metric",
    "table",
    "type",
    "flags",
)
MAX_NAMES: Final = 32
MAX_NAME_BYTES: Final = 64

_COUNTERS: Final = ("stats64", "stats")
_DIRECTIONS: Final = ("rx", "tx")
_RUNNING: Final = frozenset({*_COUNTERS, "valid_life_time", "preferred_life_time", "expires", "used", "age"})
"""Members that change by themselves while the configuration stays as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What ``ip`` printed; None for a table that is larger than what is read of one."""

    links: Sequence[object] | None
    addresses: Sequence[object] | None
    routes: Sequence[object] | None


def parse_rows(data: bytes) -> list[object]:
    """Read one table.

    Interface names are bytes: what is not UTF-8 becomes lone surrogates, and then the row has no place in
    a record.

    Raises:
        ValueError: no JSON array.
        RecursionError: nested too deep.
    """
    rows = json.loads(data.decode("utf-8", "surrogateescape"))
    if not isinstance(rows, list):
        raise ValueError("not an array")  # noqa: TRY004 - it is the text that is wrong
    return rows


def rows_digest(rows: Sequence[object]) -> str:
    """SHA-256 of the whole table as compact JSON, members sorted, without counters and running lifetimes."""
    digest = hashlib.sha256()
    for number, row in enumerate(rows):
        text = json.dumps(_still(row), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        digest.update(b"," if number else b"[")
        digest.update(text.encode("utf-8", "surrogatepass"))
    digest.update(b"]" if rows else b"[]")
    return digest.hexdigest()


def _still(row: object) -> object:
    if not isinstance(row, dict):
        return row
    still = {name: value for name, value in row.items() if name not in _RUNNING}
    if isinstance(still.get("addr_info"), list):
        still["addr_info"] = [_still(info) for info in still["addr_info"]]
    return still


def names_of(key_sets: Iterable[set[str] | None]) -> tuple[tuple[str, ...], list[bool]]:
    """The sorted union of names, and which rows are within it.

    Args:
        key_sets: the names of each row, None for a row of another shape; the first ones come first when there
            are more names than may be.
    """
    union: set[str] = set()
    within = []
    for keys in key_sets:
        fits = keys is not None and (
            keys <= union or (all(_short(key) for key in keys - union) and len(union | keys) <= MAX_NAMES)
        )
        if fits and keys is not None:
            union |= keys
        within.append(fits)
    return tuple(sorted(union)), within


def _short(key: str) -> bool:
    return key.isprintable() and len(key.encode("utf-8")) <= MAX_NAME_BYTES


def statistics_names(row: object) -> set[str] | None:
    """Names of a link's counters; None when it is no link."""
    if not isinstance(row, dict):
        return None
    names: set[str] = set()
    for counter in _COUNTERS:
        cell = row.get(counter)
        if cell is None:
            continue
        if not isinstance(cell, dict):
            return None
        for direction in _DIRECTIONS:
            counts = cell.get(direction, {})
            if not isinstance(counts, dict):
                return None
            names |= counts.keys()
    return names


def link_fields(names: Sequence[str]) -> list[SnapshotEntry]:
    """The entries that name a link's columns and those of its counters."""
    return [fact("fields/links", LINK_COLUMNS), fact("fields/link-stats", names)]


def link_row(row: Any, names: Sequence[str]) -> str | None:
    """One link as JSON text; None when it has none.

    Args:
        row: one for which :func:`statistics_names` found the names.
        names: columns of the counters.
    """
    values = [row.get(column) for column in LINK_COLUMNS]
    for position, column in enumerate(LINK_COLUMNS):
        cell = row.get(column)
        if column in _COUNTERS and cell is not None:
            values[position] = {
                direction: [cell.get(direction, {}).get(name) for name in names] for direction in _DIRECTIONS
            }
    return _text(values)


def address_items(row: object) -> list[dict[str, Any]] | None:
    """The addresses of one link; None when the row has another shape."""
    if not isinstance(row, dict):
        return None
    items = row.get("addr_info", [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return None
    return items


def address_fields(names: Sequence[str]) -> list[SnapshotEntry]:
    """The entries that name the columns of a link's addresses and those of one address."""
    return [fact("fields/addresses", ADDRESS_COLUMNS), fact("fields/address-info", names)]


def address_row(row: Any, names: Sequence[str]) -> str | None:
    """All addresses of one link as JSON text; None when they have none."""
    infos = [[info.get(name) for name in names] for info in row.get("addr_info", [])]
    return _text([row.get("ifindex"), row.get("ifname"), infos])


def info_head(row: Any) -> str | None:
    """What comes before the addresses of a link in its row; None when that has no JSON text."""
    text = _text([row.get("ifindex"), row.get("ifname")]) if isinstance(row, dict) else None
    return None if text is None else f"{text[:-1]},["


def info_text(info: Any, names: Sequence[str]) -> str | None:
    """One address as JSON text; None when it has none."""
    return _text([info.get(name) for name in names])


def route_fields() -> list[SnapshotEntry]:
    """The entry that names a route's columns."""
    return [fact("fields/routes", ROUTE_COLUMNS)]


def route_row(row: object) -> str | None:
    """One route as JSON text; None when it is no route."""
    return _text([row.get(column) for column in ROUTE_COLUMNS]) if isinstance(row, dict) else None


def _text(value: object) -> str | None:
    try:
        return dumps(value).decode("utf-8")
    except JsonError:
        return None
