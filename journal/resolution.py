"""How a person ends an operation whose outcome nobody can tell: who, when, why, and the outcome. Pure.

A resolution is part of the operation's evidence, in the same durable step that ends the uncertainty. It never
confirms: that an effect happened is shown by an observation or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from ticket_agent.journal import checks
from ticket_agent.journal.errors import RecordError
from ticket_agent.journal.outcome import (
    Committed,
    Outcome,
    Pending,
    Rejected,
    Unobserved,
    bounded_detail,
)
from ticket_agent.journal.record import ProviderResult
from ticket_agent.journal.recovery import Decision, Facts, decide, settle_observation
from ticket_agent.journal.transitions import State
from ticket_agent.journal.values import MAX_TEXT_BYTES, MAX_UNIX_MS, OutcomeName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.journal.record import Record

__all__ = [
    "OUTCOME_OF",
    "Resolution",
    "ResolutionRefusedError",
    "Said",
    "require_resolvable",
    "resolution_of",
]

Said = Literal["done", "not-done"]

OUTCOME_OF: Final[Mapping[Said, OutcomeName]] = {"done": "stale", "not-done": "rejected"}
"""What a person's word makes of an operation.

That the effect is there cannot be proven by saying so: it ends as an uncertainty ended by rule, ``stale``.
"""

_MEMBER: Final = "resolved_by_hand"
_MEMBERS: Final = frozenset({"as", "by", "reason", "unix_ms", "observed"})
_MESSAGE: Final = {
    "done": "ended by {by} as done, which no observation proves: {reason}",
    "not-done": "ended by {by} as not done: {reason}",
}


class ResolutionRefusedError(Exception):
    """The operation may not be ended by hand; the text says why and what to do instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """One person's word on one operation.

    Attributes:
        said: ``done`` or ``not-done``.
        by: who says so, one line of 1..=192 bytes.
        reason: why, one line of 1..=192 bytes.
        unix_ms: when.
        observed: what the last observation answered, one line of 1..=256 bytes, or that there was none.
    """

    said: Said
    by: str
    reason: str
    unix_ms: int
    observed: str

    def __post_init__(self) -> None:
        if self.said not in OUTCOME_OF:
            raise RecordError("a resolution says done or not-done")
        checks.line(self.by, "by", MAX_TEXT_BYTES)
        checks.line(self.reason, "reason", MAX_TEXT_BYTES)
        checks.integer(self.unix_ms, "unix_ms", 0, MAX_UNIX_MS)
        checks.line(self.observed, "observed", 256)

    def result(self) -> ProviderResult:
        """The outcome that the record takes; its message is cut where the hive takes no more."""
        message = _MESSAGE[self.said].format(by=self.by, reason=self.reason)
        return ProviderResult(
            outcome=OUTCOME_OF[self.said],
            message=bounded_detail(message),
            reconciled=False,
            evidence={
                _MEMBER: {
                    "as": self.said,
                    "by": self.by,
                    "reason": self.reason,
                    "unix_ms": self.unix_ms,
                    "observed": self.observed,
                }
            },
        )


def resolution_of(record: Record) -> Resolution | None:
    """The word that ended an operation; None for one that was not ended by hand."""
    told = record.result.evidence.get(_MEMBER) if record.result is not None else None
    if not isinstance(told, dict) or told.keys() != _MEMBERS:
        return None
    try:
        return Resolution(
            said=told["as"],  # type: ignore[arg-type]
            by=told["by"],  # type: ignore[arg-type]
            reason=told["reason"],  # type: ignore[arg-type]
            unix_ms=told["unix_ms"],  # type: ignore[arg-type]
            observed=told["observed"],  # type: ignore[arg-type]
        )
    except (RecordError, TypeError):
        return None


def require_resolvable(record: Record, facts: Facts | None = None, outcome: Outcome | None = None) -> None:
    """Refuse to end an operation by hand that ends, or can still end, without it.

    Args:
        record: the operation.
        facts: what recovery would decide by; None when only the record is known yet, or no hive will ever
            tell more.
        outcome: what its observer answered just now; None when it could not be asked.

    Raises:
        ResolutionRefusedError: with what to do instead.
    """
    if record.state is not State.EXECUTING:
        raise ResolutionRefusedError(_not_executing(record))
    if isinstance(outcome, Committed | Rejected):
        verdict = "done" if isinstance(outcome, Committed) else "not done"
        raise ResolutionRefusedError(
            f"the observer can tell that it is {verdict} ({outcome.detail}); run `journal replay --apply`"
        )
    if isinstance(outcome, Pending):
        raise ResolutionRefusedError(
            f"it is still under way, so an observer will tell how it ends ({outcome.detail}); wait for that"
        )
    if facts is None:
        return
    if isinstance(outcome, Unobserved):
        raise ResolutionRefusedError(f"its observer could not look just now ({outcome.detail}); try again")
    if decide(record, facts) is Decision.ADOPT:
        raise ResolutionRefusedError(
            "the root already shows a result of it; run `journal replay --apply` to take it over"
        )
    result = None if outcome is None else settle_observation(outcome, facts)
    if result is not None:
        raise ResolutionRefusedError(
            f"recovery ends it as {result.outcome} by rule ({result.message}); run `journal replay --apply`"
        )


def _not_executing(record: Record) -> str:
    outcome = record.result.outcome if record.result is not None else "unknown"
    match record.state:
        case State.PREPARED:
            return (
                "it was never dispatched, so nothing about it is uncertain; run the agent, or let it expire"
            )
        case State.TERMINAL:
            return f"it has ended as {outcome}; an end is never changed"
        case _:
            return (
                f"its outcome is decided ({outcome}) and never changed; `journal replay --apply` publishes it"
            )
