"""Refused attaches that outlive the process: a service that restarts must not start counting anew.

Beside the console lock, and only used while that is held. What cannot be read or written is forgotten: the
memory protects other clients from ours, and nothing that ours does depends on it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["RefusalMemory", "Remembered", "memory_path"]

MAX_BYTES: Final = 1024
MODE: Final = 0o600
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What earlier processes learned; times are seconds of the monotonic clock, which all processes share.

    Attributes:
        attaches: when an attach was refused.
        throttled_until: until when the console asked to be left alone, or None.
    """

    attaches: tuple[float, ...] = ()
    throttled_until: float | None = None


def memory_path(lock: Path) -> Path:
    """Where the memory of a console is, given its lock file."""
    return lock.with_name(f"ticket-agent-{lock.stem}.refused")


class RefusalMemory:
    """One small file, of this user only."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, now: float) -> Remembered:
        """Return what is remembered of this boot and lies in the past; nothing where that cannot be told."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            document = json.loads(self._read())
            if document["boot_id"] != _boot_id():
                return Remembered()
            attaches = tuple(time for time in map(_seconds, document["attaches"]) if time <= now)
            until = document["throttled_until"]
            return Remembered(attaches=attaches, throttled_until=None if until is None else _seconds(until))
        return Remembered()

    def save(self, remembered: Remembered) -> None:
        """Replace what is remembered."""
        document = {
            "boot_id": _boot_id(),
            "attaches": list(remembered.attaches),
            "throttled_until": remembered.throttled_until,
        }
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, flags, MODE)
            with os.fdopen(descriptor, "wb") as file:
                _require_ours(file.fileno())
                file.truncate(0)
                file.write(json.dumps(document).encode())

    def _read(self) -> bytes:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            _require_ours(file.fileno())
            return file.read(MAX_BYTES)


def _require_ours(descriptor: int) -> None:
    """In a directory that everybody writes to, a file of somebody else says nothing."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError("not a file of this user")


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError("no number of seconds")
    return float(value)


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
