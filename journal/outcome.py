"""What a provider action may answer, and the three functions that every provider action consists of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "MAX_DETAIL_BYTES",
    "TAKEN_OVER",
    "Committed",
    "JsonValue",
    "Outcome",
    "Pending",
    "Plan",
    "PlanRefusedError",
    "PlanWaitsError",
    "Provider",
    "Rejected",
    "Underway",
    "Unknown",
    "Unobserved",
    "bounded_detail",
]

MAX_DETAIL_BYTES = 192
"""Longest detail, in bytes of UTF-8; the bound of a result's message (host tickets, results: message)."""

NO_DETAIL = "provider gave no detail"

TAKEN_OVER = "taken_over"
"""Member of ``Plan.before`` that says, in words, whose operation this was and that no before-image exists."""

JsonValue = None | bool | int | str | list["JsonValue"] | dict[str, "JsonValue"]


def bounded_detail(text: str) -> str:
    """Return ``text`` as one printable ASCII line of 1..=192 bytes; an empty text becomes a fixed filler.

    Non-ASCII characters are written as backslash escapes, because the console carries ASCII only.
    """
    ascii_text = text.encode("ascii", "backslashreplace").decode("ascii")
    line = "".join(char if char.isprintable() else " " for char in ascii_text)
    return line.strip()[:MAX_DETAIL_BYTES].strip() or NO_DETAIL


@dataclass(frozen=True, slots=True)
class _Answer:
    detail: str
    evidence: Mapping[str, JsonValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", bounded_detail(self.detail))


@dataclass(frozen=True, slots=True)
class Committed(_Answer):
    """The effect is there, and evidence ties it to this operation."""


@dataclass(frozen=True, slots=True)
class Rejected(_Answer):
    """The effect is definitely not there and will not come from this operation."""


@dataclass(frozen=True, slots=True)
class Pending(_Answer):
    """The effect was accepted and its end is still to be observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Underway(Pending):
    """The effect goes on in a process of its own, and nothing about it is uncertain.

    Its provider holds the request's expiry itself and then ends it; until that is done it is not settled.

    Attributes:
        poll_s: how soon it should be looked at again, in seconds.
    """

    poll_s: float


@dataclass(frozen=True, slots=True)
class Unknown(_Answer):
    """Nobody can tell at present whether the effect happened."""


@dataclass(frozen=True, slots=True)
class Unobserved(Unknown):
    """The observer could not look, for a reason that passes: to look again may tell."""


Outcome = Committed | Rejected | Pending | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the provider saw before acting and what it means to do; journaled before ``execute`` may run.

    Attributes:
        before: the before-image that ``observe`` compares with.
        intent: the exact effect, complete enough that ``execute`` needs nothing else.
    """

    before: Mapping[str, JsonValue]
    intent: Mapping[str, JsonValue]

    @property
    def taken_over(self) -> bool:
        """Another program dispatched this; what it saw before acting is not known."""
        return TAKEN_OVER in self.before


class PlanRefusedError(Exception):
    """``plan`` found that the request can never be performed; a definite refusal, nothing was dispatched."""


class PlanWaitsError(Exception):
    """``plan`` could not decide now, for a reason that passes; the operation waits in ``prepared``.

    The text is the reason, in words for people: who holds a lock, what must be put right.
    """


RequestT_contra = TypeVar("RequestT_contra", contravariant=True)


class Provider(Protocol[RequestT_contra]):
    """One provider action.

    ``plan`` only reads; it raises :class:`PlanRefusedError` for a definite refusal, :class:`PlanWaitsError`
    for a hindrance that passes, and lets transport errors through (in both cases the operation waits in
    ``prepared``). ``execute`` is called at most once per operation, and
    only after the plan is durable. ``observe`` never begins the effect, though it may bring to its end what
    was interrupted half-way, and may be called any number of times.
    """

    def lane(self, request: RequestT_contra) -> str:
        """Name of the resource; operations with the same lane run in sequence order."""

    def plan(self, request: RequestT_contra) -> Plan:
        """Look at the world and decide what to do."""

    def execute(self, plan: Plan) -> Outcome:
        """Perform the effect once."""

    def observe(self, plan: Plan) -> Outcome:
        """Tell from evidence what became of the effect."""
