"""One table on its way into a record: rows are packed into entries as long as there is room. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.protocol.snapshot import SnapshotEntry

from .network_tables import (
    address_fields,
    address_items,
    address_row,
    info_head,
    info_text,
    link_fields,
    link_row,
    names_of,
    route_fields,
    route_row,
    statistics_names,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ticket_agent.protocol.snapshot_fitting import Room

__all__ = ["Shelf", "address_shelf", "link_shelf", "route_shelf", "split_address_shelf"]

ROUTES_PER_ENTRY: Final = 8
ROUTE_ENTRY_BYTES: Final = 768


@dataclass(slots=True, kw_only=True)
class Shelf:
    """Rows in the order in which they are to be shown, and the entries they have been put into so far.

    Attributes:
        kind: first part of the entries' paths.
        fields: entries with the names of columns; they are there when a row is.
        rows: each with the text before it; rows of one entry have the same text before them.
        text: a row as JSON; None for one that has no place in a record.
        seen: how many rows there are, with those that are not in ``rows`` because of their shape.
        tail: closes an entry.
        most_rows: of one entry.
        most_bytes: of one entry's value, if the record's bounds allow for more; None for no such limit.
        entries: those placed so far, without ``fields``.
        shown: the rows in them.
    """

    kind: str
    fields: Sequence[SnapshotEntry]
    rows: Sequence[tuple[str, Any]]
    text: Callable[[Any], str | None]
    seen: int
    tail: str = ""
    most_rows: int = 1
    most_bytes: int | None = None
    entries: list[SnapshotEntry] = field(default_factory=list)
    shown: list[Any] = field(default_factory=list)
    _next: int = 0

    def place(self, room: Room) -> bool:
        """Put one more entry into the room, with as many rows as it takes; False when none is left that fits.

        Rows that no entry can hold are passed over.
        """
        fields = () if self.entries else self.fields
        rows: list[Any] = []
        texts: list[str] = []
        best: SnapshotEntry | None = None
        head = ""
        while self._next < len(self.rows) and len(texts) < self.most_rows:
            own_head, row = self.rows[self._next]
            text = self.text(row)
            if text is not None:
                if texts and own_head != head:
                    break
                head = own_head
                value = f"{head}{','.join([*texts, text])}{self.tail}"
                entry = SnapshotEntry(f"{self.kind}/{len(self.entries)}", value)
                if self._admits(entry, room):
                    if not room.holds(*fields, entry):
                        break
                    texts.append(text)
                    rows.append(row)
                    best = entry
                elif texts:
                    break
            self._next += 1
        if best is None:
            return False
        room.take(*fields, best)
        self.entries.append(best)
        self.shown += rows
        return True

    def _admits(self, entry: SnapshotEntry, room: Room) -> bool:
        if self.most_bytes is not None and len(entry.value.encode("utf-8")) > self.most_bytes:
            return False
        return room.admits(entry)


def link_shelf(links: Sequence[object]) -> Shelf:
    """One link per entry."""
    names, within = names_of(statistics_names(row) for row in links)
    return Shelf(
        kind="links",
        fields=link_fields(names),
        rows=[("", row) for row, good in zip(links, within, strict=True) if good],
        text=lambda row: link_row(row, names),
        seen=len(links),
    )


def address_shelf(addresses: Sequence[object]) -> Shelf:
    """All addresses of one link per entry; links without any have an entry too."""

    def keys(row: object) -> set[str] | None:
        items = address_items(row)
        return None if items is None else {name for item in items for name in item}

    names, within = names_of(keys(row) for row in addresses)
    return Shelf(
        kind="addresses",
        fields=address_fields(names),
        rows=[("", row) for row, good in zip(addresses, within, strict=True) if good],
        text=lambda row: address_row(row, names),
        seen=len(addresses),
    )


def split_address_shelf(addresses: Sequence[object]) -> Shelf:
    """As many addresses of one link per entry as it takes; a row of another shape is seen as one address."""
    found: list[tuple[str, dict[str, Any]]] = []
    odd = 0
    for row in addresses:
        items, head = address_items(row), info_head(row)
        if items is None:
            odd += 1
        elif head is None:
            odd += len(items)
        else:
            found += [(head, item) for item in items]
    names, within = names_of(set(item) for _, item in found)
    return Shelf(
        kind="addresses",
        fields=address_fields(names),
        rows=[pair for pair, good in zip(found, within, strict=True) if good],
        text=lambda item: info_text(item, names),
        seen=odd + len(found),
        tail="]]",
        most_rows=len(found),
    )


def route_shelf(routes: Sequence[object]) -> Shelf:
    """Up to 8 routes and 768 bytes per entry."""
    return Shelf(
        kind="routes",
        fields=route_fields(),
        rows=[("[", row) for row in routes],
        text=route_row,
        seen=len(routes),
        tail="]",
        most_rows=ROUTES_PER_ENTRY,
        most_bytes=ROUTE_ENTRY_BYTES,
    )
