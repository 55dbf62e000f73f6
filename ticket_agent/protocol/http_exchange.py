"""HTTP/1.1 of a client's connection, without I/O: requests to bytes, bytes to whole answers, all bounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import h11

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["MAX_BODY", "BrokenHttpError", "Exchange", "Reply", "WireError"]

MAX_BODY: Final = 1024 * 1024
"""Longest body in bytes. The largest answer, 64 frames, stays far below it even when all is escaped."""

MAX_HEAD: Final = 32 * 1024
"""Most bytes of one head, or of one chunk's head."""

MAX_INTERIM: Final = 8
"""Most interim (1xx) answers before the one that counts."""


class WireError(Exception):
    """The peer's bytes are no answer that could be used; the text completes "the gateway …".

    Only the text of a :class:`BrokenHttpError` may repeat what the peer sent.
    """

    code = "rest-wire"


class BrokenHttpError(WireError):
    """They are not HTTP, or not a complete answer."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer.

    Attributes:
        status: HTTP status.
        headers: by lower-case name; the first of equal names counts.
        body: as received.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class Exchange:
    """Requests and answers of one connection, strictly one after the other.

    After a :class:`WireError`, or when ``reusable`` is false, the connection has to be closed.
    """

    def __init__(self, *, max_body: int = MAX_BODY) -> None:
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        self._max_body = max_body
        self._head: h11.Response | None = None
        self._body = bytearray()
        self._interim = 0
        self._surplus = False

    def request(
        self, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes = b""
    ) -> bytes:
        """Return the bytes of the next request; headers must hold Host and, with a body, its length."""
        http = self._http
        if http.our_state is h11.DONE:
            http.start_next_cycle()
        self._head, self._interim = None, 0
        self._body.clear()
        head = h11.Request(method=method, target=target, headers=list(headers))
        parts = [http.send(head)]
        if body:
            parts.append(http.send(h11.Data(data=body)))
        parts.append(http.send(h11.EndOfMessage()))
        return b"".join(part for part in parts if part)

    def receive(self, data: bytes) -> Reply | None:
        """Take what arrived (nothing means the end of the stream); return the answer once it is complete.

        Raises:
            WireError: it is no HTTP, too large, encoded, or ended too early.
        """
        try:
            self._http.receive_data(data)
            while True:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    return None
                if isinstance(event, h11.EndOfMessage):
                    return self._complete()
                self._take(event)
        except h11.RemoteProtocolError as error:
            raise BrokenHttpError(f"broke HTTP: {error}") from None

    @property
    def status(self) -> int | None:
        """HTTP status of the answer whose body is awaited; None before its head is there."""
        return None if self._head is None else int(self._head.status_code)

    @property
    def reusable(self) -> bool:
        """Whether another request may follow on this connection."""
        http = self._http
        return (
            not self._surplus
            and http.our_state in (h11.IDLE, h11.DONE)
            and http.their_state
            in (
                h11.IDLE,
                h11.SEND_RESPONSE,
                h11.DONE,
            )
        )

    def _take(self, event: object) -> None:
        if isinstance(event, h11.Response):
            self._head = event
            if _first(event, b"content-encoding") not in {None, "identity"}:
                raise WireError("sent an encoded body that was not asked for")
            declared = _first(event, b"content-length")
            if declared is not None and int(declared) > self._max_body:
                raise WireError(f"announced a body of more than {self._max_body} bytes")
        elif isinstance(event, h11.Data):
            self._body += event.data
            if len(self._body) > self._max_body:
                raise WireError(f"sent a body of more than {self._max_body} bytes")
        elif isinstance(event, h11.InformationalResponse):
            self._interim += 1
            if self._interim > MAX_INTERIM:
                raise WireError(f"sent more than {MAX_INTERIM} interim answers")
        else:
            raise WireError("ended the connection before its answer was complete")

    def _complete(self) -> Reply:
        head = self._head
        if head is None:
            raise WireError("ended an answer that never began")
        self._surplus = bool(self._http.trailing_data[0])
        headers: dict[str, str] = {}
        for name, value in head.headers:
            headers.setdefault(name.decode("ascii"), value.decode("latin-1"))
        return Reply(head.status_code, headers, bytes(self._body))


def _first(head: h11.Response, name: bytes) -> str | None:
    return next((value.decode("latin-1").lower() for key, value in head.headers if key == name), None)
