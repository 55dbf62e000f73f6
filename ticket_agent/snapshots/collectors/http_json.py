"""One JSON object over HTTP, asked once: over a Unix socket or TLS, bounded, never past a deadline.

No proxy is looked at, no redirect followed, no compression taken. Nothing the peer sent is ever quoted in an
error: it might repeat what was sent to it, the credential included.
"""

from __future__ import annotations

import queue
import socket
import ssl
import threading
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.protocol.collecting import CollectError
from ticket_agent.protocol.errors import JsonError
from ticket_agent.protocol.json_strict import parse_object
from ticket_agent.protocol.snapshot import UnavailableReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ticket_agent.protocol.collecting import Deadline

__all__ = ["Answer", "Peer", "connect_tls", "connect_unix", "get", "json_object"]

OK: Final = 200
CHUNK: Final = 64 * 1024
_RESOLVERS: dict[str, threading.Thread] = {}
"""The last one for each host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Whom to ask.

    Attributes:
        name: begins error texts: "the … engine".
        host: value of the header ``Host``.
        connect: opens a socket; may raise OSError, CollectError.
        headers: further ones of each request; they may hold a credential.
    """

    name: str
    host: str
    connect: Callable[[Deadline], socket.socket]
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back.

    Attributes:
        status: of HTTP.
        body: complete when the status is 200; else it was not read and is empty.
    """

    status: int
    body: bytes


def get(peer: Peer, target: str, *, deadline: Deadline, max_body: int) -> Answer:
    """Send one GET on a connection of its own.

    Raises:
        CollectError: ``timed_out`` when the deadline passed, else ``source_failed``: no connection, no trust,
            or no answer within the bounds.
    """
    with _explained(peer), closing(peer.connect(deadline)) as sock:
        return _exchange(sock, peer, target, deadline, max_body)


def json_object(answer: Answer, *, what: str, max_bytes: int) -> dict[str, Any]:
    """Return the object in an answer's body.

    Raises:
        CollectError: it is not one object of strict JSON.
    """
    try:
        return parse_object(answer.body, what=what, max_bytes=max_bytes)
    except JsonError as error:
        raise CollectError(f"{what} is no strict JSON object ({error.code})") from None


def connect_unix(path: str, deadline: Deadline) -> socket.socket:
    """Connect to a Unix socket.

    Raises:
        OSError: it cannot be reached, or not in time.
    """
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(deadline.left_s())
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


def connect_tls(host: str, port: int, trust: ssl.SSLContext, deadline: Deadline) -> socket.socket:
    """Connect to the first address of ``host`` that answers, and finish the TLS handshake.

    Raises:
        OSError: it cannot be reached or trusted, or not in time.
    """
    sock = _connect_tcp(host, port, deadline)
    try:
        secured = trust.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    except BaseException:
        sock.close()
        raise
    try:
        secured.settimeout(deadline.left_s())
        secured.do_handshake()
    except BaseException:
        secured.close()
        raise
    return secured


def _connect_tcp(host: str, port: int, deadline: Deadline) -> socket.socket:
    found = _addresses(host, port, deadline)
    last: OSError = OSError(f"{host} has no address")
    for index, (family, kind, proto, _, address) in enumerate(found):
        sock = socket.socket(family, kind, proto)
        try:
            # A silent address must leave time for the next one.
            sock.settimeout(deadline.left_s() / (len(found) - index))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            sock.close()
            last = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise last


def _addresses(host: str, port: int, deadline: Deadline) -> list[Any]:
    answers: queue.SimpleQueue[list[Any] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            answers.put(error)
        except UnicodeError:
            answers.put(OSError(f"{host[:64]} is no host name"))

    # A resolver takes no deadline, so nobody waits for it any longer than that; nor for two at a time.
    before = _RESOLVERS.get(host)
    if before is not None and before.is_alive():
        raise TimeoutError
    _RESOLVERS[host] = threading.Thread(target=ask, name="resolve", daemon=True)
    _RESOLVERS[host].start()
    try:
        answer = answers.get(timeout=deadline.left_s())
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def _exchange(sock: socket.socket, peer: Peer, target: str, deadline: Deadline, max_body: int) -> Answer:
    from ticket_agent.protocol.http_exchange import (  # noqa: PLC0415 - start-up time
        BrokenHttpError,
        Exchange,
        WireError,
    )

    exchange = Exchange(max_body=max_body)
    headers = [("Host", peer.host), ("Accept", "application/json"), ("Connection", "close"), *peer.headers]
    _send(sock, exchange.request("GET", target, headers), deadline)
    try:
        while True:
            sock.settimeout(deadline.left_s())
            reply = exchange.receive(sock.recv(CHUNK))
            if exchange.status not in {None, OK}:
                return Answer(status=exchange.status or 0, body=b"")
            if reply is not None:
                return Answer(status=OK, body=reply.body)
    except BrokenHttpError:
        raise CollectError(f"{peer.name} did not answer in HTTP, or not completely") from None
    except WireError as error:
        raise CollectError(f"{peer.name} {error}") from None


def _send(sock: socket.socket, data: bytes, deadline: Deadline) -> None:
    rest = memoryview(data)
    while rest:
        sock.settimeout(deadline.left_s())
        rest = rest[sock.send(rest) :]


@contextmanager
def _explained(peer: Peer) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise CollectError(f"{peer.name} gave no answer in time", UnavailableReason.TIMED_OUT) from None
    except ssl.SSLCertVerificationError as error:
        raise CollectError(f"{peer.name} is not trusted: {error.verify_message}") from None
    except OSError as error:
        reason = (isinstance(error, ssl.SSLError) and error.reason) or error.strerror or error
        raise CollectError(f"{peer.name} cannot be reached: {reason}") from None
