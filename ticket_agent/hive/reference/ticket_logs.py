"""The six ticket logs and the shape checks every payload to them passes first (root side, gate order)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.json_strict import parse_object
from ticket_agent.protocol.retention import Retention, encode_retention

from .errors import invalid_payload
from .rings import LineLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .profile import HiveProfile

__all__ = [
    "LOGS",
    "REQUEST_SCHEMAS",
    "RESULT_SCHEMAS",
    "WRITABLE_LOGS",
    "Entry",
    "TicketLogs",
    "split_payload",
]

WRITABLE_LOGS: Final = ("spec", "status", "deadletter")
"""Logs a queen may append to, in listing order."""

LOGS: Final = (*WRITABLE_LOGS, *(f"{leaf}.snapshot" for leaf in WRITABLE_LOGS))
"""All logs in listing and retention order."""

REQUEST_SCHEMAS: Final[Mapping[str, int]] = {"host-ticket/v1": 1, "host-ticket/v2": 2}
RESULT_SCHEMAS: Final[Mapping[str, int]] = {"host-ticket-result/v1": 1, "host-ticket-result/v2": 2}


class Entry(NamedTuple):
    """One line of a payload and what its schema says.

    Attributes:
        line: text without surrounding blanks.
        members: the parsed object.
        version: 1 or 2.
    """

    line: str
    members: Mapping[str, object]
    version: int


def split_payload(payload: str, schemas: Mapping[str, int], *, max_line_bytes: int) -> list[Entry]:
    """Split an append into its lines and check what does not depend on the root's state.

    Raises:
        RefusalError: invalid-payload for an empty payload, an over-long line, a line without an accepted
            schema, or a version-2 line that is not alone.
    """
    lines = [line for line in (raw.strip() for raw in payload.split("\n")) if line]
    entries = [_entry(line, schemas, max_line_bytes) for line in lines]
    if not entries or (len(entries) > 1 and any(entry.version > 1 for entry in entries)):
        raise invalid_payload()
    return entries


def _entry(line: str, schemas: Mapping[str, int], max_line_bytes: int) -> Entry:
    try:
        members = parse_object(line.encode(), what="ticket line", max_bytes=max_line_bytes)
    except (ProtocolError, UnicodeEncodeError):
        raise invalid_payload() from None
    schema = members.get("schema")
    if not isinstance(schema, str) or schema not in schemas:
        raise invalid_payload()
    return Entry(line, members, schemas[schema])


class TicketLogs:
    """The logs under ``/host/tickets``; ``observer`` hears every line that was appended."""

    def __init__(self, profile: HiveProfile, observer: Callable[[str, str], None]) -> None:
        self._observer = observer
        self._logs = {
            leaf: LineLog(
                max_bytes=profile.log_bytes, max_frames=profile.log_frames, evicting=profile.evicting_logs
            )
            for leaf in LOGS
        }

    def lines(self, leaf: str) -> list[str]:
        """Return the retained lines of one log, oldest first."""
        return self._logs[leaf].lines()

    def preflight(self, appends: Sequence[tuple[str, Sequence[str]]]) -> None:
        """Raise the buffer-full refusal when any of the appends would be refused."""
        for leaf, lines in appends:
            self._logs[leaf].preflight(lines)

    def append(self, appends: Sequence[tuple[str, Sequence[str]]]) -> None:
        """Append to several logs, all or nothing.

        Raises:
            RefusalError: buffer-full.
        """
        self.preflight(appends)
        for leaf, lines in appends:
            self._logs[leaf].append(lines)
            for line in lines:
                self._observer(leaf, line)

    def slide(self, leaf: str, count: int) -> int:
        """Drop up to ``count`` oldest lines of one log; return how many were dropped."""
        return self._logs[leaf].slide(count)

    def retention_lines(self) -> list[str]:
        """Return ``/host/tickets/retention``: one line per log with its absolute offsets since boot."""
        return [
            encode_retention(
                Retention(
                    path=leaf,
                    base=log.base,
                    next=log.next,
                    retained_bytes=log.retained_bytes,
                    retained_wire_lines=log.retained_frames,
                    dropped_lines=log.dropped_lines,
                    dropped_bytes=log.dropped_bytes,
                )
            )
            for leaf, log in self._logs.items()
        ]
