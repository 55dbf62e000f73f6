"""What a console answers to one command, as a state machine without I/O (transports, grammar of replies).

One command is in flight at a time. Its answer is one acknowledgement, or an acknowledgement, up to 64 data
lines and a line that is exactly ``END``. Whatever does not fit is a violation: the caller closes the session,
because a stored line that looks like protocol cannot be told from protocol.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ticket_agent.hive.console.acks import CONSOLE_VERB, GRAMMAR_VERBS, parse_ack, printable, refusal_of
from ticket_agent.hive.console.framing import MAX_DATA_FRAMES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.hive.console.acks import Ack
    from ticket_agent.protocol.namespace import Refusal

__all__ = [
    "Answer",
    "Command",
    "Done",
    "Ended",
    "Err",
    "Outcome",
    "Verb",
    "Violation",
    "is_stray",
]


class Verb(StrEnum):
    """The commands this client sends."""

    LS = "LS"
    CAT = "CAT"
    TAIL = "TAIL"
    ECHO = "ECHO"
    PING = "PING"
    QUIT = "QUIT"


@dataclass(frozen=True, slots=True)
class Command:
    """One command line; ``path`` for every verb but PING and QUIT, ``payload`` for ECHO."""

    verb: Verb
    path: str | None = None
    payload: str | None = field(default=None, repr=False)

    @property
    def line(self) -> str:
        """The text of the command's frame."""
        return " ".join(part for part in (self.verb, self.path, self.payload) if part is not None)


@dataclass(frozen=True, slots=True)
class Done:
    """The command succeeded."""

    detail: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Err:
    """The command was definitely refused and had no effect."""

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Ended:
    """The console announced that it closes the session; whether the command counted is open."""

    why: str


@dataclass(frozen=True, slots=True)
class Violation:
    """The peer sent something that cannot belong to this answer. ``why`` never quotes stored data."""

    why: str


Outcome = Done | Err | Ended | Violation

STRAY_LINE: Final = "PONG"
"""A second answer to PING that early consoles send, possibly after the next command was read."""

END_LINE: Final = "END"


class Shape(StrEnum):
    """What the answer to a verb consists of."""

    SINGLE = "single"
    STREAM = "stream"


class Phase(StrEnum):
    """How far the answer has come."""

    ACK = "ack"
    DATA = "data"


class Kind(StrEnum):
    """What one line looks like."""

    OK = "ok"
    ERR = "err"
    END = "end"
    DATA = "data"


class Step(StrEnum):
    """What a line does to the answer."""

    FINISH = "finish"
    REFUSE = "refuse"
    OPEN = "open"
    KEEP = "keep"
    VIOLATE = "violate"


SHAPES: Final[Mapping[Verb, Shape]] = MappingProxyType(
    {
        Verb.LS: Shape.STREAM,
        Verb.CAT: Shape.STREAM,
        Verb.TAIL: Shape.STREAM,
        Verb.ECHO: Shape.SINGLE,
        Verb.PING: Shape.SINGLE,
        Verb.QUIT: Shape.SINGLE,
    }
)

STEPS: Final[Mapping[tuple[Shape, Phase], Mapping[Kind, Step]]] = MappingProxyType(
    {
        (Shape.SINGLE, Phase.ACK): MappingProxyType({Kind.OK: Step.FINISH, Kind.ERR: Step.REFUSE}),
        (Shape.STREAM, Phase.ACK): MappingProxyType({Kind.OK: Step.OPEN, Kind.ERR: Step.REFUSE}),
        (Shape.STREAM, Phase.DATA): MappingProxyType({Kind.DATA: Step.KEEP, Kind.END: Step.FINISH}),
    }
)
"""Legal lines by shape and phase; every other line is a violation."""

VIOLATIONS: Final[Mapping[tuple[Phase, Kind], str]] = MappingProxyType(
    {
        (Phase.ACK, Kind.END): "an END came before the answer",
        (Phase.ACK, Kind.DATA): "a data line came before the answer",
        (Phase.DATA, Kind.OK): "a data line looks like an acknowledgement",
        (Phase.DATA, Kind.ERR): "a data line looks like a refusal",
    }
)


def is_stray(payload: bytes) -> bool:
    """Whether a frame is the bare ``PONG`` that is dropped wherever it appears."""
    return payload == STRAY_LINE.encode()


class Answer:
    """The answer to one command.

    1. ``receive`` returns None while more lines are needed, then exactly one outcome.
    2. An acknowledgement counts only for the command's own verb and path; ``ERR PARSE`` and ``ERR FRAME``
       answer whatever command is in flight.
    3. After the outcome every further line but a stray ``PONG`` is a violation.
    """

    def __init__(self, command: Command) -> None:
        self._command = command
        self._shape = SHAPES[command.verb]
        self._phase = Phase.ACK
        self._detail = ""
        self._lines: list[str] = []
        self._finished = False

    def receive(self, payload: bytes) -> Outcome | None:
        """Take the next frame's payload."""
        if is_stray(payload):
            return None
        if self._finished:
            return Violation("a line came after the answer was complete")
        outcome = self._next(payload)
        self._finished = outcome is not None
        return outcome

    def _next(self, payload: bytes) -> Outcome | None:
        try:
            line = payload.decode()
        except UnicodeDecodeError:
            return Violation(f"a line of the answer to {self._command.verb} is not UTF-8")
        ack = parse_ack(line)
        kind = _kind_of(line, ack)
        step = STEPS[self._shape, self._phase].get(kind, Step.VIOLATE)
        if ack is not None and step is not Step.VIOLATE:
            return self._acknowledged(ack, step)
        match step:
            case Step.KEEP:
                return self._keep(line)
            case Step.FINISH:
                return Done(self._detail, tuple(self._lines))
            case _:
                return Violation(f"{VIOLATIONS[self._phase, kind]} to {self._where}")

    def _acknowledged(self, ack: Ack, step: Step) -> Outcome | None:
        if not ack.ok and ack.verb == CONSOLE_VERB:
            return Ended(f"the console ended the session: {printable(ack.text)}")
        if not ack.ok and ack.verb in GRAMMAR_VERBS:
            return Err(refusal_of(ack))
        if (mismatch := self._mismatch(ack)) is not None:
            return Violation(f"the answer to {self._where} names another {mismatch}")
        if step is Step.REFUSE:
            return Err(refusal_of(ack))
        self._detail = ack.detail
        self._phase = Phase.DATA
        return Done(ack.detail) if step is Step.FINISH else None

    def _mismatch(self, ack: Ack) -> str | None:
        if ack.verb != self._command.verb:
            return "verb"
        return None if self._names_our_path(ack) else "path"

    def _names_our_path(self, ack: Ack) -> bool:
        path = self._command.path
        if path is None:
            return True
        named = ack.words.get("path")
        if ack.ok:
            return named == path
        if named is None:
            return True
        # A refusal that does not fit its line is cut at the end, in the middle of the path if need be.
        return named == path or (ack.last_key == "path" and path.startswith(named))

    def _keep(self, line: str) -> Outcome | None:
        if len(self._lines) == MAX_DATA_FRAMES:
            return Violation(f"the answer to {self._where} has more than {MAX_DATA_FRAMES} data lines")
        self._lines.append(line)
        return None

    @property
    def _where(self) -> str:
        return f"{self._command.verb} {self._command.path or ''}".rstrip()


def _kind_of(line: str, ack: Ack | None) -> Kind:
    if ack is not None:
        return Kind.OK if ack.ok else Kind.ERR
    return Kind.END if line == END_LINE else Kind.DATA
