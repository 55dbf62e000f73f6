"""Deciding about a candidate, after its evaluation and again before its promotion; and saying why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ticket_agent.peft.release.comparison import compare, recheck
from ticket_agent.peft.release.evaluation import Evaluation
from ticket_agent.peft.release.evidence_errors import ComparisonRefusedError
from ticket_agent.peft.release.phase_machine import Standing
from ticket_agent.peft.release.phases import Phase
from ticket_agent.peft.release.release_story import Decided, blocker_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.peft.release.deployment import DeploymentState
    from ticket_agent.peft.release.release_story import Story

__all__ = ["because_of", "decide_candidate", "outdated"]


def decide_candidate(story: Story, accepted: DeploymentState, *, now_unix_ms: int) -> Decided:
    """Decide for or against the candidate of a release whose evaluation has succeeded.

    Args:
        story: the release.
        accepted: what is deployed now.
        now_unix_ms: the host's clock; one that was set back counts as the moment of the evaluation.
    """
    candidate, baseline, completed = _evaluations(story)
    try:
        comparison = compare(
            candidate,
            baseline,
            policy=story.request.evaluation_policy,
            accepted=accepted,
            now_unix_ms=max(now_unix_ms, completed),
        )
    except ComparisonRefusedError as error:
        return Decided(comparison=None, why=blocker_text(str(error)))
    if comparison.candidate_sha256 != story.candidate_sha256:
        return Decided(comparison=None, why="another adapter was evaluated than was validated")
    return Decided(comparison=comparison)


def outdated(story: Story, accepted: Callable[[], DeploymentState], *, now_unix_ms: int) -> str:
    """Why the decision does not hold when the promotion is due; empty when it does, or is not due.

    Raises:
        PeftError: what is deployed cannot be read.
    """
    canary, decided = story.observed(Phase.CANARY), story.decided
    if canary is None or story.of(Phase.PROMOTE) is not None:
        return ""
    if decided is None or decided.comparison is None:
        return ""
    candidate, baseline, _ = _evaluations(story)
    try:
        recheck(
            decided.comparison,
            candidate,
            baseline,
            policy=story.request.evaluation_policy,
            accepted=accepted(),
            now_unix_ms=max(now_unix_ms, canary.completed_unix_ms),
        )
    except ComparisonRefusedError as error:
        return str(error)
    return ""


def because_of(story: Story, why: str, more: str = "") -> str:
    """What stops a release, as precisely as it is known, for its record.

    Args:
        story: the release.
        why: what the machine says.
        more: what else is known; by default what the last phase or the decision says.
    """
    first = next((entry.because for entry in story.phases if entry.because), "")
    last = story.phases[-1] if story.phases else None
    if not more and last is not None and last.standing is not Standing.SUCCEEDED:
        more = last.why
    if not more and story.decided is not None and story.decided.comparison is None:
        more = story.decided.why
    told = f"{why}: {more}" if more and more not in why else why
    return blocker_text(f"{first}; {told}" if first and told else first or told)


def _evaluations(story: Story) -> tuple[Evaluation, Evaluation, int]:
    """Candidate, baseline, and when both were done."""
    observed = story.observed(Phase.EVALUATE)
    assert observed is not None  # it succeeded
    return (
        Evaluation.of_members(observed.detail["candidate"], "candidate"),
        Evaluation.of_members(observed.detail["baseline"], "baseline"),
        observed.completed_unix_ms,
    )
