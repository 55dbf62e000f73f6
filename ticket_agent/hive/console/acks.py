"""Acknowledgement lines of a console, taken apart and classified (transports, grammar of replies)."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ticket_agent.hive.console.framing import MAX_RESPONSE_LEN
from ticket_agent.protocol.namespace import Refusal, RefusalKind
from ticket_agent.protocol.redaction import redact_tickets

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CONSOLE_VERB",
    "GRAMMAR_VERBS",
    "Ack",
    "lost_session",
    "parse_ack",
    "printable",
    "refusal_of",
    "speaks_older_bounds",
]

PARSE_VERB: Final = "PARSE"
FRAME_VERB: Final = "FRAME"
CONSOLE_VERB: Final = "CONSOLE"

GRAMMAR_VERBS: Final = frozenset({PARSE_VERB, FRAME_VERB})
"""Pseudo-verbs that answer whatever command is in flight."""

FREE_TEXT_KEYS: Final = frozenset({"data", "error"})
"""Keys whose value runs to the end of the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """An acknowledgement, taken apart.

    Attributes:
        ok: whether it starts with ``OK``.
        verb: the word after it.
        detail: the rest, unchanged.
        words: its ``key=value`` words; the first of equal keys counts.
        last_key: key of the last word, whose value a full line may have cut short; empty without words.
        text: the whole line.
    """

    ok: bool
    verb: str
    detail: str
    words: Mapping[str, str]
    last_key: str
    text: str


def parse_ack(line: str) -> Ack | None:
    """Take an ``OK …`` or ``ERR …`` line apart; None for any other line."""
    status, blank, rest = line.partition(" ")
    if status not in {"OK", "ERR"} or not blank:
        return None
    verb, _, detail = rest.partition(" ")
    free_text = FREE_TEXT_KEYS | {"detail"} if verb in GRAMMAR_VERBS else FREE_TEXT_KEYS
    words: dict[str, str] = {}
    last_key = ""
    remaining = detail
    while remaining:
        word, _, tail = remaining.partition(" ")
        key, equals, value = word.partition("=")
        if equals:
            last_key = key
            words.setdefault(key, remaining.partition("=")[2] if key in free_text else value)
        remaining = "" if equals and key in free_text else tail
    return Ack(
        ok=status == "OK",
        verb=verb,
        detail=detail,
        words=MappingProxyType(words),
        last_key=last_key,
        text=line,
    )


def printable(text: str) -> str:
    """Return at most one response line's worth of ``text``, free of control characters and tickets."""
    bounded = redact_tickets(text[:MAX_RESPONSE_LEN])
    clean = "".join(char if char.isprintable() else " " for char in bounded)
    return clean.strip()


DETAIL_KINDS: Final[Mapping[str, RefusalKind]] = MappingProxyType(
    {
        "busy": RefusalKind.BUSY,
        "attach-timeout": RefusalKind.BUSY,
        "buffer-full": RefusalKind.BUFFER_FULL,
        "denied": RefusalKind.DENIED,
        "invalid-path": RefusalKind.INVALID_PATH,
        "invalid-payload": RefusalKind.INVALID_PAYLOAD,
    }
)

ERROR_KINDS: Final[Mapping[str, RefusalKind]] = MappingProxyType(
    {
        "EPERM": RefusalKind.DENIED,
        "ELIMIT": RefusalKind.LIMIT,
    }
)

REASON_KINDS: Final[Mapping[str, RefusalKind]] = MappingProxyType({"busy": RefusalKind.BUSY})
"""Only ``busy`` says enough alone: a line that was cut after another reason stays OTHER."""


def refusal_of(ack: Ack) -> Refusal:
    """Classify an ``ERR``; lines that were cut keep whatever they still say."""
    if ack.verb in GRAMMAR_VERBS:
        kind = RefusalKind.GRAMMAR
    else:
        kind = (
            DETAIL_KINDS.get(ack.words.get("detail", ""))
            or ERROR_KINDS.get(ack.words.get("error", ""))
            or REASON_KINDS.get(ack.words.get("reason", ""))
            or RefusalKind.OTHER
        )
    return Refusal(kind=kind, text=printable(ack.text))


def lost_session(refusal: Refusal) -> bool:
    """Whether the console no longer knows that this session was attached."""
    ack = parse_ack(refusal.text)
    return ack is not None and not ack.ok and ack.words.get("detail") == "unauthenticated"


def speaks_older_bounds(refusal: Refusal) -> bool:
    """Whether a refusal of a legal line means that the console has the older, smaller bounds."""
    ack = parse_ack(refusal.text)
    if ack is None or ack.ok:
        return False
    if ack.verb == FRAME_VERB:
        return ack.words.get("reason") == "invalid-length"
    return ack.verb == PARSE_VERB and ack.words.get("detail", "").endswith("payload exceeds allowed length")
