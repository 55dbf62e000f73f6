"""Why a release stands where it does: the gate or phase, the rule, what that means, what to do. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.journal.text import span, stamp
from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.comparison import compare
from ticket_agent.peft.release.consistency import evaluations_of
from ticket_agent.peft.release.evidence_errors import ComparisonRefusedError
from ticket_agent.peft.release.phases import Phase, ReleaseState
from ticket_agent.peft.release.release_view import Stage, Standing
from ticket_agent.peft.release.rule_words import Words, words_for_phase, words_for_rule, words_for_text

if TYPE_CHECKING:
    from ticket_agent.peft.release.release_record import ReleaseRecord
    from ticket_agent.peft.release.release_view import DeploymentView, PhaseView, ReleaseView

__all__ = ["Explained", "explain_release"]

_COMPARISON: Final = "comparison"
_OUTCOMES: Final = {
    ReleaseState.SUCCEEDED: "The candidate was promoted.",
    ReleaseState.FAILED: "The candidate was never served; what was deployed before still is.",
    ReleaseState.RECOVERED_FAILURE: "What was deployed before is deployed again.",
    ReleaseState.ROLLBACK_FAILED: "The rollback failed: what is served is not known. No release may start.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """An explanation.

    Attributes:
        stands: how the release stands, in a sentence.
        where: the phase or gate that stopped it, or that it waits in; None where nothing did.
        rule: the rule's stable name, or None where none was named.
        what: what was found, in the words of who found it.
        meaning: what that means.
        remedy: what to do.
    """

    stands: str
    where: str | None = None
    rule: str | None = None
    what: str | None = None
    meaning: str | None = None
    remedy: str | None = None

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def explain_release(view: ReleaseView, deployment: DeploymentView, *, now_ms: int) -> Explained:
    """Explain a release as it stands now."""
    match view.stage:
        case Stage.PENDING:
            return _pending(view, deployment)
        case Stage.AMBIGUOUS:
            return _ambiguous(view, now_ms)
        case Stage.RUNNING:
            return _running(view, now_ms)
    end = view.end
    if end is None or end.state is ReleaseState.SUCCEEDED:
        return Explained(stands=_OUTCOMES[ReleaseState.SUCCEEDED])
    return _failed(view, end)


def _pending(view: ReleaseView, deployment: DeploymentView) -> Explained:
    stands = "It has not begun."
    blocker, owner = deployment.blocker, deployment.owner
    if blocker is not None:
        return Explained(
            stands=stands,
            where="the blocked root",
            rule="release-blocked",
            what=f"the rollback of release {blocker.operation_id} failed: {blocker.reason}",
            meaning="No release may start until that one is recovered.",
            remedy=f"`ticket-agent release recover {blocker.operation_id}` says what to do.",
        )
    if owner is not None and owner.operation_id != view.operation_id:
        return Explained(
            stands=stands,
            where="another release",
            rule="release-owned",
            what=f"release {owner.operation_id} is not finished",
            meaning="One release at a time works in a root; this one waits.",
            remedy=f"Wait, or see `ticket-agent release explain {owner.operation_id}`.",
        )
    return Explained(
        stands=stands,
        where="the ticket",
        meaning="No ticket for it was executed on this host, or the agent does not run.",
        remedy="Submit it (`ticket-agent release submit`) and look at `ticket-agent status`.",
    )


def _running(view: ReleaseView, now_ms: int) -> Explained:
    current, left = view.current, _left(view, now_ms)
    if view.state is not None and not view.attempts:
        return Explained(
            stands=f"It has ended as {view.state.value}; its evidence is being kept.",
            where="the evidence",
            meaning="The root is free for the next release when the evidence is there.",
            remedy="Wait; if it stays so, see whether the disk has room: `ticket-agent doctor`.",
        )
    if view.attempts and view.attempts[-1].end is None:
        return Explained(
            stands="It is being recovered.",
            where=Phase.ROLLBACK.value,
            what=f"ticket {view.attempts[-1].ticket_id}, {view.attempts[-1].rollback.standing.value}",
            remedy="Wait for that ticket.",
        )
    if current is None:
        return Explained(stands=f"It has begun, and no phase was started yet{left}.", remedy="Wait.")
    if current.standing is Standing.RUNNING:
        since = (
            ""
            if current.started_unix_ms is None
            else f" for {span(max(0, now_ms - current.started_unix_ms))}"
        )
        return Explained(
            stands=f"It is under way{left}.",
            where=current.phase.value,
            what=f"{current.phase.value} has been running{since}",
            meaning="It waits for that phase to end.",
            remedy="`ticket-agent release watch` shows its output.",
        )
    failed = view.stopped
    if failed is not None:
        words, rule = _words(failed)
        return Explained(
            stands=f"{failed.phase.value} did not succeed; the agent has to end the release{left}.",
            where=failed.phase.value,
            rule=rule,
            what=failed.reason,
            meaning=words.meaning,
            remedy="See that the agent runs: `ticket-agent status`.",
        )
    return Explained(
        stands=f"{current.phase.value} has succeeded; the agent has to start the next phase{left}.",
        where=current.phase.value,
        remedy="If it stays so, see that the agent runs: `ticket-agent status`.",
    )


def _left(view: ReleaseView, now_ms: int) -> str:
    if view.begun is None:
        return ""
    expires = view.begun.expires_unix_ms
    if expires <= now_ms:
        return f"; its ticket expired at {stamp(expires)}"
    return f"; its ticket expires at {stamp(expires)}, in {span(expires - now_ms)}"


def _ambiguous(view: ReleaseView, now_ms: int) -> Explained:
    lost = next((phase for phase in view.phases if phase.standing is Standing.LOST), None)
    where = None if lost is None else lost.phase.value
    return Explained(
        stands=f"Nobody knows how {where or 'a phase'} ended{_left(view, now_ms)}.",
        where=where,
        rule="ambiguous",
        what=None if lost is None else lost.reason,
        meaning="A phase is started once and never again. Nothing was loaded; the incumbent still serves.",
        remedy=f"`ticket-agent release recover {view.operation_id}` names the command that ends it.",
    )


def _failed(view: ReleaseView, end: ReleaseRecord) -> Explained:
    stands = _OUTCOMES[end.state]
    if view.attempts:
        stands = f"{stands} (recovery under ticket {view.attempts[-1].ticket_id})"
    rollback = view.phase(Phase.ROLLBACK)
    if end.state is ReleaseState.ROLLBACK_FAILED:
        stopped = rollback if rollback is not None and rollback.standing is not Standing.SUCCEEDED else None
        words, rule = _words(stopped) if stopped is not None else (words_for_phase(Phase.ROLLBACK), None)
        return Explained(
            stands=stands,
            where=Phase.ROLLBACK.value,
            rule=rule or _rule_of_text(end.blocker),
            what=(None if stopped is None else stopped.reason) or end.blocker,
            meaning=words.meaning,
            remedy=f"`ticket-agent release recover {view.operation_id}` says what to do.",
        )
    forward = view.stopped
    if forward is not None and forward.phase is not Phase.ROLLBACK:
        words, rule = _words(forward)
        return Explained(
            stands=stands,
            where=forward.phase.value,
            rule=rule,
            what=forward.reason or end.blocker,
            meaning=words.meaning,
            remedy=words.remedy,
        )
    return _stopped_by_gate(view, end, stands)


def _stopped_by_gate(view: ReleaseView, end: ReleaseRecord, stands: str) -> Explained:
    """No phase failed: something between two phases stopped it."""
    last = view.current
    refused = _comparison(view, end)
    if refused is not None:
        words = words_for_rule("release-comparison") or words_for_phase(Phase.EVALUATE)
        return Explained(
            stands=stands,
            where=_COMPARISON,
            rule=f"candidate-regression {refused.member}" if refused.regression else refused.member,
            what=str(refused),
            meaning=words.meaning,
            remedy=words.remedy,
        )
    found = None if end.blocker is None else words_for_text(end.blocker)
    after = "before the first phase" if last is None else f"after {last.phase.value}"
    return Explained(
        stands=stands,
        where=after,
        rule=None if found is None else found[0],
        what=end.blocker,
        meaning=None if found is None else found[1].meaning,
        remedy="Correct that and submit a new release." if found is None else found[1].remedy,
    )


def _comparison(view: ReleaseView, end: ReleaseRecord) -> ComparisonRefusedError | None:
    """Why the candidate was not accepted: the decision is made again from what was observed."""
    if view.request is None or end.comparison is not None:
        return None
    entry = end.record_of(Phase.EVALUATE)
    try:
        found = evaluations_of(end)
        if found is None or entry is None or entry.result is None:
            return None
        compare(
            found[1],
            found[0],
            policy=view.request.evaluation_policy,
            accepted=view.request.baseline,
            now_unix_ms=entry.result.completed_unix_ms,
        )
    except ComparisonRefusedError as error:
        return error
    except PeftError:
        return None
    return None


def _words(phase: PhaseView) -> tuple[Words, str | None]:
    rule = phase.rule
    if phase.standing is Standing.LOST:
        rule = "lost"
        found: Words | None = Words(
            "Its process ended without saying what it achieved: killed, out of memory, or a power cut.",
            "Look for that in the host's log and in its output, then submit a new release.",
        )
    else:
        found = None if rule is None else words_for_rule(rule)
    return found or words_for_phase(phase.phase), rule


def _rule_of_text(blocker: str | None) -> str | None:
    found = None if blocker is None else words_for_text(blocker)
    return None if found is None else found[0]
