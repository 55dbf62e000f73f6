"""Grammar of console commands, as the root's line parser reads them (transports, verbs and bounds)."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.hive.console.framing import MAX_PATH_LEN, MAX_TICKET_LEN, NEWER_BOUNDS

if TYPE_CHECKING:
    from ticket_agent.hive.console.framing import Bounds

__all__ = ["STREAMED", "Command", "GrammarError", "decode_line", "parse_command"]

STREAMED: Final = frozenset({"LS", "CAT", "TAIL"})
"""Verbs whose answer is a stream of data lines closed by ``END``."""

_VERBS: Final = STREAMED | {"PING", "QUIT", "ATTACH", "ECHO"}
_MAX_TAIL_LINES: Final = 256
_NUMBER = re.compile(r"[1-9][0-9]{0,2}")


class GrammarError(Exception):
    """A line is no command; the text is what follows ``detail=`` in the answer."""

    code = "console-grammar"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One parsed command line.

    Attributes:
        verb: upper case.
        path: path as it was sent, empty for verbs without one.
        payload: text of an ECHO without surrounding blanks; role of an ATTACH.
        ticket: capability token of an ATTACH, empty when none was sent.
        lines: how many newest lines a TAIL asks for, None for all.
    """

    verb: str
    path: str = ""
    payload: str = ""
    ticket: str = ""
    lines: int | None = None


def decode_line(payload: bytes) -> str:
    """Return the characters the parser sees: every byte one character, control characters dropped.

    Text beyond ASCII is therefore corrupted here exactly as on the target.

    Raises:
        UnicodeDecodeError: the payload is not UTF-8.
    """
    payload.decode()
    return "".join(char for char in payload.decode("latin-1") if unicodedata.category(char) != "Cc")


def parse_command(line: str, bounds: Bounds = NEWER_BOUNDS) -> Command:
    """Parse one line.

    Raises:
        GrammarError: the line is no command.
    """
    text = line.strip()
    if not text:
        raise GrammarError("empty command")
    word, _, rest = text.partition(" ")
    verb = word.upper()
    rest = rest.strip()
    if verb not in _VERBS:
        raise GrammarError("unsupported console command")
    if verb == "ATTACH":
        return _attach(rest)
    if verb == "ECHO":
        return _echo(rest, bounds.echo)
    if verb in STREAMED:
        return _streamed(verb, rest)
    return Command(verb=verb)


def _attach(rest: str) -> Command:
    role, _, ticket = rest.partition(" ")
    if not role:
        raise GrammarError("missing required argument: role")
    ticket = ticket.strip()
    if len(ticket) > MAX_TICKET_LEN:
        raise GrammarError("argument ticket exceeds allowed length")
    return Command(verb="ATTACH", payload=role, ticket=ticket)


def _echo(rest: str, most: int) -> Command:
    path, _, payload = rest.partition(" ")
    payload = payload.strip()
    _check_path(path)
    if not payload:
        raise GrammarError("missing required argument: payload")
    if len(payload.encode()) > most:
        raise GrammarError("argument payload exceeds allowed length")
    return Command(verb="ECHO", path=path, payload=payload)


def _streamed(verb: str, rest: str) -> Command:
    path, _, argument = rest.partition(" ")
    _check_path(path)
    argument = argument.strip()
    if verb != "TAIL" or not argument:
        return Command(verb=verb, path=path)
    if _NUMBER.fullmatch(argument) is None or int(argument) > _MAX_TAIL_LINES:
        raise GrammarError("invalid value for argument lines")
    return Command(verb=verb, path=path, lines=int(argument))


def _check_path(path: str) -> None:
    if not path:
        raise GrammarError("missing required argument: path")
    if len(path) > MAX_PATH_LEN:
        raise GrammarError("argument path exceeds allowed length")
