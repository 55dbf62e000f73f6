"""What to do next with an operation: facts in, decision out. Pure.

The table, first matching row from the top:

=============================  ==============================================  =====================
state                          facts                                           decision
=============================  ==============================================  =====================
prepared                       a terminal result is visible                    ADOPT
prepared                       the root forgot the admission                   FORGET
prepared                       expired                                         EXPIRE
prepared                       anything else                                   DISPATCH
executing                      a terminal result is visible                    ADOPT
executing                      anything else                                   OBSERVE
provider-result-persisted      exactly the staged line is visible              CONFIRM_PUBLISHED
provider-result-persisted      another terminal result is visible              WITHDRAW
provider-result-persisted      the root forgot the admission                   WITHDRAW
provider-result-persisted      anything else                                   PUBLISH
result-published               anything                                        FINISH
terminal                       anything                                        NOTHING
=============================  ==============================================  =====================

No row leads from ``executing`` to a dispatch: once the plan is durable, the effect may have happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from ticket_agent.journal.outcome import Committed, Outcome, Rejected, Underway, bounded_detail
from ticket_agent.journal.record import ProviderResult, bounded_evidence
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.journal.record import Record
    from ticket_agent.journal.values import OutcomeName

__all__ = ["Admission", "Decision", "Facts", "Visible", "decide", "settle_observation", "settled"]


class Visible(Enum):
    """Which terminal result of this admission the root shows."""

    NONE = auto()
    EXACT = auto()
    """One that equals the staged line."""
    OTHER = auto()
    """One that does not, or any while nothing is staged."""


class Admission(Enum):
    """Whether the root still knows the admission."""

    KNOWN = auto()
    UNCERTAIN = auto()
    FORGOTTEN = auto()
    """It definitely does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known beside the record.

    Attributes:
        now_unix_ms: the present time.
        expires_unix_ms: when the request expires, or None; it is expired from that millisecond on.
        visible: the root's terminal result, if any.
        admission: whether the root still knows the admission.
    """

    now_unix_ms: int
    expires_unix_ms: int | None
    visible: Visible
    admission: Admission

    @property
    def expired(self) -> bool:
        """Whether the request's time is over."""
        return self.expires_unix_ms is not None and self.now_unix_ms >= self.expires_unix_ms


class Decision(Enum):
    """The next step."""

    DISPATCH = auto()
    """Plan, journal the plan, perform the effect."""
    OBSERVE = auto()
    """Find out what became of the effect; never perform it again."""
    ADOPT = auto()
    """Take over the result that the root shows."""
    EXPIRE = auto()
    """Settle as stale without dispatch: the time is over."""
    FORGET = auto()
    """Settle as stale without dispatch: the root no longer knows the admission."""
    PUBLISH = auto()
    """Append the staged line."""
    CONFIRM_PUBLISHED = auto()
    """The staged line is there; note it without appending."""
    WITHDRAW = auto()
    """The root can never take the staged line; end with the reason."""
    FINISH = auto()
    """Note the end."""
    NOTHING = auto()
    """It has ended."""


def _always(_: Facts) -> bool:
    return True


def _visible(facts: Facts) -> bool:
    return facts.visible is not Visible.NONE


def _exact(facts: Facts) -> bool:
    return facts.visible is Visible.EXACT


def _forgotten(facts: Facts) -> bool:
    return facts.admission is Admission.FORGOTTEN


def _expired(facts: Facts) -> bool:
    return facts.expired


_TABLE: Final[dict[State, tuple[tuple[Callable[[Facts], bool], Decision], ...]]] = {
    State.PREPARED: (
        (_visible, Decision.ADOPT),
        (_forgotten, Decision.FORGET),
        (_expired, Decision.EXPIRE),
        (_always, Decision.DISPATCH),
    ),
    State.EXECUTING: (
        (_visible, Decision.ADOPT),
        (_always, Decision.OBSERVE),
    ),
    State.PERSISTED: (
        (_exact, Decision.CONFIRM_PUBLISHED),
        (_visible, Decision.WITHDRAW),
        (_forgotten, Decision.WITHDRAW),
        (_always, Decision.PUBLISH),
    ),
    State.PUBLISHED: ((_always, Decision.FINISH),),
    State.TERMINAL: ((_always, Decision.NOTHING),),
}


def decide(record: Record, facts: Facts) -> Decision:
    """Return the next step for an operation; total over every state and all facts."""
    return next(decision for holds, decision in _TABLE[record.state] if holds(facts))


def settled(outcome: Outcome, *, reconciled: bool) -> ProviderResult | None:
    """Return the result of a definite outcome; None for one that is still open.

    Args:
        outcome: what the provider answered.
        reconciled: it was found by observing after the answer was lost, not told by the call itself.
    """
    if isinstance(outcome, Committed):
        return _result("confirmed", outcome, reconciled=reconciled)
    if isinstance(outcome, Rejected):
        return _result("rejected", outcome, reconciled=reconciled)
    return None


def settle_observation(outcome: Outcome, facts: Facts, *, followed: bool = False) -> ProviderResult | None:
    """Return the result that an observation ends with; None keeps the operation in ``executing``.

    ``followed`` says that this process dispatched it and has known since that it was under way.

    Knowledge always wins. Without it, the request's expiry or the root's oblivion ends the uncertainty as
    ``stale``: the effect may or may not have happened, and the message says that it was not repeated. What is
    under way is not uncertain: its provider ends it when its time is over.
    """
    result = settled(outcome, reconciled=not followed)
    if result is not None or isinstance(outcome, Underway):
        return result
    if facts.expired:
        return _stale("expired while uncertain, not repeated", outcome)
    if facts.admission is Admission.FORGOTTEN:
        return _stale("admission forgotten by the root while uncertain, not repeated", outcome)
    return None


def _result(name: OutcomeName, outcome: Outcome, *, reconciled: bool) -> ProviderResult:
    return ProviderResult(
        outcome=name,
        message=outcome.detail,
        reconciled=reconciled,
        evidence=bounded_evidence(outcome.evidence),
    )


def _stale(why: str, outcome: Outcome) -> ProviderResult:
    return ProviderResult(
        outcome="stale",
        message=bounded_detail(f"{why}: {outcome.detail}"),
        reconciled=True,
        evidence=bounded_evidence(outcome.evidence),
    )
