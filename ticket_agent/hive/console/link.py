"""One TCP connection to a console: bytes in and out, each with a deadline."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Final

from ticket_agent.hive.console.connection import Unasked

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.hive.console.connection import ClientConnection, ClientEvent

__all__ = ["Link", "LinkBrokenError", "LinkError", "LinkTimeoutError", "NothingSentError"]

CHUNK: Final = 65536

MAX_IDLE_CHUNKS: Final = 16
"""Reads of an idle connection before a peer that keeps talking is given up."""


class LinkError(Exception):
    """The connection can no longer be used; the text completes "the connection …"."""

    code = "console-link"


class LinkBrokenError(LinkError):
    """The peer closed or reset the connection."""


class NothingSentError(LinkBrokenError):
    """It was unusable before a single byte of the command left this host."""


class LinkTimeoutError(LinkError):
    """A deadline passed."""


class Link:
    """A connected socket and the :class:`ClientConnection` that reads what comes through it.

    Deadlines are points on the ``monotonic`` clock. After any :class:`LinkError` the only thing left to do is
    ``close``.
    """

    def __init__(
        self, sock: socket.socket, connection: ClientConnection, monotonic: Callable[[], float]
    ) -> None:
        self._sock = sock
        self._monotonic = monotonic
        self.connection = connection

    @classmethod
    def open(
        cls,
        host: str,
        port: int,
        *,
        connection: ClientConnection,
        timeout_s: float,
        monotonic: Callable[[], float],
    ) -> Link:
        """Connect.

        Raises:
            OSError: no connection within ``timeout_s`` seconds.
        """
        sock = socket.create_connection((host, port), timeout=timeout_s)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            sock.close()
            raise
        return cls(sock, connection, monotonic)

    def send(self, data: bytes, deadline: float) -> None:
        """Send all bytes.

        Raises:
            NothingSentError: the system took no byte of them.
            LinkBrokenError: the connection broke in the middle.
        """
        rest = memoryview(data)
        sent = 0
        while sent < len(rest):
            try:
                self._sock.settimeout(self._remaining(deadline))
                sent += self._sock.send(rest[sent:])
            except (OSError, LinkTimeoutError) as error:
                if sent == 0:
                    raise NothingSentError(f"took no byte of the command: {_reason(error)}") from error
                raise LinkBrokenError(f"broke while the command was sent: {_reason(error)}") from error

    def next_event(self, deadline: float) -> ClientEvent:
        """Wait for the connection's next event.

        Raises:
            LinkBrokenError: the connection ended first.
            LinkTimeoutError: the deadline passed first.
        """
        while True:
            event = self.connection.next_event()
            if event is not None:
                return event
            try:
                self._sock.settimeout(self._remaining(deadline))
                data = self._sock.recv(CHUNK)
            except TimeoutError as error:
                raise LinkTimeoutError("gave no answer in time") from error
            except OSError as error:
                raise LinkBrokenError(f"broke: {_reason(error)}") from error
            if not data:
                raise LinkBrokenError("was closed by the console")
            self.connection.receive(data)

    def surprise(self) -> str | None:
        """Return why the idle connection must not be used, or None; nothing is sent and nothing waited for.

        Between commands a console has nothing to say but a late ``PONG``.
        """
        self._sock.settimeout(0)
        for _ in range(MAX_IDLE_CHUNKS):
            try:
                data = self._sock.recv(CHUNK)
            except BlockingIOError:
                return None
            except OSError as error:
                return f"broke while idle: {_reason(error)}"
            if not data:
                return "was closed by the console while idle"
            self.connection.receive(data)
            if (unasked := self.surplus()) is not None:
                return unasked
        return "does not fall silent"

    def surplus(self) -> str | None:
        """Return why what was received already goes beyond the answers, or None if it does not."""
        event = self.connection.next_event()
        return event.why if isinstance(event, Unasked) else None

    def finish(self, deadline: float) -> None:
        """Half-close and read until the console has closed too, or the deadline passes."""
        with contextlib.suppress(OSError, LinkTimeoutError):
            self._sock.shutdown(socket.SHUT_WR)
            self._sock.settimeout(self._remaining(deadline))
            while self._sock.recv(CHUNK):
                self._sock.settimeout(self._remaining(deadline))

    def close(self) -> None:
        """Close the socket; never raises, because nothing of what was sent or read depends on it."""
        with contextlib.suppress(OSError):
            self._sock.close()

    def _remaining(self, deadline: float) -> float:
        remaining = deadline - self._monotonic()
        if remaining <= 0:
            raise LinkTimeoutError("gave no answer in time")
        return remaining


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
