"""A gateway that answers what the test says, byte by byte if need be, and a client for it."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any, Self

from ticket_agent.hive.rest.client import RestConfig, RestNamespace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TOKEN = "request-token-4711"
TICKET = "cohesix-ticket-" + "00" * 20 + "." + "11" * 32
PATIENCE_S = 20.0
STATUS_TARGET = "/v1/meta/status"
PATH = "/host/tickets/status"
LINE = '{"schema":"host-ticket-result/v2"}'


class Asked:
    """One request as it arrived."""

    def __init__(self, head: bytes, body: bytes) -> None:
        lines = head.decode().split("\r\n")
        self.method, self.target, _ = lines[0].split(" ")
        self.headers = [tuple(line.split(": ", 1)) for line in lines[1:] if line]
        self.body = body

    def header(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


def http(status: int, body: bytes | dict[str, Any] = b"", **headers: str) -> bytes:
    """A whole answer."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    kind = "application/json" if isinstance(body, dict) else "text/plain"
    fields = {"Content-Type": kind, "Content-Length": str(len(data))} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} Reason\r\n{head}\r\n".encode() + data


def state(connects: int = 1, **changes: Any) -> dict[str, Any]:
    """What ``/v1/meta/status`` shows."""
    return {
        "connected": True,
        "connects": connects,
        "reconnects": connects - 1,
        "last_change_unix_ms": 1_700_000_000_000 + connects,
        "backend_class": "console-projection",
    } | changes


def said(verb: str, path: str, lines: list[str] | None = None, **changes: Any) -> dict[str, Any]:
    """The gateway's own object for an answer that went well."""
    lines = lines or []
    return {
        "status": "OK",
        "verb": verb,
        "path": path,
        "end": True,
        "lines": lines,
        "bytes": len("\n".join(lines).encode()),
    } | changes


def echoed(path: str = PATH, line: str = LINE, **changes: Any) -> dict[str, Any]:
    return said("ECHO", path, bytes=len(line)) | changes


Step = "bytes | Callable[[socket.socket], None]"


class ScriptedGateway:
    """Answers ``/v1/meta/status`` from ``state`` and everything else from the script, in order.

    A step is what to send, or something to do with the socket, after which the connection ends. When the
    script is used up, its last step is repeated. At the end it has read all that its clients sent.
    """

    def __init__(self, *script: Any, status: Any = None) -> None:
        self._script = list(script)
        self.status: Any = http(200, state()) if status is None else status
        self.asked: list[Asked] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._serving: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def posts(self) -> list[Asked]:
        return [one for one in self.asked if one.method == "POST"]

    @property
    def beside_status(self) -> list[Asked]:
        return [one for one in self.asked if one.target != STATUS_TARGET]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._serving:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            sock.settimeout(PATIENCE_S)
            self._open.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._serving.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError), sock:
            stream = sock.makefile("rb")
            while (asked := _request(stream)) is not None:
                self.asked.append(asked)
                step = self._step(asked)
                if isinstance(step, bytes):
                    sock.sendall(step)
                    continue
                step(sock)
                return

    def _step(self, asked: Asked) -> Any:
        if asked.target == STATUS_TARGET:
            return self.status
        return self._script.pop(0) if len(self._script) > 1 else self._script[0]


def _request(stream: Any) -> Asked | None:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = stream.readline()
        if not line:
            return None
        head += line
    asked = Asked(head.removesuffix(b"\r\n\r\n"), b"")
    size = int((asked.header("content-length") or ["0"])[0])
    asked.body = stream.read(size)
    return asked


def reset(sock: socket.socket) -> None:
    """End the connection with RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def hang_up(sock: socket.socket) -> None:
    """End the connection with FIN, without an answer."""
    sock.shutdown(socket.SHUT_RDWR)


def gives(data: bytes) -> Callable[[socket.socket], None]:
    """Send something that need not be whole, then end the connection."""

    def step(sock: socket.socket) -> None:
        sock.sendall(data)

    return step


def silence(sock: socket.socket) -> None:
    """Never answer; ends when the client has gone."""
    with contextlib.suppress(OSError):
        sock.recv(1)


def dribble(data: bytes, pause_s: float = 0.02) -> Callable[[socket.socket], None]:
    """One byte at a time, for as long as the client bears it."""
    never = threading.Event()

    def step(sock: socket.socket) -> None:
        for byte in data * 1000:
            sock.sendall(bytes([byte]))
            never.wait(pause_s)

    return step


def rest(
    url: str | int,
    *,
    env: Mapping[str, str] | None = None,
    sleep: Callable[[float], None] | None = None,
    monotonic: Callable[[], float] | None = None,
    **options: Any,
) -> RestNamespace:
    """A client whose waits cost nothing unless they are given."""
    where = f"http://127.0.0.1:{url}" if isinstance(url, int) else url
    settings: dict[str, Any] = {"auth_token": TOKEN, "cache_s": 0.0, "metadata_s": PATIENCE_S} | options
    extra = {} if monotonic is None else {"monotonic": monotonic}
    return RestNamespace(
        RestConfig(url=where, **settings), env=env or {}, sleep=sleep or (lambda _: None), **extra
    )
