"""The console's handshake as a state machine without I/O: AUTH, then ATTACH (transports, handshake).

Early consoles answer every failed AUTH by closing the connection without a word, and a console that already
has an owner looks the same. The failures say which of these a reader has to think of.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ticket_agent.hive.console.acks import parse_ack, printable
from ticket_agent.hive.console.replies import is_stray

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.hive.console.acks import Ack
    from ticket_agent.hive.credentials import Secret

__all__ = ["Attached", "FailureKind", "Handshake", "HandshakeFailure", "HandshakeStep", "Send"]


class FailureKind(StrEnum):
    """What a failed handshake means for the next attempt."""

    SILENT_CLOSE = "silent-close"
    NO_ANSWER = "no-answer"
    AUTH_REFUSED = "auth-refused"
    ATTACH_REFUSED = "attach-refused"
    THROTTLED = "throttled"
    UNAVAILABLE = "unavailable"
    VIOLATION = "violation"


@dataclass(frozen=True, slots=True)
class Send:
    """The next line to send; it holds a credential and is therefore never shown."""

    line: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Attached:
    """The session may be used."""

    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandshakeFailure:
    """The handshake is over without a session.

    Attributes:
        kind: what it means.
        why: one line for a person, without the credential.
        delay_s: seconds for which the console asked to be left alone, or None.
    """

    kind: FailureKind
    why: str
    delay_s: float | None = None


HandshakeStep = Send | Attached | HandshakeFailure

AUTH_REASONS: Final[Mapping[str, tuple[FailureKind, str]]] = MappingProxyType(
    {
        "invalid-token": (
            FailureKind.AUTH_REFUSED,
            "the console refused the token; check that it is the hive's own",
        ),
        "invalid-length": (
            FailureKind.AUTH_REFUSED,
            "the token's length is not that of the hive's token; check for a cut or foreign token",
        ),
        "expected-token": (
            FailureKind.AUTH_REFUSED,
            "the console did not recognise the AUTH line; check that this is a Cohesix console",
        ),
        "timeout": (
            FailureKind.UNAVAILABLE,
            "the console's own deadline for AUTH had passed; the network or the target is too slow",
        ),
    }
)

ATTACH_DETAILS: Final[Mapping[str, tuple[FailureKind, str]]] = MappingProxyType(
    {
        "invalid-role": (FailureKind.ATTACH_REFUSED, "the console does not know the role; check the role"),
        "denied": (
            FailureKind.ATTACH_REFUSED,
            "the role needs a valid ticket of its own; check role and ticket",
        ),
        "expired": (FailureKind.ATTACH_REFUSED, "the ticket has expired; issue a new one"),
        "invalid-claims": (FailureKind.ATTACH_REFUSED, "the ticket's claims are invalid; issue a new one"),
        "throttled": (FailureKind.THROTTLED, "attaches are throttled after earlier refusals"),
        "rate-limited": (FailureKind.THROTTLED, "attaches are locked out after repeated refusals"),
        "root-unreachable": (FailureKind.UNAVAILABLE, "the root task is not reachable; check the target"),
        "attach-timeout": (FailureKind.UNAVAILABLE, "the attach timed out on the target; try again"),
        "lifecycle-denied": (
            FailureKind.UNAVAILABLE,
            "the hive's lifecycle does not admit sessions now; resume it or wait",
        ),
    }
)

ROLE_ALIASES: Final[Mapping[str, str]] = MappingProxyType({"worker": "worker-heartbeat"})

DEFAULT_DELAY_S: Final = 1.0
"""Pause after a throttled attach whose answer names no delay."""

MAX_DELAY_S: Final = 120.0
"""Longest pause a console can impose; above the target's longest lock-out of 90 s."""


class _Phase(StrEnum):
    AUTH = "AUTH"
    ATTACH = "ATTACH"


class Handshake:
    """One handshake: ``start``, then ``receive`` for each frame until it returns other than None or Send."""

    def __init__(self, *, token: Secret, role: str, ticket: Secret | None = None) -> None:
        self._token = token
        self._role = role
        self._ticket = ticket
        self._phase = _Phase.AUTH

    @property
    def authenticated(self) -> bool:
        """Whether the console has accepted the token."""
        return self._phase is _Phase.ATTACH

    def start(self) -> Send:
        """Return the first line; due at once after connecting, since early consoles wait only ~40 ms."""
        return Send(f"AUTH {self._token.reveal()}")

    def receive(self, payload: bytes) -> HandshakeStep | None:
        """Take the next frame's payload; None means that more are needed."""
        if is_stray(payload):
            return None
        ack = parse_ack(payload.decode(errors="replace"))
        if ack is None:
            return self._violation("the console sent a data line")
        if ack.verb != self._phase:
            if ack.ok:
                return self._violation("the console acknowledged another command")
            return self._refused_otherwise(ack)
        if self._phase is _Phase.AUTH:
            return self._authenticated(ack)
        return self._attached(ack)

    def closed(self) -> HandshakeFailure:
        """Return what the end of the connection means at this point."""
        if self._phase is _Phase.AUTH:
            return HandshakeFailure(
                kind=FailureKind.SILENT_CLOSE,
                why="the console closed the connection instead of answering AUTH: the token is wrong, "
                "another client holds the only console, or AUTH came too late for it",
            )
        return HandshakeFailure(
            kind=FailureKind.UNAVAILABLE,
            why="the connection broke during ATTACH; check that the target is up",
        )

    def timed_out(self) -> HandshakeFailure:
        """Return what a passed deadline means at this point."""
        if self._phase is _Phase.AUTH:
            return HandshakeFailure(
                kind=FailureKind.NO_ANSWER,
                why="connected, but AUTH got no answer: another client probably holds the only console",
            )
        return HandshakeFailure(
            kind=FailureKind.UNAVAILABLE, why="ATTACH got no answer in time; check that the target is up"
        )

    def _authenticated(self, ack: Ack) -> HandshakeStep:
        if ack.ok:
            self._phase = _Phase.ATTACH
            ticket = "" if self._ticket is None else f" {self._ticket.reveal()}"
            return Send(f"ATTACH {self._role}{ticket}")
        kind, why = AUTH_REASONS.get(
            ack.words.get("reason", ""),
            (FailureKind.AUTH_REFUSED, f"the console refused AUTH: {self._shown(ack.text)}"),
        )
        return HandshakeFailure(kind=kind, why=why)

    def _attached(self, ack: Ack) -> HandshakeStep:
        if ack.ok:
            role = ack.words.get("role", "")
            if role not in {self._role, ROLE_ALIASES.get(self._role)}:
                return self._violation(f"the console attached role {self._shown(role)!r} for {self._role!r}")
            return Attached(role)
        kind, why = ATTACH_DETAILS.get(
            ack.words.get("detail", ""),
            (FailureKind.ATTACH_REFUSED, "the console refused ATTACH; check role and ticket"),
        )
        why = f"{why} ({self._shown(ack.detail)})"
        return HandshakeFailure(kind=kind, why=why, delay_s=_delay_of(ack, kind))

    def _refused_otherwise(self, ack: Ack) -> HandshakeFailure:
        return HandshakeFailure(
            kind=FailureKind.UNAVAILABLE,
            why=f"the console ended the handshake at {self._phase}: {self._shown(ack.text)}",
        )

    def _violation(self, what: str) -> HandshakeFailure:
        return HandshakeFailure(
            kind=FailureKind.VIOLATION,
            why=f"{what} instead of answering {self._phase}; check that this is a Cohesix console",
        )

    def _shown(self, text: str) -> str:
        """Return peer text for a message; a peer that quotes a credential must not get it into our logs."""
        text = self._token.scrub(text)
        return printable(text if self._ticket is None else self._ticket.scrub(text))


def _delay_of(ack: Ack, kind: FailureKind) -> float | None:
    if kind is not FailureKind.THROTTLED:
        return None
    text = ack.words.get("delay_ms", "")
    if not (text.isascii() and text.isdigit()):
        return DEFAULT_DELAY_S
    # More digits than the cap can have are a huge number; converting them would only cost time.
    milliseconds = int(text) if len(text) <= len("120000") else int(MAX_DELAY_S * 1000)
    return min(milliseconds / 1000, MAX_DELAY_S)
