"""Whether the hive behind a directory is still in the life it was in before. Pure.

A mount hides the connection behind it: the process that serves it attaches again by itself, and the directory
looks as it did. What a reboot of the hive cannot hide is that its logs begin anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.protocol.retention import Retention

__all__ = ["Life", "Lives", "ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What tells one life of a hive, behind one mount, from another.

    Attributes:
        root: device and inode of the directory.
        boot: lines of ``/proc/boot``; empty where there is no such node.
        logs: offsets of the ticket logs since the hive booted; None where the hive shows none.
        oldest: the oldest admission that is shown. Only looked at without offsets: such hives drop no line.
    """

    root: tuple[int, int]
    boot: tuple[str, ...]
    logs: Mapping[str, Retention] | None
    oldest: str | None = None


def ended(before: Life, now: Life) -> str | None:
    """Why ``now`` is another life than ``before``, in words; None if nothing says so."""
    if now.root != before.root:
        return "something else is mounted there"
    if now.boot != before.boot:
        return "/proc/boot reads differently"
    if (now.logs is None) != (before.logs is None):
        return "the hive began or ceased to show retention offsets"
    if now.logs is None or before.logs is None:
        gone = before.oldest is not None and now.oldest != before.oldest
        return "the oldest admission is gone, and this hive drops none" if gone else None
    for leaf, log in sorted(before.logs.items()):
        later = now.logs.get(leaf)
        if later is None:
            return f"the log `{leaf}` is gone"
        if later.next < log.next or later.base < log.base:
            return f"the log `{leaf}` reaches to offset {later.next}, it once reached to {log.next}"
    return None


class Lives:
    """Numbers the sessions: 0 before the first, one more whenever one begins or the evidence says so."""

    def __init__(self) -> None:
        self.current = 0
        self._last: Life | None = None

    def begin(self, life: Life) -> None:
        """Begin a session."""
        self._last = life
        self.current += 1

    def see(self, life: Life) -> None:
        """Note the newest evidence; it may begin another session."""
        last, self._last = self._last, life
        if last is None or ended(last, life) is not None:
            self.current += 1

    def see_logs(self, logs: Mapping[str, Retention]) -> None:
        """Note newer offsets alone."""
        if self._last is not None:
            self.see(replace(self._last, logs=logs))
