"""The network's entries within the bounds of a record. Pure: equal tables and bounds give equal entries.

If all tables fit, they are what is published, every row in the order in which ``ip`` printed it:

``source``; ``fields/links``, ``fields/link-stats``, ``links/<n>``; ``fields/addresses``,
``fields/address-info``, ``addresses/<n>``; ``fields/routes``, ``routes/<n>``, each with up to 8 routes and
768 bytes.

If they do not, there is one more entry, and from it a reader can tell how much it does not see:

``projection``
    For ``links``, ``addresses`` and ``routes`` how many were ``seen`` and how many are ``shown``, and in
    ``sha256`` the digest of each whole table as compact JSON with sorted members, without counters and
    running lifetimes: it changes when something changes, in a row that is left out too. ``seen`` and the
    digest are null for a table that is larger than what is read of one. Addresses are counted one by one,
    not by link.
``groups/<kind>``
    The links left out, by kind: how many, how many of them up, and their bytes in sum. Kinds are the kernel's
    or names without a number (``veth1a2b3c`` is a ``veth``); rare ones are together in ``other``. All groups
    together are all links left out; there are none when the bounds are too small for any.
``links/<n>``, ``addresses/<n>``, ``routes/<n>``
    As above, numbered anew in the order of importance, with their ``fields`` if there is any row. A link
    whose addresses take more than one value has several entries, one after the other.

Rows are put in by turns until nothing more fits: one group of routes, then three times a link and addresses
of a link. Links with a default route come first, then links that are up with hardware behind them, then
others that are up, then the rest; addresses follow the order of their links; default routes come first, then
the main table, IPv4 before IPv6. A row too long for any value, or of another shape, is left out and counted
like every other one. There is no limit on rows as such: 40 short ones are shown like 4.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.protocol.collecting import fact
from ticket_agent.protocol.snapshot_fitting import Room, entry_bytes, no_room

from .network_ranks import (
    OTHER,
    is_up,
    link_kind,
    octets,
    ranked_addresses,
    ranked_links,
    ranked_routes,
)
from .network_shelf import Shelf, address_shelf, link_shelf, route_shelf, split_address_shelf
from .network_tables import rows_digest

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ticket_agent.protocol.snapshot import SnapshotBounds, SnapshotEntry

    from .network_tables import Tables

__all__ = ["SOURCE", "project"]

SOURCE: Final = "iproute2-rtnetlink-json"
KINDS: Final = ("links", "addresses", "routes")
MOST_GROUPS: Final = 6
"""Kinds of links with a group of their own."""
GROUPS_SHARE: Final = 4
"""Groups take at most one part in four of the room."""

_TURNS: Final = ("routes", *("links", "addresses") * 3)


def project(tables: Tables, bounds: SnapshotBounds) -> list[SnapshotEntry]:
    """Return the entries of a record that holds the tables, or as much of them as it can.

    Raises:
        CollectError: ``source_failed``, the bounds do not even hold the entry that says what is missing.
        RecursionError: a row nests too deep.
    """
    entries = _complete(tables, bounds)
    return _Part(tables, bounds).entries() if entries is None else entries


def _complete(tables: Tables, bounds: SnapshotBounds) -> list[SnapshotEntry] | None:
    """All rows of all tables; None when they do not fit, or one of them has no place."""
    if tables.links is None or tables.addresses is None or tables.routes is None:
        return None
    room = Room(bounds)
    entries = [fact("source", SOURCE)]
    for shelf in (link_shelf(tables.links), address_shelf(tables.addresses), route_shelf(tables.routes)):
        while shelf.place(room):
            pass
        if len(shelf.shown) != shelf.seen:
            return None
        # The names of columns are there for an empty table as well.
        entries += [*shelf.fields, *shelf.entries]
    return entries if Room(bounds).take(*entries) else None


class _Part:
    """What is shown of tables that do not fit."""

    def __init__(self, tables: Tables, bounds: SnapshotBounds) -> None:
        self._bounds: Final = bounds
        self._native: Final = {"links": tables.links, "addresses": tables.addresses, "routes": tables.routes}
        self._links: Final = ranked_links(tables.links or (), tables.routes or ())
        self._addresses: Final = ranked_addresses(tables.addresses or (), self._links)
        self._routes: Final = ranked_routes(tables.routes or ())
        self._digests: Final = {
            kind: None if rows is None else rows_digest(rows) for kind, rows in self._native.items()
        }

    def entries(self) -> list[SnapshotEntry]:
        """The entries; groups take room only if links are left out without them."""
        entries, left_out = self._filled(grouped=False)
        return self._filled(grouped=True)[0] if left_out else entries

    def _filled(self, *, grouped: bool) -> tuple[list[SnapshotEntry], int]:
        shelves = self._shelves()
        room = Room(self._bounds)
        source = fact("source", SOURCE)
        # The widest it can get: no more is shown than was seen.
        widest = self._projection(shelves, {kind: shelf.seen for kind, shelf in shelves.items()})
        for entry in (source, widest):
            if not room.take(entry):
                raise no_room(f"the entry {entry.path!r}", self._bounds)
        kinds = _reserve_groups(_Tally(self._links), room) if grouped else None
        open_shelves = set(shelves)
        while open_shelves:
            for kind in _TURNS:
                if kind in open_shelves and not shelves[kind].place(room):
                    open_shelves.remove(kind)
        links = shelves["links"]
        entries = [source, self._projection(shelves, {kind: len(s.shown) for kind, s in shelves.items()})]
        if kinds is not None:
            entries += (_Tally(self._links) - _Tally(links.shown)).groups(kinds)
        for shelf in shelves.values():
            entries += [*shelf.fields, *shelf.entries] if shelf.entries else []
        return entries, links.seen - len(links.shown)

    def _shelves(self) -> dict[str, Shelf]:
        return {
            "links": link_shelf(self._links),
            "addresses": split_address_shelf(self._addresses),
            "routes": route_shelf(self._routes),
        }

    def _projection(self, shelves: dict[str, Shelf], shown: dict[str, int]) -> SnapshotEntry:
        counts = {
            kind: {
                "seen": None if self._native[kind] is None else shelves[kind].seen,
                "shown": shown[kind],
            }
            for kind in KINDS
        }
        return fact("projection", {**counts, "sha256": self._digests})


@dataclass(slots=True)
class _Tally:
    """Sums over links, by kind."""

    count: Counter[str]
    up: Counter[str]
    rx: Counter[str]
    tx: Counter[str]

    def __init__(self, links: Sequence[object]) -> None:
        self.count, self.up, self.rx, self.tx = Counter(), Counter(), Counter(), Counter()
        for row in links:
            kind = link_kind(row)
            self.count[kind] += 1
            self.up[kind] += is_up(row)
            self.rx[kind] += octets(row, "rx")
            self.tx[kind] += octets(row, "tx")

    def __sub__(self, shown: _Tally) -> _Tally:
        left = _Tally(())
        left.count, left.up = self.count - shown.count, self.up - shown.up
        left.rx, left.tx = self.rx - shown.rx, self.tx - shown.tx
        return left

    def groups(self, own: Collection[str]) -> list[SnapshotEntry]:
        """One entry for each kind in ``own``, one for all others together; none for a kind without links."""
        members: dict[str, list[str]] = {}
        for kind in self.count:
            members.setdefault(kind if kind in own else OTHER, []).append(kind)
        return [
            fact(
                f"groups/{group}",
                {
                    "count": sum(self.count[kind] for kind in kinds),
                    "up": sum(self.up[kind] for kind in kinds),
                    "rx_bytes": sum(self.rx[kind] for kind in kinds),
                    "tx_bytes": sum(self.tx[kind] for kind in kinds),
                },
            )
            for group, kinds in members.items()
        ]


def _reserve_groups(all_links: _Tally, room: Room) -> list[str] | None:
    """Take room for groups as if all links were left out; return the kinds with one of their own.

    None when there is not even room for one group of them all.
    """
    ranked = sorted(all_links.count, key=lambda kind: (-all_links.count[kind], kind))
    most_entries, most_bytes = max(1, room.entries // GROUPS_SHARE), room.bytes // GROUPS_SHARE
    for number in range(min(MOST_GROUPS, len(ranked)), -1, -1):
        groups = all_links.groups(ranked[:number])
        small = len(groups) <= most_entries and sum(entry_bytes(group) + 1 for group in groups) <= most_bytes
        if small and room.take(*groups):
            return ranked[:number]
    return None
