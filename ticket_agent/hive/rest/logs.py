"""Ticket logs behind a gateway: read by TAIL, which is never cached, and held against their offsets.

TAIL is not always the whole log: where the gateway attached to the hive with a ticket, it goes on where the
last one ended. The offsets tell. They in turn come from the gateway's cache and may be older than the log;
who took such a pair for one moment would find records at places where they never stood, as after a reboot.
Where the two do not fit, the offsets are asked again once the cache must have forgotten them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.namespace import HiveRefusedError
from ticket_agent.protocol.retention import LOGS, Retention, parse_retention

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["LogReader"]

RETENTION: Final = "retention"

ATTEMPTS: Final = 3


class LogReader:
    """Reads nodes by CAT, and ticket logs by TAIL where that is proven to show all of them.

    Args:
        cat: reads a node by CAT.
        tail: reads a node by TAIL.
        doubt: makes the next ``cat`` of a node wait until the gateway cannot show what it showed before.
    """

    def __init__(
        self,
        *,
        cat: Callable[[str], list[str]],
        tail: Callable[[str], list[str]],
        doubt: Callable[[str], None],
    ) -> None:
        self._cat = cat
        self._tail = tail
        self._doubt = doubt
        self._offsets: dict[str, dict[str, Retention]] = {}
        self._places: dict[str, dict[str, int]] = {}

    def forget(self) -> None:
        """Drop the offsets: something was written."""
        self._offsets.clear()

    def session_began(self) -> None:
        """Drop everything: the logs may be those of another life."""
        self._offsets.clear()
        self._places.clear()

    def read(self, path: str) -> list[str]:
        """All lines of a node.

        Raises:
            HiveError: it cannot be read.
        """
        directory, _, leaf = path.rpartition("/")
        if not directory.endswith("/tickets") or leaf not in (*LOGS, RETENTION):
            return self._cat(path)
        if leaf == RETENTION:
            lines = self._cat(path)
            self._note(directory, lines)
            return lines
        known = self._offsets.get(directory, {}).get(leaf) or self._asked(directory).get(leaf)
        if known is None:
            return self._cat(path)
        return self._fitting(path, known)

    def _fitting(self, path: str, known: Retention) -> list[str]:
        """The lines that fit the offsets; once these are certainly no older, the lines as they are."""
        directory, _, leaf = path.rpartition("/")
        offsets: Retention | None = known
        lines: list[str] = []
        for attempt in range(ATTEMPTS):
            try:
                # A TAIL that goes on where it ended can show less than all, and then never fits.
                lines = self._cat(path) if attempt + 1 == ATTEMPTS else self._tail(path)
            except HiveRefusedError:
                return self._cat(path)
            if offsets is not None and self._fits(path, offsets, lines):
                break
            self._doubt(f"{directory}/{RETENTION}")
            offsets = self._asked(directory).get(leaf)
        self._places[path] = {} if offsets is None else _places(offsets, lines)
        return lines

    def _fits(self, path: str, offsets: Retention, lines: Sequence[str]) -> bool:
        """Whether the log is as long as its offsets say, and no line stands elsewhere than before."""
        if _bytes_of(lines) != offsets.retained_bytes:
            return False
        before = self._places.get(path, {})
        return all(before.get(line, place) == place for line, place in _places(offsets, lines).items())

    def _asked(self, directory: str) -> dict[str, Retention]:
        """The offsets as the gateway shows them now; empty where the hive has none."""
        try:
            self._note(directory, self._cat(f"{directory}/{RETENTION}"))
        except HiveRefusedError:
            self._offsets[directory] = {}
        return self._offsets[directory]

    def _note(self, directory: str, lines: Sequence[str]) -> None:
        try:
            self._offsets[directory] = dict(parse_retention(lines))
        except ProtocolError:
            # Who asked for them will say so.
            self._offsets[directory] = {}


def _bytes_of(lines: Sequence[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def _places(offsets: Retention, lines: Sequence[str]) -> dict[str, int]:
    """Where each line stands that stands there only once."""
    places: dict[str, int] = {}
    at = offsets.base
    for line in lines:
        places[line] = at
        at += len(line.encode()) + 1
    return {line: place for line, place in places.items() if lines.count(line) == 1}
