"""Reading a directory of records: everything that is valid, and why the rest is not."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ticket_agent.journal.atomic import is_temporary
from ticket_agent.journal.errors import RecordError
from ticket_agent.journal.record import decode_for_retention
from ticket_agent.journal.table import RecordTable
from ticket_agent.journal.values import MAX_RECORD_BYTES, parse_record_name

if TYPE_CHECKING:
    from ticket_agent.journal.fs import Fs
    from ticket_agent.journal.record import Record, Retained

__all__ = ["Quarantined", "Scan", "describe_read_error", "scan_records"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A file that is not a valid record. It stays where and as it is, and its operation is not executed.

    Attributes:
        name: the file's name.
        reason: what is wrong with it.
        offset: first byte known to be wrong.
        sequence: the operation's sequence as the file's name has it, or None when the name is not a record's.
    """

    name: str
    reason: str
    offset: int
    sequence: int | None


@dataclass(slots=True, kw_only=True)
class Scan:
    """What a directory holds: records by key, invalid files, and leftovers of unfinished writes."""

    records: RecordTable = field(default_factory=RecordTable)
    quarantined: list[Quarantined] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)


def scan_records(fs: Fs, ops_fd: int, *, changing: bool = False) -> Scan:
    """Read every record.

    Args:
        fs: where to read.
        ops_fd: the directory, open.
        changing: the reader is not the owner. A live owner may replace or retire records meanwhile, so a file
            that is gone is no finding, and an invalid one is read a second time. Terminal records are checked
            in full, because they are what such a reader wants to see.

    Raises:
        OSError: the directory cannot be listed.
    """
    scan = Scan()
    doubled: set[str] = set()
    for name in sorted(fs.list(ops_fd)):
        if is_temporary(name):
            scan.leftovers.append(name)
            continue
        found = _read(fs, ops_fd, name, changing=changing)
        if found is None:
            continue
        if isinstance(found, Quarantined):
            scan.quarantined.append(found)
        else:
            _take(scan, found, doubled)
    return scan


def _take(scan: Scan, found: Record | Retained, doubled: set[str]) -> None:
    if found.key not in scan.records and found.key not in doubled:
        scan.records.take(found)
        return
    # Nothing tells which file is the operation's history, so none of them is trusted.
    doubled.add(found.key)
    for entry in (scan.records.drop(found.key), found):
        if entry is not None:
            scan.quarantined.append(
                Quarantined(
                    name=entry.name,
                    reason="another file holds the same key; remove the one that does not belong here",
                    offset=0,
                    sequence=entry.sequence,
                )
            )


def _read(fs: Fs, ops_fd: int, name: str, *, changing: bool) -> Record | Retained | Quarantined | None:
    attempts = 2 if changing else 1
    found: Record | Retained | Quarantined | None = None
    for _ in range(attempts):
        found = _read_once(fs, ops_fd, name, changing=changing)
        if not isinstance(found, Quarantined):
            break
    return found


def _read_once(fs: Fs, ops_fd: int, name: str, *, changing: bool) -> Record | Retained | Quarantined | None:
    parsed = parse_record_name(name)
    if parsed is None:
        return Quarantined(
            name=name, reason="the file's name is not that of a record", offset=0, sequence=None
        )
    try:
        data = fs.read(ops_fd, name, MAX_RECORD_BYTES)
        return decode_for_retention(data, name=name, thorough=changing)
    except RecordError as error:
        return Quarantined(name=name, reason=error.reason, offset=error.offset, sequence=parsed[0])
    except FileNotFoundError:
        if changing:
            return None
        return Quarantined(
            name=name, reason="the file vanished while it was read", offset=0, sequence=parsed[0]
        )
    except OSError as error:
        return Quarantined(name=name, reason=describe_read_error(error), offset=0, sequence=parsed[0])


def describe_read_error(error: OSError) -> str:
    """Say in words why a file could not be read."""
    if error.errno == errno.ELOOP:
        return "the file is a symlink, which is never followed"
    return f"the file cannot be read: {error.strerror or os.strerror(error.errno or 0)}"
