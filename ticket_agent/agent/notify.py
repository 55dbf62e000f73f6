"""The service manager's notification socket (sd_notify): ready, status, watchdog, stopping."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ServiceNotifier"]

MAX_DIGITS = 20


class ServiceNotifier:
    """Speaks to ``$NOTIFY_SOCKET`` when there is one; a manager that does not listen is no error of ours."""

    def __init__(self, environ: Mapping[str, str], *, pid: int) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_s = _watchdog_interval(environ, pid)
        """Seconds between two signs of life that the manager expects; None when it expects none."""

    def ready(self, status: str) -> None:
        """Tell that start-up recovery is done and the hive is being served."""
        self._send(f"READY=1\nSTATUS={status}")

    def status(self, status: str) -> None:
        """Show one line in ``systemctl status``."""
        self._send(f"STATUS={status}")

    def alive(self) -> None:
        """Answer the watchdog."""
        if self.watchdog_s is not None:
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Tell that the stop is orderly."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.settimeout(1.0)
                channel.sendto(text.encode("utf-8"), self._address)
        except OSError:
            return


def _watchdog_interval(environ: Mapping[str, str], pid: int) -> float | None:
    text, owner = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not text.isascii() or not text.isdigit() or (owner and owner != str(pid)):
        return None
    # As the manager's own library has it: zero, or more than 64 bits, is no interval.
    microseconds = int(text[:MAX_DIGITS])
    return microseconds / 1_000_000 if microseconds and len(text) < MAX_DIGITS else None
