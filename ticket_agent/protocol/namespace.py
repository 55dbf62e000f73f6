"""The hive's namespace as types: four operations, three answers to an append, typed errors.

No transport lives here. Implementations are in ``ticket_agent.hive``; everything that only *uses* a hive
(lease actions, the agent) depends on these types alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

__all__ = [
    "Acked",
    "AppendAnswer",
    "HiveAuthError",
    "HiveBusyError",
    "HiveError",
    "HiveRefusedError",
    "HiveUnreachableError",
    "HiveViolationError",
    "Namespace",
    "Refusal",
    "RefusalKind",
    "Refused",
    "Unknown",
]


class RefusalKind(StrEnum):
    """What a definite ``ERR`` means to us (transports, grammar of replies)."""

    INVALID_PATH = "invalid-path"
    DENIED = "denied"
    BUSY = "busy"
    BUFFER_FULL = "buffer-full"
    INVALID_PAYLOAD = "invalid-payload"
    LIMIT = "limit"
    GRAMMAR = "grammar"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A definite answer of the hive: the command had no effect.

    Attributes:
        kind: class of the refusal.
        text: the peer's line, bounded and free of control characters.
    """

    kind: RefusalKind
    text: str


@dataclass(frozen=True, slots=True)
class Acked:
    """The hive accepted the append; that is not yet proof of what it did with it."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The hive answered this very command with ``ERR``: nothing was applied."""

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Unknown:
    """The answer was lost. The append may or may not have been applied; read back before anything else."""

    why: str


AppendAnswer = Acked | Refused | Unknown


class HiveError(Exception):
    """Root of what a namespace transport raises; ``code`` is stable, the text says what to check."""

    code = "hive"


class HiveUnreachableError(HiveError):
    """No connection, or it broke before the answer was complete. Reads may simply be repeated."""

    code = "hive-unreachable"


class HiveBusyError(HiveError):
    """Somebody else owns the hive's only console."""

    code = "hive-busy"


class HiveAuthError(HiveError):
    """The credential, role or ticket was refused."""

    code = "hive-auth"


class HiveViolationError(HiveError):
    """The peer broke the protocol; the session was closed rather than resynchronised by guessing."""

    code = "hive-violation"


class HiveRefusedError(HiveError):
    """A read was answered with ``ERR``."""

    code = "hive-refused"

    def __init__(self, verb: str, path: str, refusal: Refusal) -> None:
        super().__init__(f"the hive refused {verb} {path}: {refusal.text}")
        self.verb = verb
        self.path = path
        self.refusal = refusal

    @property
    def absent(self) -> bool:
        """Whether the answer means that there is no such node."""
        return self.refusal.kind is RefusalKind.INVALID_PATH


class Namespace(Protocol):
    """A hive's namespace as one client sees it.

    ``ls``, ``read`` and ``tail`` raise :class:`HiveError` subclasses. ``append`` never raises for what
    happens once the command may have left this host: that is :class:`Unknown`. A failure before anything was
    sent (no connection, refused credential) raises.
    """

    @property
    def session(self) -> int:
        """Number of the current session: 0 before the first, then 1, 2, …; a reconnect always raises it.

        A session with a higher number proves that the connection of a lower one is dead.
        """

    def ls(self, path: str) -> list[str]:
        """Names below a directory."""

    def read(self, path: str) -> list[str]:
        """All logical lines of a node (C1 groups are already reassembled)."""

    def tail(self, path: str) -> list[str]:
        """The newest retained lines of a log-like node, oldest first."""

    def append(self, path: str, line: str, *, session: int | None = None) -> AppendAnswer:
        """Append one line (without its newline) in one command; sent at most once by this call.

        Args:
            path: absolute path of the node.
            line: one line of ASCII.
            session: send only in this session; if it is over, nothing is sent and
                :class:`HiveUnreachableError` is raised. A hive that rebooted never gets what was meant for
                its earlier life.
        """

    def close(self) -> None:
        """End the session and release the console; the next operation would open a new one."""
