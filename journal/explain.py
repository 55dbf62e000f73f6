"""Why recovery takes the next step that it takes, in words. Pure.

The decision always comes from :func:`ticket_agent.journal.recovery.decide`; this module only says which facts
it rests on, which row of the table fits, and which other decision another fact would bring about.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ticket_agent.journal.outcome import Committed, Rejected, Underway, Unknown
from ticket_agent.journal.recovery import (
    Admission,
    Decision,
    Facts,
    Visible,
    decide,
    settle_observation,
)
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ticket_agent.journal.outcome import Outcome
    from ticket_agent.journal.record import Record

__all__ = ["Explanation", "FactName", "Known", "explain"]


class FactName(StrEnum):
    """The facts beside the record that a decision can depend on."""

    VISIBLE = "visible"
    ADMISSION = "admission"
    EXPIRED = "expired"


class Known(StrEnum):
    """How a fact came to be known."""

    RECORDED = "recorded"
    """From the journal and the clock."""
    READ = "read"
    """From the hive, just now."""
    ASSUMED = "assumed"
    """From nothing: the hive was not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The next step of one operation and what it rests on.

    Attributes:
        decision: what ``decide`` returns.
        state: state of the operation that it is for.
        reason: the condition of the row of the decision table that fits, in words.
        effect: what the agent then does, in words.
        facts: each fact with its value in words and how it is known.
        outcome: what the observation answered, as ``name: detail``; None when nothing was observed.
        otherwise: decisions that other facts would bring about, as ``fact -> decision``.
        uncertain: by these facts the operation may still be executing afterwards, its outcome unknown.
    """

    decision: Decision
    state: State
    reason: str
    effect: str
    facts: Mapping[FactName, tuple[str, Known]]
    outcome: str | None
    otherwise: tuple[str, ...]
    uncertain: bool

    @property
    def rule(self) -> str:
        """The row of the decision table, in words."""
        return f"{self.state}, and {self.reason} -> {self.decision.name}"

    @property
    def assumed(self) -> tuple[FactName, ...]:
        """Facts that were not looked at."""
        return tuple(name for name, (_, known) in self.facts.items() if known is Known.ASSUMED)


_VISIBLE: Final = {
    Visible.NONE: "the root shows no terminal result of this admission",
    Visible.EXACT: "the root shows exactly the staged result",
    Visible.OTHER: "the root shows a terminal result of this admission that is not the staged line",
}
_ADMISSION: Final = {
    Admission.KNOWN: "the root knows the admission",
    Admission.UNCERTAIN: "the root may have forgotten the admission",
    Admission.FORGOTTEN: "the root has forgotten the admission",
}
_EFFECT: Final = {
    Decision.DISPATCH: "prove the Worker READY, journal the plan, then perform the effect once",
    Decision.OBSERVE: "observe what became of the effect; it is never performed again",
    Decision.ADOPT: "take the visible result over and publish nothing",
    Decision.EXPIRE: "settle as stale without dispatch and publish `expired`",
    Decision.FORGET: "settle as stale without dispatch; nobody waits for the result",
    Decision.PUBLISH: "append the staged line, which never changes",
    Decision.CONFIRM_PUBLISHED: "note that the staged line is there, without appending it again",
    Decision.WITHDRAW: "end without publication and record why",
    Decision.FINISH: "note the end",
    Decision.NOTHING: "nothing",
}


def explain(
    record: Record,
    facts: Facts,
    *,
    known: Mapping[FactName, Known],
    outcome: Outcome | None = None,
    effects: Mapping[Decision, str] | None = None,
) -> Explanation:
    """Return the decision for a record and its reasons.

    Args:
        record: the operation as journaled.
        facts: what the decision rests on.
        known: how each fact came to be known.
        outcome: what ``observe`` answered, when it was asked.
        effects: other words for what the agent then does, where this kind of operation needs them.
    """
    decision = decide(record, facts)
    return Explanation(
        decision=decision,
        state=record.state,
        reason=_reason(record, facts),
        effect=_effect(decision, facts, outcome, _EFFECT | dict(effects or {})),
        facts={name: (_in_words(name, facts), known[name]) for name in FactName},
        outcome=None if outcome is None else f"{type(outcome).__name__}: {outcome.detail}",
        otherwise=tuple(dict.fromkeys(_otherwise(record, facts, decision))),
        uncertain=decision is Decision.OBSERVE
        and not isinstance(outcome, Underway)
        and settle_observation(outcome or Unknown("not observed"), facts) is None,
    )


def _in_words(name: FactName, facts: Facts) -> str:
    match name:
        case FactName.VISIBLE:
            return _VISIBLE[facts.visible]
        case FactName.ADMISSION:
            return _ADMISSION[facts.admission]
        case FactName.EXPIRED:
            if facts.expires_unix_ms is None:
                return "the request has no expiry"
            return "the request is expired" if facts.expired else "the request is not expired"


def _reason(record: Record, facts: Facts) -> str:
    """The condition of the first row that fits, from the top of the table."""
    if record.state in (State.PUBLISHED, State.TERMINAL):
        return "whatever else holds"
    if facts.visible is not Visible.NONE:
        return _VISIBLE[facts.visible]
    if record.state is State.EXECUTING:
        return "no terminal result is visible: once the plan is durable, the effect may have happened"
    if facts.admission is Admission.FORGOTTEN:
        return _ADMISSION[facts.admission]
    if record.state is State.PREPARED:
        return "the request is expired" if facts.expired else "nothing stands against it"
    return "the staged result is not visible yet"


def _effect(
    decision: Decision, facts: Facts, outcome: Outcome | None, effects: Mapping[Decision, str]
) -> str:
    if decision is not Decision.OBSERVE:
        return effects[decision]
    if isinstance(outcome, Underway):
        return f"let it go on, as it is known to do, and look again every {outcome.poll_s:g} s"
    if outcome is None:
        return f"{effects[decision]}; {_without_knowledge(facts)}"
    result = settle_observation(outcome, facts)
    if result is None:
        return "keep it executing and uncertain, and observe again later"
    how = "by knowledge" if isinstance(outcome, Committed | Rejected) else "by rule, not by knowledge"
    return f"settle as {result.outcome} ({how}): {result.message}"


def _without_knowledge(facts: Facts) -> str:
    if facts.expired:
        return "an answer that decides nothing ends it as stale, because the request is expired"
    if facts.admission is Admission.FORGOTTEN:
        return "an answer that decides nothing ends it as stale, because the root forgot the admission"
    return "an answer that decides nothing keeps it uncertain until it expires or the root forgets it"


def _otherwise(record: Record, facts: Facts, decision: Decision) -> Iterator[str]:
    others = [(_VISIBLE[visible], replace(facts, visible=visible)) for visible in Visible]
    others += [(_ADMISSION[admission], replace(facts, admission=admission)) for admission in Admission]
    if facts.expires_unix_ms is not None and not facts.expired:
        later = replace(facts, now_unix_ms=facts.expires_unix_ms)
        others.append(("the request is expired", later))
    for words, other in others:
        if record.staged is None and other.visible is Visible.EXACT:
            continue
        changed = decide(record, other)
        if changed is not decision:
            yield f"if {words}: {changed.name}"
