"""One console session without its socket: payloads in, answer lines out (transports, handshake, replies)."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from ticket_agent.hive.console.accepting import Broken, Hello, Line, Overlong, ServerConnection
from ticket_agent.hive.console.connection import State
from ticket_agent.hive.console.framing import NEWER_BOUNDS, OLDER_BOUNDS, Bounds

from .commands import STREAMED, Command, GrammarError, decode_line, parse_command
from .errors import RefusalError
from .tickets import AttachDeniedError, LimitError, TicketDesk

if TYPE_CHECKING:
    from ticket_agent.hive.console.accepting import ServerEvent

    from .limiter import AttachLimiter
    from .tickets import Permit

__all__ = ["END", "OLDER_CONSOLE", "ConsoleSession", "Reply", "SessionOptions"]

END: Final = "END"
"""Closes every streamed answer."""

_AUTH: Final = "AUTH "
_QUEEN: Final = "queen"
_WORKER_ROLES: Final = frozenset({"worker", "worker-heartbeat", "worker-gpu", "worker-bus", "worker-lora"})
_DETAIL_LIMIT: Final = 128


class Tree(Protocol):
    """What a session needs of a hive; both calls raise :class:`RefusalError` and then changed nothing."""

    def echo(self, path: str, payload: str, *, role: str) -> int:
        """Append; return the bytes that were stored."""

    def wire(self, verb: str, path: str, *, role: str, newest: int | None = None) -> list[str]:
        """Return the data lines of LS, CAT or TAIL."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What to send and whether the session ends after it.

    Attributes:
        lines: answer lines in order.
        close: end the connection after sending.
        quit: the peer asked for the end; wait shortly for its half of it.
    """

    lines: tuple[str, ...] = ()
    close: bool = False
    quit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """Quirks of older consoles.

    Attributes:
        silent_auth: a refused AUTH is a bare end of the connection.
        stray_pong: PING also sends a bare ``PONG`` line.
        short_errors: an ``ERR`` whose detail passes ``detail_limit`` characters is cut behind its reason.
        bounds: what it accepts.
        queue_depth: commands that wait at most before the oldest is lost; None loses nothing.
        abrupt_quit: QUIT closes at once instead of waiting for the peer's end.
    """

    silent_auth: bool = False
    stray_pong: bool = False
    short_errors: bool = False
    bounds: Bounds = NEWER_BOUNDS
    queue_depth: int | None = None
    abrupt_quit: bool = False


OLDER_CONSOLE: Final = SessionOptions(
    silent_auth=True,
    stray_pong=True,
    short_errors=True,
    bounds=OLDER_BOUNDS,
    queue_depth=8,
    abrupt_quit=True,
)
"""The recorded console: everything that later ones no longer do, and the smaller bounds."""


class ConsoleSession:
    """State of one session: not authenticated, authenticated, attached.

    1. Nothing is applied before the first frame was exactly ``AUTH <token>``; any other first frame ends it.
    2. Namespace verbs need an attached role.
    3. A command is applied by ``execute`` alone, and entirely or not at all.
    """

    def __init__(
        self,
        hive: Tree,
        *,
        token: str,
        limiter: AttachLimiter,
        options: SessionOptions,
        desk: TicketDesk | None = None,
    ) -> None:
        self._hive = hive
        self._desk = desk or TicketDesk({}, clock=lambda: 0)
        self._permit: Permit | None = None
        self._token = token
        self._limiter = limiter
        self._options = options
        self._role: str | None = None
        self.connection = ServerConnection(bounds=options.bounds, queue_depth=options.queue_depth)
        """The frames of this session's client."""

    @property
    def authenticated(self) -> bool:
        """Whether the first frame was accepted."""
        return self.connection.state is State.IDLE

    def hear(self, event: ServerEvent) -> Command | Reply:
        """Take what the client said; a :class:`Reply` is final, a command is still to be applied."""
        match event:
            case Hello(payload):
                return self.authenticate(payload)
            case Line(payload):
                return self.parse(payload)
            case Overlong():
                return Reply(("ERR FRAME reason=invalid-length",))
            case Broken():
                return Reply(close=True)

    def silence(self) -> Reply:
        """Return what ends a session whose client said nothing for too long."""
        if not self.authenticated:
            return self.auth_failure("timeout")
        return Reply(("ERR CONSOLE reason=timeout",), close=True)

    def authenticate(self, payload: bytes) -> Reply:
        """Judge the first frame."""
        reason = self._auth_refusal(payload)
        if reason is not None:
            return self.auth_failure(reason)
        self.connection.authenticated()
        return Reply(("OK AUTH",))

    def auth_failure(self, reason: str) -> Reply:
        """Return the answer that ends an unauthenticated session."""
        return Reply(() if self._options.silent_auth else (f"ERR AUTH reason={reason}",), close=True)

    def parse(self, payload: bytes) -> Command | Reply:
        """Read a frame of an authenticated session; a :class:`Reply` is the final answer to a bad one."""
        try:
            return parse_command(decode_line(payload), self._options.bounds)
        except UnicodeDecodeError:
            return Reply(close=True)
        except GrammarError as error:
            return Reply((f"ERR PARSE reason=policy detail={error}",))

    def execute(self, command: Command) -> Reply:
        """Apply a command and return its answer."""
        match command.verb:
            case "PING":
                pong = ("PONG",) if self._options.stray_pong else ()
                return Reply(("OK PING reply=pong", *pong))
            case "QUIT":
                return Reply(("OK QUIT",), close=True, quit=not self._options.abrupt_quit)
            case "ATTACH":
                return Reply((self._attach(command),))
        if self._role is None:
            return Reply((f"ERR {command.verb} reason=policy detail=unauthenticated",))
        try:
            if self._permit is not None:
                self._permit.charge(command.verb, command.path)
            lines = self._namespace(command, self._role)
        except RefusalError as refusal:
            return Reply((self._error_line(refusal, command),))
        except LimitError as limit:
            return Reply((limit.line(command.verb, command.path),))
        if self._permit is not None:
            self._permit.spend(sum(len(line) for line in lines) + len(command.payload))
        return Reply(lines)

    def _auth_refusal(self, payload: bytes) -> str | None:
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            return "expected-token"
        if not text.startswith(_AUTH):
            return "expected-token"
        expected = (_AUTH + self._token).encode()
        if len(payload) != len(expected):
            return "invalid-length"
        return None if hmac.compare_digest(payload, expected) else "invalid-token"

    def _attach(self, command: Command) -> str:
        role = command.payload
        if role != _QUEEN and role not in _WORKER_ROLES:
            return "ERR ATTACH reason=policy detail=invalid-role"
        limited = self._limiter.refusal()
        if limited is not None:
            return f"ERR ATTACH reason=quota {limited}"
        try:
            self._permit = self._desk.admit(role, command.ticket)
        except AttachDeniedError as denied:
            self._limiter.failed()
            return f"ERR ATTACH reason=policy detail={denied.detail}"
        self._limiter.succeeded()
        self._role = role
        return f"OK ATTACH role={role}"

    def _namespace(self, command: Command, role: str) -> tuple[str, ...]:
        verb, path = command.verb, command.path
        if verb not in STREAMED:
            if role != _QUEEN:
                raise LimitError("policy", "detail=denied")
            size = self._hive.echo(path, command.payload, role=role)
            return (f"OK ECHO path={path} bytes={size}",)
        lines = self._hive.wire(verb, path, role=role, newest=command.lines)
        head = {
            "LS": f"OK LS path={path} entries={len(lines)}",
            "CAT": f"OK CAT {_with_preview(path, lines)}",
            "TAIL": f"OK TAIL path={path}",
        }[verb]
        return (head, *lines, END)

    def _error_line(self, refusal: RefusalError, command: Command) -> str:
        line = refusal.line(command.verb, command.path)
        head = f"ERR {command.verb} "
        if self._options.short_errors and len(line) - len(head) > _DETAIL_LIMIT:
            return f"{head}reason={refusal.reason} "
        return line


def _with_preview(path: str, lines: list[str]) -> str:
    """Return the detail of an ``OK CAT``: its preview is lossy and cut to fit 128 characters."""
    return f"path={path} data={'|'.join(lines)}"[: max(_DETAIL_LIMIT, len(f"path={path} data="))]
