"""A console that follows a script over real sockets, and what the client's tests need around it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from functools import cache
from typing import TYPE_CHECKING, Self

from ticket_agent.hive.console.client import ConsoleConfig, ConsoleNamespace
from ticket_agent.hive.console.framing import FrameDecoder, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

TOKEN = "tok-4711"
PATIENCE_S = 20.0


class FakeClock:
    """Monotonic seconds that only ``sleep`` (or the test) advances."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


class Peer:
    """The console's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self._decoder = FrameDecoder()

    def line(self) -> str | None:
        """The client's next line, or None at the end of its stream."""
        while (payload := self._decoder.next_frame()) is None:
            data = self.sock.recv(4096)
            if not data:
                return None
            self._decoder.receive(data)
        assert isinstance(payload, bytes)
        return payload.decode()

    def expect(self, line: str) -> None:
        got = self.line()
        assert got == line, f"the client sent {got!r}, the script expects {line!r}"

    def expect_end(self) -> None:
        got = self.line()
        assert got is None, f"the client sent {got!r}, the script expects its end"

    def send(self, *lines: str) -> None:
        self.sock.sendall(b"".join(encode_frame(line) for line in lines))

    def dribble(self, *lines: str) -> None:
        """Send byte by byte, one segment each."""
        for byte in b"".join(encode_frame(line) for line in lines):
            self.sock.sendall(bytes([byte]))

    def handshake(self, token: str = TOKEN, role: str = "queen") -> None:
        self.expect(f"AUTH {token}")
        self.send("OK AUTH")
        self.expect(f"ATTACH {role}")
        self.send(f"OK ATTACH role={role}")

    def answer(self, command: str, *lines: str) -> None:
        self.expect(command)
        self.send(*lines)

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def quit(self) -> None:
        """The orderly end: OK QUIT, then the client half-closes first."""
        self.answer("QUIT", "OK QUIT")
        self.expect_end()


class ScriptedConsole:
    """Serves one script per connection, in order; a script that fails makes the ``with`` block fail."""

    def __init__(self, *scripts: Callable[[Peer], None]) -> None:
        self._scripts = scripts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE_S)
        self._thread = threading.Thread(target=self._serve)
        self._error: BaseException | None = None
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, exc_type: object, *rest: object) -> None:
        if exc_type is not None:
            # The test has failed already: wake a waiting accept, and let its own error be the one that shows.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(2 * PATIENCE_S)
        assert not self._thread.is_alive()
        if exc_type is None:
            if self._error is not None:
                raise self._error
            assert self.connections == len(self._scripts), "the client connected less often than scripted"

    def _serve(self) -> None:
        try:
            with self._listener:
                for script in self._scripts:
                    sock, _ = self._listener.accept()
                    self.connections += 1
                    with sock:
                        script(Peer(sock))
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            self._error = error


def namespace(
    port: int,
    clock: FakeClock | None = None,
    *,
    token: str | None = TOKEN,
    role: str = "queen",
    ticket: str | None = None,
    env: Mapping[str, str] | None = None,
    lock_dir: Path | None = None,
    auth_s: float = PATIENCE_S,
) -> ConsoleNamespace:
    """A client with a fake clock; without ``lock_dir`` it takes no lock.

    Its deadlines are as far away as the script's: a script's thread may come late.
    """
    clock = clock or FakeClock()
    config = ConsoleConfig(
        port=port,
        token=token,
        role=role,
        ticket=ticket,
        use_lock=lock_dir is not None,
        lock_dir=lock_dir,
        connect_s=PATIENCE_S,
        auth_s=auth_s,
        command_s=PATIENCE_S,
        quit_s=PATIENCE_S,
    )
    return ConsoleNamespace(config, env=env or {}, monotonic=clock.monotonic, sleep=clock.sleep)


@contextlib.contextmanager
def kept_port(port: int) -> Iterator[None]:
    """Keep a port on which nobody listens now for the next listener of this test; nobody else is given it."""
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
        yield


@cache
def _silent_socket() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


def refused_port() -> int:
    """A port nobody listens on: it is taken as long as this process lives, so that nobody else can."""
    port: int = _silent_socket().getsockname()[1]
    return port
