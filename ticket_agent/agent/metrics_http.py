"""`GET /metrics` on loopback. Its threads see the registry only, and a slow reader holds up nobody else."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

from prometheus_client.exposition import choose_encoder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import CollectorRegistry

__all__ = ["MAX_CONNECTIONS", "MetricsServer"]

MAX_CONNECTIONS = 8
"""Requests that are answered at the same time; one more is closed without an answer."""

TIMEOUT_S = 5.0
POLL_S = 0.2


class _Handler(BaseHTTPRequestHandler):
    server_version = "ticket-agent"
    sys_version = ""
    timeout = TIMEOUT_S

    def do_GET(self) -> None:
        """Answer the one path that there is."""
        if self.path.partition("?")[0] != "/metrics":
            self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"only /metrics is here\n")
            return
        encode, content_type = choose_encoder(self.headers.get("Accept", ""))
        self._answer(HTTPStatus.OK, content_type, encode(self.server.registry))  # type: ignore[attr-defined]

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's signature
        """Say nothing: standard error belongs to the agent's log."""


class MetricsServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Serves a registry until it is left.

    Raises:
        OSError: the address cannot be listened on.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.registry = registry
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((host, port), _Handler)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.server_address[1])

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Serve from a thread of its own until the block ends."""
        thread = threading.Thread(target=self.serve_forever, args=(POLL_S,), name="metrics", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            self.server_close()
            thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or close the connection when too many are being answered."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a reader that went away is no event."""
