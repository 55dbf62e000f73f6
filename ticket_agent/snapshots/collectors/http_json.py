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
MAX_HEAD: Final = 32 * 1024
"""Most bytes of the answer's head, or of one chunk's."""
MAX_INTERIM: Final = 8
"""Most interim (1xx) answers before the one that counts."""
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
    import h11  # noqa: PLC0415 - start-up time

    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
    headers = [("Host", peer.host), ("Accept", "application/json"), ("Connection", "close"), *peer.headers]
    request = h11.Request(method="GET", target=target, headers=headers)
    _send(sock, (http.send(request) or b"") + (http.send(h11.EndOfMessage()) or b""), deadline)
    body = bytearray()
    interim = 0
    try:
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                sock.settimeout(deadline.left_s())
                http.receive_data(sock.recv(CHUNK))
            elif isinstance(event, h11.Response):
                if event.status_code != OK:
                    return Answer(status=event.status_code, body=b"")
                _check_head(event, peer, max_body)
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > max_body:
                    raise _too_long(peer, max_body)
            elif isinstance(event, h11.InformationalResponse) and interim < MAX_INTERIM:
                interim += 1
            elif isinstance(event, h11.EndOfMessage):
                return Answer(status=OK, body=bytes(body))
            else:
                raise CollectError(f"{peer.name} gave no complete answer")
    except h11.RemoteProtocolError:
        raise CollectError(f"{peer.name} did not answer in HTTP, or not completely") from None


def _send(sock: socket.socket, data: bytes, deadline: Deadline) -> None:
    rest = memoryview(data)
    while rest:
        sock.settimeout(deadline.left_s())
        rest = rest[sock.send(rest) :]


def _check_head(head: Any, peer: Peer, max_body: int) -> None:
    for name, value in head.headers:
        if name == b"content-encoding" and value.lower() != b"identity":
            raise CollectError(f"{peer.name} sent an encoded body that was not asked for")
        if name == b"content-length" and int(value) > max_body:
            raise _too_long(peer, max_body)


def _too_long(peer: Peer, max_body: int) -> CollectError:
    return CollectError(f"{peer.name} answers with more than {max_body} bytes")


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
