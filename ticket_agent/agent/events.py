"""Structured log of the daemon: one event per line, for people or for programs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, TextIO

from ticket_agent.protocol.redaction import redact_tickets

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EVENT_SCHEMA", "EventLog", "Level"]

EVENT_SCHEMA = "ticket-agent-event/v1"
Level = Literal["debug", "info", "warning", "error"]
_RANK: dict[str, int] = {"debug": 0, "info": 1, "warning": 2, "error": 3}


class EventLog:
    """Writes events at or above a level; a closed or full stream never stops the daemon.

    The same warning is not repeated while nothing changes: :meth:`once` keeps the last text per subject.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        clock: Callable[[], int],
        style: Literal["text", "json"] = "text",
        level: Level = "info",
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._style = style
        self._threshold = _RANK[level]
        self._last: dict[str, str] = {}

    def emit(self, level: Level, event: str, **fields: str | int | bool | None) -> None:
        """Write one event. ``fields`` must never carry a secret; a capability ticket would be taken out."""
        if _RANK[level] < self._threshold:
            return
        now = self._clock()
        shown = {name: value for name, value in fields.items() if value is not None}
        if self._style == "json":
            line = json.dumps(
                {"schema": EVENT_SCHEMA, "unix_ms": now, "level": level, "event": event, **shown}
            )
        else:
            line = self._as_text(now, level, event, shown)
        try:
            self._stream.write(redact_tickets(line) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            # A log that cannot be written is no reason to stop deciding; the journal is the record.
            return

    def once(
        self, level: Level, event: str, subject: str, detail: str, **fields: str | int | bool | None
    ) -> None:
        """Write an event about ``subject`` only if its detail differs from the last one."""
        name = f"{event}:{subject}"
        if self._last.get(name) == detail:
            return
        if len(self._last) >= 4096:  # noqa: PLR2004 - bound of a cache, not a rule
            self._last.clear()
        self._last[name] = detail
        self.emit(level, event, detail=detail, **fields)

    def settled(self, event: str, subject: str) -> None:
        """Forget the last detail about ``subject``, so that a new occurrence is written again."""
        self._last.pop(f"{event}:{subject}", None)

    @staticmethod
    def _as_text(now: int, level: str, event: str, fields: dict[str, str | int | bool]) -> str:
        stamp = datetime.fromtimestamp(now / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{now % 1000:03d}Z"
        words = " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())
        return f"{stamp} {level:<7} {event} {words}".rstrip()


def _quoted(value: str | int | bool) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(char in text for char in ' "=\n\r\t') else text
