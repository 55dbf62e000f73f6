"""HTTP to a model server on this machine, and to nothing else.

Proxies are not looked at and redirections not followed. Every request carries a token. The whole exchange,
from connecting to the last byte, has one deadline and one bound of bytes, which hold below the HTTP parser:
a server that sends a byte now and then gets no more time than one that sends none.
"""

from __future__ import annotations

import hmac
import http.client
import re
import socket
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.names import shown
from ticket_agent.peft.release.completion import MAX_LINE_BYTES
from ticket_agent.peft.release.serving_errors import (
    AnswerRefusedError,
    InstanceRefusedError,
    ServerRefusedError,
    ServerTimeoutError,
    ServerUnreachableError,
)
from ticket_agent.protocol.errors import JsonError
from ticket_agent.protocol.json_strict import dumps, parse_object

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LOOPBACK", "MAX_ANSWER_BYTES", "LoopbackClient", "check_port", "check_token", "same_token"]

LOOPBACK: Final = "127.0.0.1"
MAX_ANSWER_BYTES: Final = 64 * 1024
"""One answer with its headers."""
MAX_REQUEST_BYTES: Final = 16 * 1024
MIN_PORT: Final = 1024
MAX_PORT: Final = 65535

_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,128}")
_OK: Final = 200


def check_token(token: object) -> str:
    """Return ``token`` if it is 32..=128 letters, digits, ``_`` or ``-``.

    Raises:
        InstanceRefusedError: it is not; the error does not repeat it.
    """
    if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
        raise InstanceRefusedError("a server's token must be 32..=128 ASCII letters, digits, _ or -")
    return token


def check_port(port: object) -> int:
    """Return ``port`` if it is one in 1024..=65535.

    Raises:
        InstanceRefusedError: it is not.
    """
    if type(port) is not int or not MIN_PORT <= port <= MAX_PORT:
        raise InstanceRefusedError(f"a server's port must be in {MIN_PORT}..={MAX_PORT}, not {port}")
    return port


def same_token(given: str, wanted: str) -> bool:
    """Compare without telling by the time it takes how much was right."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopbackClient:
    """Requests to one port of this machine; each on a connection of its own.

    Attributes:
        port: of the server.
        token: that it asks for.

    Raises:
        InstanceRefusedError: no such port or token.
    """

    port: int
    token: str = field(repr=False)

    def __post_init__(self) -> None:
        check_port(self.port)
        check_token(self.token)

    def get(self, path: str, *, deadline_s: float, authorised: bool = True) -> dict[str, Any]:
        """Get one JSON object.

        Args:
            path: absolute, without a host.
            deadline_s: for the whole exchange, in seconds from now.
            authorised: send the token.

        Raises:
            ServingError: every way in which this can fail.
        """
        headers = self._headers() if authorised else {"Accept": "application/json"}
        with self._exchange("GET", path, b"", headers, deadline_s) as response:
            data = response.read()
        try:
            return parse_object(data, what=f"answer to {path}", max_bytes=MAX_ANSWER_BYTES)
        except JsonError as error:
            raise AnswerRefusedError(str(error)) from None

    def post_streamed(self, path: str, body: dict[str, Any], *, deadline_s: float) -> Iterator[bytes]:
        """Send a JSON object and yield the lines of the answer, without their ends, as they come.

        Raises:
            ServingError: every way in which this can fail.
        """
        data = dumps(body)
        if len(data) > MAX_REQUEST_BYTES:
            raise AnswerRefusedError(f"a request of {len(data)} bytes; the limit is {MAX_REQUEST_BYTES}")
        headers = self._headers() | {"Content-Type": "application/json"}
        with self._exchange("POST", path, data, headers, deadline_s) as response:
            while line := response.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES:
                    raise AnswerRefusedError(f"a line of the answer exceeds {MAX_LINE_BYTES} bytes")
                if not line.endswith(b"\n"):
                    raise AnswerRefusedError("the answer ends within a line")
                yield line.rstrip(b"\r\n")

    def _headers(self) -> dict[str, str]:
        return {"Accept": "application/json, text/event-stream", "Authorization": f"Bearer {self.token}"}

    @contextmanager
    def _exchange(
        self, method: str, path: str, data: bytes, headers: dict[str, str], deadline_s: float
    ) -> Iterator[http.client.HTTPResponse]:
        where = f"{LOOPBACK}:{self.port}"
        connection = _Connection(self.port, deadline_s)
        try:
            with closing(connection):
                connection.connect()
                # Who refuses a question may end the connection while it is sent; what was said before counts.
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.request(method, path, body=data or None, headers=headers)
                with closing(connection.getresponse()) as response:
                    if response.status != _OK:
                        said = shown(_explanation(response).decode("utf-8", "backslashreplace"), 160)
                        raise ServerRefusedError(
                            f"{where} answers {method} {path} with status {response.status}: {said}",
                            status=response.status,
                        )
                    yield response
        except TimeoutError:
            raise ServerTimeoutError(f"{where} did not finish its answer in {deadline_s:g} s") from None
        except _TooLongError:
            raise AnswerRefusedError(f"{where}: the answer exceeds {MAX_ANSWER_BYTES} bytes") from None
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            raise ServerUnreachableError(f"{where}: {error.strerror or error}", refused=refused) from None
        except http.client.HTTPException as error:
            raise AnswerRefusedError(f"{where}: no proper answer ({type(error).__name__})") from None


def _explanation(response: http.client.HTTPResponse) -> bytes:
    """What a server says about its refusal, as far as it can be had; that it refused is known without it."""
    try:
        return response.read(512)
    except (OSError, http.client.HTTPException, _TooLongError):
        return b""


class _TooLongError(Exception):
    """More bytes than an answer may have."""


class _BoundedSocket(socket.socket):
    """A connection that ends at a time, and after a number of bytes."""

    deadline: float
    left: int

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        remaining = self.deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self.settimeout(remaining)
        count = super().recv_into(*args, **kwargs)
        self.left -= count
        if self.left < 0:
            raise _TooLongError
        return count


class _Connection(http.client.HTTPConnection):
    """HTTP over a bounded socket."""

    def __init__(self, port: int, deadline_s: float) -> None:
        super().__init__(LOOPBACK, port)
        self._deadline_s = deadline_s
        self.deadline = time.monotonic() + deadline_s

    def connect(self) -> None:
        if self._deadline_s <= 0:
            raise TimeoutError
        bounded = _BoundedSocket(socket.AF_INET, socket.SOCK_STREAM)
        bounded.deadline, bounded.left = self.deadline, MAX_ANSWER_BYTES
        try:
            bounded.settimeout(self._deadline_s)
            bounded.connect((LOOPBACK, self.port))
            bounded.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            bounded.close()
            raise
        self.sock = bounded
