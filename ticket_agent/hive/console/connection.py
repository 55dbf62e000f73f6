"""The client's side of a console connection without I/O: bytes in, events out.

Everything that may be said on a connection, and when, is decided here: framing, handshake, one command in
flight, its answer, C1 groups. Sockets, deadlines and retries are elsewhere, so that recorded traffic can be
replayed through the very code that talks to a hive. ``accepting`` is the console's side of it.

After a surprise a connection is closed for good. Where the next frame starts, or whose answer it is, is never
guessed: a stored line can look like protocol.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ticket_agent.hive.console.acks import lost_session
from ticket_agent.hive.console.framing import (
    FrameDecoder,
    FrameError,
    OverlongFrame,
    encode_frame,
)
from ticket_agent.hive.console.handshake import Attached, FailureKind, Handshake, HandshakeFailure, Send
from ticket_agent.hive.console.replies import (
    Answer,
    Done,
    Ended,
    Err,
    Verb,
    Violation,
    is_stray,
)
from ticket_agent.protocol.chunks import decode_lines
from ticket_agent.protocol.errors import ChunkError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.hive.console.replies import Command, Outcome
    from ticket_agent.hive.credentials import Secret

__all__ = [
    "Answered",
    "ClientConnection",
    "ClientEvent",
    "ConnectionStateError",
    "State",
    "ToSend",
    "Unasked",
]


class ConnectionStateError(Exception):
    """A call that the connection's state does not allow; a defect of the caller, nothing has changed."""

    code = "console-state"


class State(StrEnum):
    """How far a connection has come."""

    NEW = "new"
    AUTH = "auth"
    ATTACH = "attach"
    IDLE = "idle"
    BUSY = "busy"
    CLOSED = "closed"


class _Move(StrEnum):
    START = "start"
    AUTHENTICATE = "authenticate"
    ATTACH = "attach"
    COMMAND = "command"
    ANSWER = "answer"
    CLOSE = "close"


CLIENT_MOVES: Final[Mapping[State, Mapping[_Move, State]]] = MappingProxyType(
    {
        State.NEW: MappingProxyType({_Move.START: State.AUTH, _Move.CLOSE: State.CLOSED}),
        State.AUTH: MappingProxyType({_Move.AUTHENTICATE: State.ATTACH, _Move.CLOSE: State.CLOSED}),
        State.ATTACH: MappingProxyType({_Move.ATTACH: State.IDLE, _Move.CLOSE: State.CLOSED}),
        State.IDLE: MappingProxyType({_Move.COMMAND: State.BUSY, _Move.CLOSE: State.CLOSED}),
        State.BUSY: MappingProxyType({_Move.ANSWER: State.IDLE, _Move.CLOSE: State.CLOSED}),
        State.CLOSED: MappingProxyType({_Move.CLOSE: State.CLOSED}),
    }
)
"""Legal moves of a client's connection; every other one is an error that changes nothing."""


@dataclass(frozen=True, slots=True)
class ToSend:
    """Bytes that are due at once; they may hold a credential and are never shown."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Answered:
    """The command in flight has its one outcome; C1 groups of a read are reassembled."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Unasked:
    """The console said something although nothing was in flight; completes "the connection …"."""

    why: str


ClientEvent = ToSend | Attached | HandshakeFailure | Answered | Unasked

CHUNKED: Final = frozenset({Verb.CAT, Verb.TAIL})
"""Verbs whose data lines may be C1 frames."""


class ClientConnection:
    """The client's side: ``start``, then ``receive`` and ``next_event``; ``command`` whenever it is idle.

    1. One command is in flight at a time.
    2. The events do not depend on how the bytes were cut.
    3. After a failed handshake, a violation, an announced end, an unasked line or the answer to QUIT the
       state is CLOSED; bytes that arrive then are dropped unread.
    """

    def __init__(self, *, token: Secret, role: str, ticket: Secret | None = None) -> None:
        self._handshake = Handshake(token=token, role=role, ticket=ticket)
        self._decoder = FrameDecoder()
        self._flight: tuple[Command, Answer] | None = None
        self._state = State.NEW

    @property
    def state(self) -> State:
        """How far the connection has come."""
        return self._state

    @property
    def authenticated(self) -> bool:
        """Whether the console has accepted the token."""
        return self._handshake.authenticated

    @property
    def buffered(self) -> int:
        """Bytes that wait for the rest of their frame."""
        return self._decoder.buffered

    def start(self) -> bytes:
        """Return the first bytes; due at once after connecting, since early consoles wait only ~40 ms.

        Raises:
            ConnectionStateError: the connection was started before.
        """
        self._move(_Move.START)
        return encode_frame(self._handshake.start().line)

    def command(self, command: Command) -> bytes:
        """Put a command in flight and return its bytes.

        Raises:
            ConnectionStateError: no session, or another command is in flight.
            FrameError: the command is longer than any frame; nothing has changed.
        """
        data = encode_frame(command.line)
        self._move(_Move.COMMAND)
        self._flight = command, Answer(command)
        return data

    def receive(self, data: bytes) -> None:
        """Add bytes from the console; ``next_event`` says what they mean."""
        if self._state is not State.CLOSED:
            self._decoder.receive(data)

    def next_event(self) -> ClientEvent | None:
        """Return the next event, or None when more bytes are needed."""
        while self._state is not State.CLOSED:
            try:
                payload = self._decoder.next_frame()
            except FrameError as error:
                return self._garbage(error)
            if payload is None:
                return None
            if isinstance(payload, OverlongFrame):
                return self._garbage(FrameError(f"a frame of {payload.declared} bytes exceeds the bound"))
            event = self._frame(payload)
            if event is not None:
                return event
        return None

    def ended(self) -> ClientEvent | None:
        """Return what the end of the stream means at this point; the connection is closed."""
        before = self._state
        self._close()
        match before:
            case State.AUTH | State.ATTACH:
                return self._handshake.closed()
            case State.BUSY:
                return Answered(Ended("the connection was closed by the console"))
            case State.IDLE:
                return Unasked("was closed by the console while idle")
            case _:
                return None

    def expired(self) -> HandshakeFailure | None:
        """Return what a passed deadline means during the handshake; the connection is closed."""
        before = self._state
        self._close()
        return self._handshake.timed_out() if before in {State.AUTH, State.ATTACH} else None

    def _frame(self, payload: bytes) -> ClientEvent | None:
        match self._state:
            case State.AUTH | State.ATTACH:
                return self._greeted(payload)
            case State.BUSY:
                return self._answered(payload)
            case _:
                return None if is_stray(payload) else self._unasked("carried a line nobody asked for")

    def _greeted(self, payload: bytes) -> ClientEvent | None:
        step = self._handshake.receive(payload)
        match step:
            case Send(line):
                self._move(_Move.AUTHENTICATE)
                return ToSend(encode_frame(line))
            case Attached():
                self._move(_Move.ATTACH)
            case HandshakeFailure():
                self._close()
        return step

    def _answered(self, payload: bytes) -> ClientEvent | None:
        if self._flight is None:
            return self._unasked("carried a line nobody asked for")
        command, answer = self._flight
        outcome = answer.receive(payload)
        if outcome is None:
            return None
        if isinstance(outcome, Done) and command.verb in CHUNKED:
            outcome = _reassembled(command, outcome)
        self._flight = None
        if command.verb is not Verb.QUIT and _keeps_session(outcome):
            self._move(_Move.ANSWER)
        else:
            self._close()
        return Answered(outcome)

    def _garbage(self, error: FrameError) -> ClientEvent:
        before = self._state
        self._close()
        match before:
            case State.BUSY:
                return Answered(Violation(str(error)))
            case State.IDLE | State.NEW:
                return Unasked(f"carried garbage: {error}")
            case _:
                why = f"{error}; check that this is a Cohesix console"
                return HandshakeFailure(kind=FailureKind.VIOLATION, why=why)

    def _unasked(self, why: str) -> Unasked:
        self._close()
        return Unasked(why)

    def _close(self) -> None:
        self._move(_Move.CLOSE)
        self._flight = None
        # What was received is worthless now and must not be kept.
        self._decoder = FrameDecoder()

    def _move(self, move: _Move) -> None:
        following = CLIENT_MOVES[self._state].get(move)
        if following is None:
            raise ConnectionStateError(f"a connection that is {self._state} allows no {move}")
        self._state = following


def _reassembled(command: Command, done: Done) -> Outcome:
    try:
        return Done(done.detail, tuple(decode_lines(done.lines)))
    except ChunkError as error:
        return Violation(f"{command.verb} {command.path} carried a broken C1 group: {error}")


def _keeps_session(outcome: Outcome) -> bool:
    match outcome:
        case Done():
            return True
        case Err(refusal):
            return not lost_session(refusal)
        case _:
            return False
