"""A TCP proxy that misbehaves by a seed: what a bad network, a bad peer or a bad middle box does to a stream.

It knows nothing of what it carries but one thing: on a stream with one request in flight, every piece that a
client sends is a request. Faults strike at a request's number within its connection, after the handshake.
Bytes are damaged by setting the eighth bit, because what is text stays no text then: plain lines carry no
checksum, so that a digit which became another one is beyond what any peer can notice.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

CALM_REQUESTS: Final = 4
"""The first requests of a connection, its handshake among them, pass as they are."""

CHUNK: Final = 65536
NEVER: Final = 1 << 30


class Strike(StrEnum):
    """What ends a connection, sooner or later."""

    RESET_REQUEST = "reset before the request arrived"
    RESET_ANSWER = "reset before the answer arrived"
    CUT_ANSWER = "reset within the answer"
    CUT_REQUEST = "reset within the request"
    HALF_OPEN = "half-open: no answer, no end"
    DUPLICATE = "request delivered twice"
    CORRUPT_REQUEST = "byte damaged in a request"
    CORRUPT_ANSWER = "byte damaged in an answer"
    SLOW_LORIS = "answer trickles for ever"


class Manner(StrEnum):
    """How everything on a connection is carried until the strike."""

    PLAIN = "plain"
    DELAY = "delayed"
    SPLIT = "split"
    MERGE = "merged"


WRONG_PEER: Final = "wrong peer"
WRONG_ANSWERS: Final = (
    b"HTTP/1.1 400 Bad Request\r\nServer: somebody\r\nContent-Length: 0\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.2p1\r\n",
    b"\x00" * 64,
)


@dataclass(frozen=True)
class Plan:
    """What one connection suffers."""

    manner: Manner
    strike: Strike | None
    at: int
    cut: float
    """Where within the piece, as a part of it."""


class FaultProxy:
    """Carries connections to one address, each by a plan of its own; a context manager.

    Args:
        port: where the true peer listens, on loopback.
        seed: decides every plan, in the order of the connections.
        requests: a connection is struck within so many, after its handshake.

    With ``calm`` switched on there are no more faults.
    """

    def __init__(self, port: int, *, seed: int, requests: int = 70) -> None:
        self._target = port
        self._random = Random(seed)
        self._requests = requests
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=16)
        self.port: int = self._listener.getsockname()[1]
        self.struck: Counter[str] = Counter()
        self.connections = 0
        self.calm = False
        self._gentle = 1
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def be_gentle(self, connections: int = 1) -> None:
        """Let the next connections meet the true peer: who has just started is not to be locked out."""
        with self._lock:
            self._gentle = connections

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._listener.close()
        for thread in self._threads:
            thread.join(60)

    def _spawn(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                if not select.select([self._listener], [], [], 0.2)[0]:
                    continue
                client, _ = self._listener.accept()
            except (OSError, ValueError):
                return
            self.connections += 1
            self._spawn(self._carry, client)

    def _plan(self) -> Plan | None:
        """None: the wrong peer answers."""
        with self._lock:
            gentle, self._gentle = self._gentle > 0, max(0, self._gentle - 1)
            if self.calm:
                return Plan(Manner.PLAIN, None, NEVER, 0.0)
            if not gentle and self._random.random() < 0.05:
                return None
            return Plan(
                self._random.choice(list(Manner)),
                self._random.choice(list(Strike)),
                CALM_REQUESTS + self._random.randint(1, self._requests),
                self._random.random(),
            )

    def _carry(self, client: socket.socket) -> None:
        plan = self._plan()
        with client, contextlib.suppress(OSError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if plan is None:
                self._count(WRONG_PEER)
                client.sendall(self._random.choice(WRONG_ANSWERS))
                return
            with socket.create_connection(("127.0.0.1", self._target), timeout=60) as server:
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _Carrier(self, plan, client, server).run()

    def _count(self, what: str) -> None:
        with self._lock:
            self.struck[what] += 1

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()


class _EndError(Exception):
    """The connection is over."""


class _Carrier:
    """One connection."""

    def __init__(self, proxy: FaultProxy, plan: Plan, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._plan, self._client, self._server = proxy, plan, client, server
        self._requests = 0
        self._silent = False

    def run(self) -> None:
        with contextlib.suppress(_EndError):
            while not self._proxy.stopping:
                readable, _, _ = select.select([self._client, self._server], [], [], 0.2)
                for source in readable:
                    data = source.recv(CHUNK)
                    if source is self._client:
                        self._to_server(data)
                    else:
                        self._to_client(data)

    @property
    def _now(self) -> Strike | None:
        """The strike, while the request that it is for is in flight."""
        return self._plan.strike if self._requests == self._plan.at and not self._proxy.calm else None

    def _to_server(self, data: bytes) -> None:
        if not data:
            raise _EndError
        self._requests += 1
        strike = self._now
        if self._silent:
            return
        match strike:
            case Strike.RESET_REQUEST:
                self._end(strike)
            case Strike.CUT_REQUEST:
                self._server.sendall(data[: self._cut(data)])
                self._end(strike)
            case Strike.CORRUPT_REQUEST:
                self._proxy._count(strike)
                self._send(self._server, _damaged(data, self._cut(data)))
            case Strike.DUPLICATE:
                self._proxy._count(strike)
                self._send(self._server, data + data)
            case _:
                self._send(self._server, data)

    def _to_client(self, data: bytes) -> None:
        strike = self._now
        if not data:
            raise _EndError
        if self._silent:
            return
        match strike:
            case Strike.RESET_ANSWER:
                self._end(strike)
            case Strike.CUT_ANSWER:
                self._client.sendall(data[: self._cut(data)])
                self._end(strike)
            case Strike.HALF_OPEN:
                self._proxy._count(strike)
                self._silent = True
            case Strike.CORRUPT_ANSWER:
                self._proxy._count(strike)
                self._send(self._client, _damaged(data, self._cut(data)))
            case Strike.SLOW_LORIS:
                self._proxy._count(strike)
                self._trickle(data)
            case _:
                self._send(self._client, data)

    def _send(self, sink: socket.socket, data: bytes) -> None:
        match self._plan.manner:
            case Manner.DELAY:
                time.sleep(0.002)
                sink.sendall(data)
            case Manner.SPLIT:
                for start in range(0, len(data), 7):
                    sink.sendall(data[start : start + 7])
            case Manner.MERGE:
                sink.sendall(data + self._more(sink))
            case Manner.PLAIN:
                sink.sendall(data)

    def _more(self, sink: socket.socket) -> bytes:
        """What else the other side says within a moment."""
        source = self._server if sink is self._client else self._client
        found = b""
        while select.select([source], [], [], 0.001)[0] and (data := source.recv(CHUNK)):
            found += data
        return found

    def _trickle(self, data: bytes) -> None:
        """A byte now and then, until the client has enough of it."""
        for start in range(len(data)):
            if self._proxy.stopping:
                raise _EndError
            self._client.sendall(data[start : start + 1])
            if select.select([self._client], [], [], 0.05)[0]:
                raise _EndError

    def _cut(self, data: bytes) -> int:
        return int(self._plan.cut * len(data))

    def _end(self, strike: Strike) -> None:
        """Reset both ways."""
        self._proxy._count(strike)
        for end in (self._client, self._server):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise _EndError


def _damaged(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] | 0x80]) + data[at + 1 :]
