"""How much of what a collector found goes into one record, and how many facts had to be left out.

Nothing is cut short: an entry is in the record as it is, or it is left out and counted. Sizes are those
inside the record, where a value that is JSON text of its own takes a backslash for each of its quotes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .collecting import CollectError
from .errors import SnapshotError
from .json_strict import dumps
from .snapshot_names import check_entry_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .snapshot import SnapshotBounds, SnapshotEntry

__all__ = ["FRAME_BYTES", "Room", "entry_bytes", "fit", "no_room"]

FRAME_BYTES = 320
"""Room kept for the record around its entries: all other members, however long their names and numbers get on
a path that a console takes."""


def entry_bytes(entry: SnapshotEntry) -> int:
    """Bytes that an entry takes inside a record, without a comma.

    Raises:
        JsonError: its text holds a lone surrogate.
    """
    return len(dumps({"path": entry.path, "value": entry.value}))


class Room:
    """What is left of a record's bounds while entries are put into it.

    Attributes:
        entries: how many more there may be.
        bytes: how many more bytes they may take, each with a comma.
    """

    def __init__(self, bounds: SnapshotBounds) -> None:
        self.entries = bounds.max_entries
        # The first entry has no comma.
        self.bytes = bounds.max_bytes - FRAME_BYTES + 1
        self._value_bytes = bounds.max_value_bytes
        self._paths: set[str] = set()

    def take(self, *entries: SnapshotEntry) -> bool:
        """Put all of ``entries`` in, or none of them: whether there was room."""
        if not self.holds(*entries):
            return False
        self.entries -= len(entries)
        self.bytes -= _bytes(entries)
        self._paths |= {entry.path for entry in entries}
        return True

    def holds(self, *entries: SnapshotEntry) -> bool:
        """Whether there is room for all of ``entries``.

        There is none either for what no record may hold: a path that some reader refuses or that is taken, a
        value that is too long, holds a NUL or a lone surrogate.
        """
        paths = {entry.path for entry in entries}
        if len(entries) > self.entries or len(paths) != len(entries) or paths & self._paths:
            return False
        return all(self.admits(entry) for entry in entries) and _bytes(entries) <= self.bytes

    def admits(self, entry: SnapshotEntry) -> bool:
        """Whether the entry could stand in an otherwise empty record of any size."""
        try:
            check_entry_path(entry.path, publishing=True)
            size = len(entry.value.encode("utf-8"))
        except (SnapshotError, UnicodeEncodeError):
            return False
        return size <= self._value_bytes and "\0" not in entry.value


def _bytes(entries: Iterable[SnapshotEntry]) -> int:
    return sum(entry_bytes(entry) + 1 for entry in entries)


def fit(
    required: Sequence[SnapshotEntry],
    optional: Iterable[SnapshotEntry],
    bounds: SnapshotBounds,
    *,
    omitted: Callable[[int], SnapshotEntry] | None = None,
    already_out: int = 0,
) -> tuple[list[SnapshotEntry], int]:
    """Return the entries of a record and how many facts are not among them.

    Args:
        required: what the record is pointless without.
        optional: the rest, the most important first. What no longer fits is passed over; a later, smaller one
            may still fit.
        bounds: of the record.
        omitted: makes the entry that says how many are left out. It is there only if some are, and then it is
            as required as the others. Its size must not shrink as the number grows.
        already_out: facts that were left out before this call.

    Raises:
        CollectError: ``source_failed``, the required entries do not fit.
    """
    wanted = list(optional)
    entries, left_out = _fill(required, wanted, bounds)
    left_out += already_out
    if left_out and omitted is not None:
        most = len(wanted) + already_out
        entries, left_out = _fill([*required, omitted(most)], wanted, bounds)
        left_out += already_out
        entries[len(required)] = omitted(left_out)
    return entries, left_out


def _fill(
    required: Sequence[SnapshotEntry], wanted: Sequence[SnapshotEntry], bounds: SnapshotBounds
) -> tuple[list[SnapshotEntry], int]:
    room = Room(bounds)
    if room.bytes < 1:
        raise no_room("an empty record", bounds)
    for entry in required:
        if not room.take(entry):
            raise no_room(f"the entry {entry.path!r}", bounds)
    chosen = [entry for entry in wanted if room.take(entry)]
    return [*required, *chosen], len(wanted) - len(chosen)


def no_room(what: str, bounds: SnapshotBounds) -> CollectError:
    """What to say when a record cannot hold ``what`` it must."""
    return CollectError(
        f"{what} does not fit a record of {bounds.max_bytes} bytes, {bounds.max_entries} entries and"
        f" {bounds.max_value_bytes} bytes per value; raise ecosystem.host.snapshots in the manifest"
    )
