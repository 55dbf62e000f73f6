"""The reference gateway's HTTP side: keep-alive connections, one thread each."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, Self, cast

from .faults import Faults
from .gateway import Answer, Cut, Gateway, GatewayTimes, Request
from .gateway_access import Access, Delegation

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from types import TracebackType

    from .hive import ReferenceHive

__all__ = ["GatewayServer"]

_TIMES: Final = GatewayTimes()
_MAX_REQUEST: Final = 2 * 1024 * 1024
_IDLE_S: Final = 60.0
_POLL_S: Final = 0.02
_CHUNK: Final = b"\0" * 65536
_DRAIN_BYTES: Final = 8 * 1024 * 1024
_DRAIN_PIECE: Final = 65536
_DRAIN_S: Final = 30.0


class GatewayServer:
    """Serves a hive over HTTP/1.1 in background threads; a context manager.

    Many clients may be connected; what they ask goes through one console, one after the other.

    Args:
        hive: the hive to serve.
        clock: unix time in milliseconds.
        host: address to bind.
        port: port to bind, 0 for a free one.
        token: request token, None asks for none.
        delegation: judges delegated tickets, None asks for none.
        open_reads: reads are open to everybody, as at early gateways.
        faults: rules for reads and appends.
        times: waits.
        tls: a server's context, to speak https as a proxy in front of a gateway would.

    Raises:
        OSError: the port cannot be bound.
    """

    def __init__(
        self,
        hive: ReferenceHive,
        *,
        clock: Callable[[], int],
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None,
        delegation: Delegation | None = None,
        open_reads: bool = False,
        faults: Faults | None = None,
        times: GatewayTimes = _TIMES,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.hive = hive
        self.host = host
        self.token = token
        self.times = times
        self.faults = Faults() if faults is None else faults
        self._scheme = "http" if tls is None else "https"
        self.gateway = Gateway(
            hive,
            access=Access(token=token, delegation=delegation, open_reads=open_reads),
            faults=self.faults,
            times=times,
            clock=clock,
        )
        self._http = _Listener((host, port), self.gateway, tls)
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(_POLL_S,), name=f"gateway-{self.port}", daemon=True
        )

    @property
    def port(self) -> int:
        """Port it listens on."""
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        """What a client is configured with."""
        return f"{self._scheme}://{self.host}:{self.port}"

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """End all connections and the listener. May be called twice."""
        self.gateway.stop()
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()
        self._http.drop_connections()

    def kick(self) -> None:
        """Lose the console behind the gateway, as a crash of its transport would."""
        self.gateway.lose_console()

    def drop_connections(self) -> None:
        """End every client's connection."""
        self._http.drop_connections()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], gateway: Gateway, tls: ssl.SSLContext | None) -> None:
        self.gateway = gateway
        self._tls = tls
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(_IDLE_S)
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def drop_connections(self) -> None:
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that went away is no event."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass

    def _serve(self) -> None:
        size = self.headers.get("content-length", "0")
        if not (size.isascii() and size.isdigit()) or int(size[:12]) > _MAX_REQUEST:
            self.close_connection = True
            self._write(Answer(413, b"length limit exceeded", "text/plain"))
            self._drain()
            return
        path, _, query = self.path.partition("?")
        headers = [(name.lower(), value) for name, value in self.headers.items()]
        body = self.rfile.read(int(size)) if int(size) else b""
        outcome = cast("_Listener", self.server).gateway.handle(
            Request(self.command, path, query, headers, body)
        )
        if isinstance(outcome, Answer):
            self._write(outcome)
            return
        self.close_connection = True
        if not isinstance(outcome, Cut):
            # Until the client gives up, or the server does.
            with contextlib.suppress(OSError):
                self.connection.recv(1)

    def _drain(self) -> None:
        """Take a body that is not wanted, or as much of it as is fair.

        Closing at once would reset the connection, and a client that is still sending would never see why.
        It ends when the client has read why and closes; the time only bounds one that never does.
        """
        left, end = _DRAIN_BYTES, time.monotonic() + _DRAIN_S
        with contextlib.suppress(OSError):
            while left > 0 and (rest_s := end - time.monotonic()) > 0:
                self.connection.settimeout(rest_s)
                piece = self.connection.recv(_DRAIN_PIECE)
                if not piece:
                    return
                left -= len(piece)

    def _write(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        if answer.retry_after is not None:
            self.send_header("Retry-After", str(answer.retry_after))
        if answer.endless or self.close_connection:
            self.send_header("Connection", "close")
        if not answer.endless:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)
        for _ in range(answer.endless // len(_CHUNK)):
            self.wfile.write(_CHUNK)
        self.wfile.flush()
