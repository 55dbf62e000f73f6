r"""Which processes owned a state directory, as each wrote it into the fence's file. Pure.

::

    pid=4711 boot_id=<id> started_unix_ms=<n> agent=<version>+<start id>\n
    stopped_unix_ms=<n>\n

A start adds the first line, an orderly end the second. The lines are not synced, and only the newest that
fit are kept, so a missing one proves nothing; they inform people, and nothing is decided by them. A start
that is followed by another one without an end in between did not end in order: the process was killed, it
crashed, or the power failed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

__all__ = ["MAX_CONTENT", "Start", "encode_starts", "has_start_id", "parse_starts"]

MAX_CONTENT = 4_096
"""Longest content, in bytes: one block, so that writing it anew needs no space on a full disk."""

_START = re.compile(
    r"pid=([0-9]{1,10}) boot_id=(\S{1,64}) started_unix_ms=([0-9]{1,19})(?: agent=([^\n]{1,64}))?"
)
_STOP = re.compile(r"stopped_unix_ms=([0-9]{1,19})")
_START_ID = re.compile(r"[^+]+\+[0-9a-f]{8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One process that owned the state directory.

    Attributes:
        pid: its process id.
        boot_id: the host's boot in which it ran.
        started_unix_ms: when it took the fence, Unix milliseconds by its own clock.
        agent: what it writes into the records' histories, or None where an earlier version did not say.
        stopped_unix_ms: when it gave the fence back in order; None if it did not or has not yet.
    """

    pid: int
    boot_id: str
    started_unix_ms: int
    agent: str | None = None
    stopped_unix_ms: int | None = None


def has_start_id(agent: str) -> bool:
    """Whether an agent's name, as a history holds it, tells one process from the next."""
    return _START_ID.fullmatch(agent) is not None


def parse_starts(content: bytes) -> tuple[Start, ...]:
    """Return the starts in a file's content, oldest first; what is no line of ours is passed over."""
    starts: list[Start] = []
    # A line without its newline may be cut short.
    for line in content.decode("utf-8", "replace").split("\n")[:-1]:
        started, stopped = _START.fullmatch(line), _STOP.fullmatch(line)
        if started is not None:
            starts.append(
                Start(
                    pid=int(started[1]),
                    boot_id=started[2],
                    started_unix_ms=int(started[3]),
                    agent=started[4],
                )
            )
        elif stopped is not None and starts and starts[-1].stopped_unix_ms is None:
            starts[-1] = replace(starts[-1], stopped_unix_ms=int(stopped[1]))
    return tuple(starts)


def encode_starts(starts: tuple[Start, ...]) -> bytes:
    """Return the content for the newest starts that fit; the last one always does."""
    kept: list[bytes] = []
    size = 0
    for start in reversed(starts):
        lines = _lines(start)
        if kept and size + len(lines) > MAX_CONTENT:
            break
        kept.append(lines)
        size += len(lines)
    return b"".join(reversed(kept))


def _lines(start: Start) -> bytes:
    agent = f" agent={start.agent}" if start.agent is not None else ""
    text = f"pid={start.pid} boot_id={start.boot_id} started_unix_ms={start.started_unix_ms}{agent}\n"
    if start.stopped_unix_ms is not None:
        text += f"stopped_unix_ms={start.stopped_unix_ms}\n"
    return text.encode()
