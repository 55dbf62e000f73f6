"""What an answer of the gateway means: HTTP status and JSON status together (transports, REST). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.hive.console.acks import parse_ack, printable, refusal_of, speaks_older_bounds
from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.http_exchange import MAX_BODY
from ticket_agent.protocol.json_strict import parse_object
from ticket_agent.protocol.namespace import (
    Acked,
    AppendAnswer,
    HiveAuthError,
    HiveRefusedError,
    HiveUnreachableError,
    HiveViolationError,
    Refusal,
    RefusalKind,
    Refused,
    Unknown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ticket_agent.protocol.http_exchange import Reply

__all__ = ["MEANINGS", "Judge", "Meaning", "Throttled", "Verb", "meaning_of", "retry_after"]

READ_BACK: Final = "whether the line was appended is unknown, read back before anything else"
MAX_DELAY_S: Final = 3600.0
MAX_TEXT: Final = 400


class Verb(StrEnum):
    """What was asked of the namespace, as the gateway names it in its answer."""

    LS = "LS"
    CAT = "CAT"
    TAIL = "TAIL"
    ECHO = "ECHO"


class Meaning(Enum):
    """What a status says about a request."""

    ANSWERED = "the target's answer is in the body"
    MALFORMED = "the request was refused before it was dispatched"
    UNAUTHENTICATED = "the request token is missing or wrong; nothing was dispatched"
    FORBIDDEN = "the delegated ticket does not allow it; nothing was dispatched"
    THROTTLED = "too much at once; nothing was dispatched"
    NO_GATEWAY = "there is no such endpoint; nothing was dispatched"
    UNKNOWN = "it may have been dispatched or not"


MEANINGS: Final[Mapping[int, Meaning]] = MappingProxyType(
    {
        200: Meaning.ANSWERED,
        400: Meaning.MALFORMED,
        401: Meaning.UNAUTHENTICATED,
        403: Meaning.FORBIDDEN,
        404: Meaning.NO_GATEWAY,
        405: Meaning.NO_GATEWAY,
        413: Meaning.MALFORMED,
        415: Meaning.MALFORMED,
        422: Meaning.MALFORMED,
        429: Meaning.THROTTLED,
        500: Meaning.UNKNOWN,
        502: Meaning.UNKNOWN,
        503: Meaning.UNKNOWN,
        504: Meaning.UNKNOWN,
    }
)
"""Every status that a gateway documents; of any other nothing is known."""


@dataclass(frozen=True, slots=True)
class Throttled:
    """The gateway took nothing because of its load.

    Attributes:
        refusal: in its words.
        delay_s: seconds after which it wants to be asked again, if it says so.
    """

    refusal: Refusal
    delay_s: float | None


def meaning_of(status: int) -> Meaning:
    """What a status says; anything undocumented is UNKNOWN."""
    return MEANINGS.get(status, Meaning.UNKNOWN)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that ``Retry-After`` asks for, 0 to 3600; None without a usable one.

    A date counts from the answer's own ``Date``, so that this host's clock does not matter.
    """
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), MAX_DELAY_S)
    try:
        delay = parsedate_to_datetime(text) - parsedate_to_datetime(headers.get("date", ""))
        return min(max(delay.total_seconds(), 0.0), MAX_DELAY_S)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


class Judge:
    """Turns replies into answers; every text it makes is bounded and free of credentials.

    Args:
        peer: the gateway's name in messages.
        scrub: removes credentials from a text.
    """

    def __init__(self, peer: str, scrub: Callable[[str], str]) -> None:
        self._peer = peer
        self._scrub = scrub

    def append(self, reply: Reply, *, path: str, line: str) -> AppendAnswer | Throttled:
        """What became of an append.

        Raises:
            HiveAuthError: the request token was refused; nothing was sent to the hive.
        """
        match meaning_of(reply.status):
            case Meaning.ANSWERED:
                return self._acknowledged(reply, path, line)
            case Meaning.UNAUTHENTICATED:
                raise self._unauthenticated(self._said(reply))
            case Meaning.FORBIDDEN:
                return Refused(Refusal(kind=RefusalKind.DENIED, text=self._said(reply)))
            case Meaning.THROTTLED:
                return Throttled(self._throttled(self._said(reply)), retry_after(reply.headers))
            case Meaning.MALFORMED | Meaning.NO_GATEWAY:
                return Refused(Refusal(kind=RefusalKind.GRAMMAR, text=self._said(reply)))
            case Meaning.UNKNOWN:
                return Unknown(f"{self._peer}: {self._said(reply)}; {READ_BACK}")

    def read(self, reply: Reply, *, verb: Verb, path: str) -> list[str] | Throttled:
        """The lines that a read shows.

        Raises:
            HiveRefusedError: the target or the gateway refused it.
            HiveAuthError: the request token was refused.
            HiveUnreachableError: the gateway has no answer of the target; reading again is safe.
            HiveViolationError: there is no gateway, or its answer is none.
        """
        match meaning_of(reply.status):
            case Meaning.ANSWERED:
                return self._lines(reply, verb, path)
            case Meaning.UNAUTHENTICATED:
                raise self._unauthenticated(self._said(reply))
            case Meaning.FORBIDDEN:
                raise HiveRefusedError(verb, path, Refusal(kind=RefusalKind.DENIED, text=self._said(reply)))
            case Meaning.THROTTLED:
                return Throttled(self._throttled(self._said(reply)), retry_after(reply.headers))
            case Meaning.MALFORMED:
                raise HiveRefusedError(verb, path, Refusal(kind=RefusalKind.GRAMMAR, text=self._said(reply)))
            case Meaning.NO_GATEWAY:
                raise HiveViolationError(
                    f"{self._peer}: {self._said(reply)}; is the URL that of a hive gateway?"
                )
            case Meaning.UNKNOWN:
                raise HiveUnreachableError(f"{self._peer}: {self._said(reply)}; reading again is safe")

    def document(self, reply: Reply, what: str) -> dict[str, Any]:
        """A JSON object of the gateway about itself.

        Raises:
            HiveError: as :meth:`read`.
        """
        if meaning_of(reply.status) is Meaning.ANSWERED:
            return self._object(reply, what)
        answered = self.read(reply, verb=Verb.CAT, path=what)
        refusal = (
            answered.refusal
            if isinstance(answered, Throttled)
            else Refusal(kind=RefusalKind.OTHER, text="no document")
        )
        raise HiveRefusedError("GET", what, refusal)

    def _acknowledged(self, reply: Reply, path: str, line: str) -> AppendAnswer:
        try:
            answer = self._answer(reply, Verb.ECHO, path)
        except HiveRefusedError as error:
            return Refused(self._explained(error.refusal))
        except HiveViolationError as error:
            return Unknown(f"{error}; {READ_BACK}")
        if answer.get("bytes", len(line)) != len(line):
            return Unknown(f"{self._peer}: it acknowledged another number of bytes; {READ_BACK}")
        return Acked(f"path={path} bytes={len(line)}")

    def _lines(self, reply: Reply, verb: Verb, path: str) -> list[str]:
        answer = self._answer(reply, verb, path)
        lines = answer.get("lines")
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise self._violation(verb, path, "holds no list of lines")
        if any("\n" in line for line in lines):
            raise self._violation(verb, path, "holds a line with a newline inside")
        if answer.get("end", True) is not True:
            raise self._violation(verb, path, "says that it is not complete")
        if verb is not Verb.LS and answer.get("bytes") not in {None, len("\n".join(lines).encode())}:
            raise self._violation(verb, path, "holds another number of bytes than it says")
        return lines

    def _answer(self, reply: Reply, verb: Verb, path: str) -> dict[str, Any]:
        answer = self._object(reply, f"{verb} {path}")
        if answer.get("verb") != verb or answer.get("path") != path:
            raise self._violation(verb, path, "is that to another request")
        match answer.get("status"):
            case "OK":
                return answer
            case "ERR":
                raise HiveRefusedError(verb, path, self._refusal(answer.get("error")))
            case _:
                raise self._violation(verb, path, "has neither status OK nor ERR")

    def _object(self, reply: Reply, what: str) -> dict[str, Any]:
        try:
            return parse_object(reply.body, what="its body", max_bytes=MAX_BODY)
        except ProtocolError as error:
            raise HiveViolationError(f"{self._peer}: the answer to {what} cannot be read: {error}") from None

    def _refusal(self, error: object) -> Refusal:
        text = self._scrub(error) if isinstance(error, str) else "no reason was given"
        ack = parse_ack(text)
        if ack is None or ack.ok:
            return Refusal(kind=RefusalKind.OTHER, text=printable(text))
        return refusal_of(ack)

    def _explained(self, refusal: Refusal) -> Refusal:
        if not speaks_older_bounds(refusal):
            return refusal
        text = f"the hive behind {self._peer} speaks the older bounds and is incompatible; upgrade it"
        return Refusal(kind=RefusalKind.GRAMMAR, text=f"{text} ({refusal.text})")

    def _throttled(self, said: str) -> Refusal:
        return Refusal(kind=RefusalKind.LIMIT if "ELIMIT" in said else RefusalKind.BUSY, text=said)

    def _unauthenticated(self, said: str) -> HiveAuthError:
        return HiveAuthError(
            f"{self._peer} refuses the request token: {said}; check it, nothing was dispatched"
        )

    def _said(self, reply: Reply) -> str:
        """The status and what the body says about it, be that JSON or plain text."""
        text: object = None
        if reply.body[:1] == b"{":
            try:
                text = parse_object(reply.body, what="its body", max_bytes=MAX_BODY).get("error")
            except ProtocolError:
                text = None
        if not isinstance(text, str):
            text = reply.body[: 4 * MAX_TEXT].decode("utf-8", "backslashreplace")
        words = printable(self._scrub(text)[:MAX_TEXT])
        return f"HTTP {reply.status} {words}".rstrip()

    def _violation(self, verb: Verb, path: str, why: str) -> HiveViolationError:
        return HiveViolationError(f"{self._peer}: the answer to {verb} {path} {why}")
