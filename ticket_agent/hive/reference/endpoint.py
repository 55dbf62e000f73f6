"""A listening socket with one owner at a time, served by one thread."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.hive.console.framing import (
    HEADER_LEN,
    MAX_LINE_LEN,
    FrameDecoder,
    FrameError,
    OverlongFrame,
    encode_frame,
)

from .faults import Fault, FaultKind, Faults
from .session import Reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from .commands import Command
    from .session import ConsoleSession

__all__ = ["Endpoint", "Timeouts"]

_SEND_S: Final = 5.0
_EVENT_POLL_S: Final = 0.005
_BACKLOG: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Waits of a console, in seconds.

    Attributes:
        auth_s: from accept to the first frame.
        idle_s: between two commands.
        quit_s: for the peer's half of the end after ``OK QUIT``.
    """

    auth_s: float = 5.0
    idle_s: float = 300.0
    quit_s: float = 1.0


class _EndError(Exception):
    """The connection is over: the peer left, a fault closed it, or the endpoint is stopping."""

    code = "endpoint-end"


class Endpoint:
    """Serves one client at a time, as the target's console does.

    A second connection is accepted by the kernel, gets no bytes while the first one lives, and ends when that
    one has left. ``stop`` returns when the thread has ended and all sockets are closed.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        new_session: Callable[[], ConsoleSession],
        faults: Faults,
        timeouts: Timeouts,
    ) -> None:
        self._new_session = new_session
        self._faults = faults
        self._timeouts = timeouts
        self._listener = socket.create_server((host, port), backlog=_BACKLOG)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._waker, self._alarm = socket.socketpair()
        self._alarm.setblocking(False)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"console-{self.port}", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Close the connection and the listener; returns when nothing is left. May be called twice."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._waker.send(b"x")
        if self._thread.ident is not None:
            self._thread.join()
        self._listener.close()
        self._waker.close()
        self._alarm.close()

    def kick(self) -> None:
        """End the current connection, if there is one."""
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    def _run(self) -> None:
        while not self._stopping.is_set():
            select.select([self._listener, self._alarm], [], [])
            self._silence_alarm()
            connection = None if self._stopping.is_set() else self._accept()
            if connection is not None:
                with connection:
                    self._serve(connection)
                    # Before the close: who connects after having seen it belongs to the next turn.
                    queue = self._waiting()
                for waiting in queue:
                    _turn_away(waiting)

    def _accept(self) -> socket.socket | None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return None
        connection.settimeout(_SEND_S)
        # A peer that already reset the connection is noticed when it is served.
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _waiting(self) -> list[socket.socket]:
        queue: list[socket.socket] = []
        while (connection := self._accept()) is not None:
            queue.append(connection)
        return queue

    def _silence_alarm(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._alarm.recv(64):
                pass

    def _serve(self, connection: socket.socket) -> None:
        conversation = _Conversation(
            connection, self._alarm, self._new_session(), self._faults, self._timeouts
        )
        with contextlib.suppress(_EndError, OSError):
            conversation.run()


def _turn_away(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        connection.setblocking(False)
        connection.shutdown(socket.SHUT_WR)
        # Unread bytes would turn the close into a reset; the target ends such connections quietly.
        while connection.recv(4096):
            pass


class _Conversation:
    """One connection: frames in, the session's answers out, faults in between."""

    def __init__(
        self,
        connection: socket.socket,
        alarm: socket.socket,
        session: ConsoleSession,
        faults: Faults,
        timeouts: Timeouts,
    ) -> None:
        self._connection = connection
        self._alarm = alarm
        self._session = session
        self._faults = faults
        self._timeouts = timeouts
        self._decoder = FrameDecoder(HEADER_LEN + MAX_LINE_LEN, drain_overlong=True)

    def run(self) -> None:
        """Serve until the connection is over."""
        first = self._frame(self._timeouts.auth_s)
        if first is None:
            self._send(self._session.auth_failure("timeout"))
            return
        if isinstance(first, OverlongFrame):
            return
        self._send(self._session.authenticate(first))
        while True:
            frame = self._frame(self._timeouts.idle_s)
            if frame is None:
                self._send(Reply(("ERR CONSOLE reason=timeout",), close=True))
            elif isinstance(frame, OverlongFrame):
                self._send(Reply(("ERR FRAME reason=invalid-length",)))
            else:
                self._handle(frame)

    def _handle(self, payload: bytes) -> None:
        command = self._session.parse(payload)
        if isinstance(command, Reply):
            self._send(command)
            return
        fault = self._faults.decide(command.verb, command.path, command.payload)
        if fault is None:
            self._send(self._apply(command))
        else:
            self._strike(fault, command)

    def _strike(self, fault: Fault, command: Command) -> None:
        match fault.kind:
            case FaultKind.DROP_BEFORE:
                raise _EndError
            case FaultKind.DROP_AFTER:
                self._apply(command)
                raise _EndError
            case FaultKind.ERR:
                self._send(Reply((fault.line(command.verb, command.path),)))
            case FaultKind.SILENT:
                self._apply(command)
            case FaultKind.SWALLOW:
                pass
            case FaultKind.GARBAGE:
                self._apply(command)
                self._send(Reply((fault.line(command.verb, command.path),)))
            case FaultKind.DELAY:
                self._pause(fault)
                self._send(self._apply(command))
            case FaultKind.DELAY_ANSWER:
                reply = self._apply(command)
                self._pause(fault)
                self._send(reply)
            case FaultKind.STATUS_BEFORE | FaultKind.STATUS_AFTER | FaultKind.HUGE:
                # A console has no such answers.
                self._send(self._apply(command))

    def _apply(self, command: Command) -> Reply:
        reply = self._session.execute(command)
        if command.verb == "ECHO" and reply.lines[0].startswith("OK "):
            self._faults.applied(command.path, command.payload)
        return reply

    def _send(self, reply: Reply) -> None:
        self._connection.sendall(b"".join(encode_frame(line) for line in reply.lines))
        if reply.quit:
            self._await_peer_end()
        if reply.close:
            raise _EndError

    def _await_peer_end(self) -> None:
        deadline = time.monotonic() + self._timeouts.quit_s
        while self._readable(deadline) and self._connection.recv(4096):
            pass

    def _frame(self, timeout_s: float) -> bytes | OverlongFrame | None:
        """Return the next frame, or None when it did not arrive in time."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                frame = self._decoder.next_frame()
            except FrameError:
                raise _EndError from None
            if frame is not None:
                return frame
            if not self._readable(deadline):
                return None
            data = self._connection.recv(65536)
            if not data:
                raise _EndError
            self._decoder.receive(data)

    def _readable(self, deadline: float) -> bool:
        readable, _, _ = select.select(
            [self._connection, self._alarm], [], [], max(0.0, deadline - time.monotonic())
        )
        if self._alarm in readable:
            raise _EndError
        return bool(readable)

    def _pause(self, fault: Fault) -> None:
        """Wait as a delay says; only stopping or kicking the endpoint ends it early."""
        deadline = time.monotonic() + fault.seconds
        while (left := deadline - time.monotonic()) > 0:
            if fault.event is not None and fault.event.is_set():
                return
            step = left if fault.event is None else min(left, _EVENT_POLL_S)
            if select.select([self._alarm], [], [], step)[0]:
                raise _EndError
