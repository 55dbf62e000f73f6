"""What a gateway answers from memory instead of asking the hive again."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ReadCache"]

CACHED: Final = ("/proc/", "/host/", "/gpu/")
MAX_ENTRIES: Final = 64
WRITTEN: Final = ("/host/tickets/spec", "/host/tickets/status", "/host/tickets/deadletter")


class ReadCache:
    """Keeps what CAT showed; the hive may have moved on, or rebooted, meanwhile.

    A write through the gateway to one of the three writable ticket logs makes it forget that log, its
    snapshot and the retention record; nothing else that the write may have changed.
    """

    def __init__(self, life_s: float, monotonic: Callable[[], float]) -> None:
        self._life_s = life_s
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._entries: dict[str, tuple[float, list[str]]] = {}

    def read(self, path: str, ask: Callable[[], list[str]]) -> list[str]:
        """Return the lines of ``path``, from memory or by asking."""
        life_s = self._life_of(path)
        with self._lock:
            until, lines = self._entries.get(path, (0.0, []))
            if life_s and self._monotonic() < until:
                return list(lines)
        lines = ask()
        if life_s:
            with self._lock:
                self._entries.pop(path, None)
                self._entries[path] = (self._monotonic() + life_s, lines)
                if len(self._entries) > MAX_ENTRIES:
                    del self._entries[next(iter(self._entries))]
        return list(lines)

    def written(self, path: str) -> None:
        """Forget what a write through the gateway makes untrue, as far as a gateway knows."""
        if path in WRITTEN:
            with self._lock:
                for stale in (path, f"{path}.snapshot", "/host/tickets/retention"):
                    self._entries.pop(stale, None)

    def _life_of(self, path: str) -> float:
        if not path.startswith(CACHED) or path.startswith("/host/tickets/admission/"):
            return 0.0
        return self._life_s / 8 if path.startswith("/host/tickets/current/") else self._life_s
