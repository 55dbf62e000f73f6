"""The console's side of a connection without I/O: bytes in, events out.

Which frames count before a client has authenticated and which after, what a frame over the bound does, and
how an early console loses commands. What a command means is not decided here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ticket_agent.hive.console.connection import ConnectionStateError, State
from ticket_agent.hive.console.framing import (
    HEADER_LEN,
    NEWER_BOUNDS,
    FrameDecoder,
    FrameError,
    OverlongFrame,
)

if TYPE_CHECKING:
    from ticket_agent.hive.console.framing import Bounds

__all__ = ["Broken", "Hello", "Line", "Overlong", "ServerConnection", "ServerEvent"]


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame: a client that has not authenticated yet; it may hold a credential."""

    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Line:
    """One command line of an authenticated client."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Overlong:
    """A frame over the console's bound; its payload is skipped and the session goes on."""

    declared: int


@dataclass(frozen=True, slots=True)
class Broken:
    """The connection has to be dropped without a word."""

    why: str


ServerEvent = Hello | Line | Overlong | Broken


class ServerConnection:
    """The console's side: frames of a client, before and after it authenticated.

    1. The first frame is a :class:`Hello`; nothing after it is looked at until ``authenticated`` was called.
    2. An illegal frame before that drops the connection; later an over-long one is reported and skipped.
    3. After :class:`Broken` everything is dropped unread.

    Args:
        bounds: what this generation of consoles accepts.
        queue_depth: commands that wait at most; further ones push the oldest out, silently, as early consoles
            do. None loses nothing.
    """

    def __init__(self, *, bounds: Bounds = NEWER_BOUNDS, queue_depth: int | None = None) -> None:
        self._decoder = FrameDecoder(HEADER_LEN + bounds.line, drain_overlong=True)
        self._queue_depth = queue_depth
        self._queue: deque[ServerEvent] = deque()
        self._greeted = False
        self._state = State.AUTH
        self.dropped = 0
        """Commands that were pushed out of the queue."""

    @property
    def state(self) -> State:
        """AUTH, then IDLE, then CLOSED."""
        return self._state

    @property
    def buffered(self) -> int:
        """Bytes that wait for the rest of their frame."""
        return self._decoder.buffered

    def authenticated(self) -> None:
        """Note that the hello was accepted; what the client sent behind it is now read.

        Raises:
            ConnectionStateError: there was none, or it was accepted before.
        """
        if self._state is not State.AUTH or not self._greeted:
            raise ConnectionStateError(f"a connection that is {self._state} cannot be authenticated")
        self._state = State.IDLE
        self._fill()

    def receive(self, data: bytes) -> None:
        """Add bytes from the client; ``next_event`` says what they mean."""
        if self._state is State.CLOSED:
            return
        self._decoder.receive(data)
        if self._state is State.IDLE:
            self._fill()

    def next_event(self) -> ServerEvent | None:
        """Return the next event, or None when more bytes (or ``authenticated``) are needed."""
        if self._state is State.CLOSED:
            return None
        if self._state is State.AUTH:
            return None if self._greeted else self._first()
        event = self._queue.popleft() if self._queue else self._following()
        if isinstance(event, Broken):
            self.close()
        return event

    def close(self) -> None:
        """Drop whatever was received; nothing more will come of it."""
        self._state = State.CLOSED
        self._queue.clear()
        self._decoder = FrameDecoder()

    def _first(self) -> ServerEvent | None:
        event = self._following()
        match event:
            case Line(payload):
                self._greeted = True
                return Hello(payload)
            case None:
                return None
            case Broken():
                pass
            case _:
                event = Broken("the first frame is longer than any command")
        self.close()
        return event

    def _fill(self) -> None:
        """Take in everything that is complete, where the console's queue can lose something."""
        if self._queue_depth is None:
            return
        while not (self._queue and isinstance(self._queue[-1], Broken)):
            event = self._following()
            if event is None:
                return
            self._queue.append(event)
            if len(self._queue) > self._queue_depth:
                self._queue.popleft()
                self.dropped += 1

    def _following(self) -> Line | Overlong | Broken | None:
        try:
            frame = self._decoder.next_frame()
        except FrameError as error:
            return Broken(str(error))
        match frame:
            case None:
                return None
            case OverlongFrame(declared):
                return Overlong(declared)
            case payload:
                return Line(payload)
