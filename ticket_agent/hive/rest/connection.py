"""One TCP or TLS connection to a gateway: a request out, its whole answer in, before a deadline."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from typing import TYPE_CHECKING, Final, TypeVar

from ticket_agent.protocol.http_exchange import Exchange, WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ticket_agent.hive.rest.origin import Origin
    from ticket_agent.protocol.http_exchange import Reply

__all__ = ["Connection", "LostError"]

T = TypeVar("T")

CHUNK: Final = 65536
SUCCESS: Final = range(200, 300)


class LostError(Exception):
    """There is no answer; the text completes "the connection …".

    Attributes:
        sent: whether a byte of the request may have left this host.
        timed_out: whether a deadline ended it.
    """

    code = "rest-lost"

    def __init__(self, why: str, *, sent: bool, timed_out: bool = False) -> None:
        super().__init__(why)
        self.sent = sent
        self.timed_out = timed_out


class _LateError(Exception):
    """The deadline passed."""

    code = "rest-late"


class Connection:
    """A connected socket and the exchange on it.

    Deadlines are points on the ``monotonic`` clock and hold for the whole of an operation, however slowly the
    peer feeds it. After any :class:`LostError`, or when it is not ``reusable``, only ``close`` is left.
    """

    def __init__(self, sock: socket.socket, monotonic: Callable[[], float]) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._monotonic = monotonic
        self._exchange = Exchange()

    @classmethod
    def open(
        cls,
        origin: Origin,
        *,
        proxy: Origin | None,
        ca_file: Path | None,
        timeout_s: float,
        monotonic: Callable[[], float],
    ) -> Connection:
        """Connect, through the proxy if there is one, and finish the TLS handshake.

        Raises:
            LostError: no connection within ``timeout_s`` seconds; nothing of any request was sent.
        """
        deadline = monotonic() + timeout_s
        first = proxy or origin
        opened: Connection | None = None
        try:
            sock = socket.create_connection((first.host, first.port), timeout=timeout_s)
            opened = cls(sock, monotonic)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if origin.tls:
                if proxy is not None:
                    opened._tunnel(origin, deadline)
                opened._secure(origin.host, ca_file, deadline)
        except (OSError, ValueError, _LateError, LostError) as error:
            if opened is not None:
                opened.close()
            raise LostError(f"cannot be opened: {_reason(error)}", sent=False) from error
        return opened

    @property
    def reusable(self) -> bool:
        """Whether another request may follow."""
        return self._exchange.reusable

    def silent(self) -> bool:
        """Whether the idle connection still stands: between two requests a gateway has nothing to say."""
        poller = select.poll()
        poller.register(self._sock, select.POLLIN | select.POLLHUP | select.POLLERR)
        pending = isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0
        return not pending and not poller.poll(0)

    def ask(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]],
        body: bytes,
        *,
        deadline: float,
    ) -> Reply:
        """Send one request and return its answer.

        Raises:
            LostError: the connection broke, the deadline passed, or the answer was none.
        """
        data = memoryview(self._exchange.request(method, target, headers, body))
        sent = 0
        try:
            while sent < len(data):
                sent += self._sent(data[sent:], deadline)
            while (reply := self._exchange.receive(self._received(deadline))) is None:
                pass
        except _LateError:
            raise LostError("gave no answer in time", sent=sent > 0, timed_out=True) from None
        except WireError as error:
            raise LostError(f"cannot be used: the gateway {error}", sent=True) from None
        except OSError as error:
            raise LostError(f"broke: {_reason(error)}", sent=sent > 0) from error
        return reply

    def close(self) -> None:
        """Close the socket; never raises."""
        with contextlib.suppress(OSError):
            self._sock.close()

    def _sent(self, data: bytes | memoryview, deadline: float) -> int:
        return self._when_ready(lambda: self._sock.send(data), deadline, writing=True)

    def _received(self, deadline: float) -> bytes:
        try:
            return self._when_ready(lambda: self._sock.recv(CHUNK), deadline)
        except ssl.SSLEOFError:
            # Without its farewell; whether the answer is complete is for HTTP to say.
            return b""

    def _when_ready(self, step: Callable[[], T], deadline: float, *, writing: bool = False) -> T:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                events = select.POLLIN
            except ssl.SSLWantWriteError:
                events = select.POLLOUT
            except BlockingIOError:
                events = select.POLLOUT if writing else select.POLLIN
            self._wait(events, deadline)

    def _wait(self, events: int, deadline: float) -> None:
        remaining = deadline - self._monotonic()
        poller = select.poll()
        poller.register(self._sock, events)
        if remaining <= 0 or not poller.poll(remaining * 1000):
            raise _LateError("gave no answer in time")

    def _tunnel(self, origin: Origin, deadline: float) -> None:
        host = f"[{origin.host}]" if ":" in origin.host else origin.host
        target = f"{host}:{origin.port}"
        request = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode("ascii")
        while request:
            request = request[self._sent(request, deadline) :]
        head = bytearray()
        while not head.endswith(b"\r\n\r\n"):
            # Byte by byte, because what follows the head belongs to TLS.
            byte = self._when_ready(lambda: self._sock.recv(1), deadline)
            head += byte
            if not byte or len(head) > CHUNK:
                raise LostError("was not opened by the proxy", sent=False)
        words = head.split(b" ", 2)
        status = words[1] if len(words) > 1 else b""
        if not status.isdigit() or int(status) not in SUCCESS:
            raise LostError("was refused by the proxy", sent=False)

    def _secure(self, host: str, ca_file: Path | None, deadline: float) -> None:
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        secured = context.wrap_socket(self._sock, server_hostname=host, do_handshake_on_connect=False)
        self._sock = secured
        self._when_ready(secured.do_handshake, deadline)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
