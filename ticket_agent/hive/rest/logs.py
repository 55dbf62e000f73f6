"""Ticket logs behind a gateway: read by TAIL, which is never cached, and checked against their offsets.

TAIL is not always the whole log: where the gateway attached to the hive with a ticket, it goes on where the
last one ended. The log's retained bytes tell. Where they do not fit, or the hive tells none, CAT is asked,
which the gateway keeps true for logs that are written through it.
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


class LogReader:
    """Reads nodes by CAT, and ticket logs by TAIL where that is proven to show all of them.

    Args:
        cat: reads a node by CAT.
        tail: reads a node by TAIL.
    """

    def __init__(self, *, cat: Callable[[str], list[str]], tail: Callable[[str], list[str]]) -> None:
        self._cat = cat
        self._tail = tail
        self._offsets: dict[str, dict[str, Retention]] = {}

    def forget(self) -> None:
        """Drop what is known about the logs: something was written, or the session changed."""
        self._offsets.clear()

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
        known = self._offsets.get(directory, {})
        if leaf not in known:
            known = self._asked(directory)
        if leaf in known:
            tailed = self._tailed(path)
            if tailed is None:
                return self._cat(path)
            if _bytes_of(tailed) == known[leaf].retained_bytes:
                return tailed
            if _moved(self._asked(directory).get(leaf), known[leaf], tailed):
                return tailed
        return self._cat(path)

    def _asked(self, directory: str) -> dict[str, Retention]:
        """The offsets as the hive tells them now; empty where it does not."""
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

    def _tailed(self, path: str) -> list[str] | None:
        try:
            return self._tail(path)
        except HiveRefusedError:
            return None


def _bytes_of(lines: Sequence[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def _moved(now: Retention | None, before: Retention, lines: Sequence[str]) -> bool:
    """Whether the log merely grew since the offsets were read, and these lines are all of it."""
    return now is not None and now.next != before.next and _bytes_of(lines) == now.retained_bytes
