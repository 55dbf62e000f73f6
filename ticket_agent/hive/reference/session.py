"""One console session without its socket: payloads in, answer lines out (transports, handshake, replies)."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .commands import STREAMED, Command, GrammarError, decode_line, parse_command
from .errors import RefusalError

if TYPE_CHECKING:
    from .hive import ReferenceHive
    from .limiter import AttachLimiter

__all__ = ["END", "ConsoleSession", "Reply", "SessionOptions"]

END: Final = "END"
"""Closes every streamed answer."""

_AUTH: Final = "AUTH "
_QUEEN: Final = "queen"
_WORKER_ROLES: Final = frozenset({"worker", "worker-heartbeat", "worker-gpu", "worker-bus", "worker-lora"})
_DETAIL_LIMIT: Final = 128


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
        short_errors: an ``ERR`` whose detail passes 128 characters is cut behind its reason.
    """

    silent_auth: bool = False
    stray_pong: bool = False
    short_errors: bool = False


class ConsoleSession:
    """State of one session: not authenticated, authenticated, attached.

    1. Nothing is applied before the first frame was exactly ``AUTH <token>``; any other first frame ends it.
    2. Namespace verbs need an attached role.
    3. A command is applied by ``execute`` alone, and entirely or not at all.
    """

    def __init__(
        self, hive: ReferenceHive, *, token: str, limiter: AttachLimiter, options: SessionOptions
    ) -> None:
        self._hive = hive
        self._token = token
        self._limiter = limiter
        self._options = options
        self._role: str | None = None
        self.authenticated = False

    def authenticate(self, payload: bytes) -> Reply:
        """Judge the first frame."""
        reason = self._auth_refusal(payload)
        if reason is not None:
            return self.auth_failure(reason)
        self.authenticated = True
        return Reply(("OK AUTH",))

    def auth_failure(self, reason: str) -> Reply:
        """Return the answer that ends an unauthenticated session."""
        return Reply(() if self._options.silent_auth else (f"ERR AUTH reason={reason}",), close=True)

    def parse(self, payload: bytes) -> Command | Reply:
        """Read a frame of an authenticated session; a :class:`Reply` is the final answer to a bad one."""
        try:
            return parse_command(decode_line(payload))
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
                return Reply(("OK QUIT",), close=True, quit=True)
            case "ATTACH":
                return Reply((self._attach(command),))
        if self._role is None:
            return Reply((f"ERR {command.verb} reason=policy detail=unauthenticated",))
        try:
            return Reply(self._namespace(command, self._role))
        except RefusalError as refusal:
            return Reply((self._error_line(refusal, command),))

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
        # Workers attach with a capability token; this hive mints none, so that no token is a good one.
        if role != _QUEEN or command.ticket:
            self._limiter.failed()
            return "ERR ATTACH reason=policy detail=denied"
        self._limiter.succeeded()
        self._role = role
        return f"OK ATTACH role={role}"

    def _namespace(self, command: Command, role: str) -> tuple[str, ...]:
        verb, path = command.verb, command.path
        if verb not in STREAMED:
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
