"""An HTTP server of few words, on a Unix socket or behind TLS; the test says each answer."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from pathlib import Path

PATIENCE_S = 30.0


def http(status: int, body: object = b"", **headers: str) -> bytes:
    """A whole answer; what is no bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Content-Type": "application/json", "Content-Length": str(len(data))} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} Reason\r\n{head}\r\n".encode() + data


def chunked(*pieces: bytes) -> bytes:
    """A body in chunks, with its head."""
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body


class ScriptedPeer:
    """Answers each request with what ``answers`` holds for its target, or for ``*``."""

    def __init__(
        self, listener: socket.socket, answers: dict[str, object], tls: ssl.SSLContext | None = None
    ) -> None:
        self._listener, self.answers, self._tls = listener, answers, tls
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._talking: list[threading.Thread] = []
        self.heads: list[str] = []
        self.port: int = 0 if listener.family == socket.AF_UNIX else listener.getsockname()[1]
        self.over = threading.Event()

    @classmethod
    def at(cls, path: Path, answers: dict[str, object]) -> ScriptedPeer:
        """Serve on a Unix socket."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        return cls(listener, answers)

    @classmethod
    def secured(cls, tls: ssl.SSLContext, answers: dict[str, object]) -> ScriptedPeer:
        """Serve on a port of this machine, behind TLS."""
        return cls(socket.create_server(("127.0.0.1", 0)), answers, tls)

    @property
    def targets(self) -> list[str]:
        return [head.split(" ")[1] for head in self.heads]

    def drip(self, data: bytes) -> Callable[[socket.socket], None]:
        """Send a byte now and then, until the client leaves or the test is over."""

        def send(sock: socket.socket) -> None:
            for index in range(len(data)):
                if self.over.wait(0.01):
                    return
                sock.sendall(data[index : index + 1])

        return send

    def silence(self, sock: socket.socket) -> None:
        """Say nothing, until the client leaves or the test is over."""
        sock.recv(1)

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(PATIENCE_S)
        # Only now are there no more of them.
        for thread in (self._accepting, *self._talking):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._talk, args=(client,), daemon=True)
                self._talking.append(thread)
                thread.start()

    def _talk(self, client: socket.socket) -> None:
        client.settimeout(PATIENCE_S)
        with contextlib.closing(client), contextlib.suppress(OSError):
            if self._tls is None:
                self._serve(client)
            else:
                with self._tls.wrap_socket(client, server_side=True) as secured:
                    self._serve(secured)

    def _serve(self, sock: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            if not (piece := sock.recv(1)):
                return
            head += piece
        self.heads.append(head.decode())
        answer = self.answers.get(self.targets[-1], self.answers.get("*", http(404)))
        if callable(answer):
            answer(sock)
        elif isinstance(answer, bytes):
            sock.sendall(answer)
