"""Whether a release can have gone as its record tells: pure, for who signs it and for who verifies it.

Each function looks at one thing and returns when it is in order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

from ticket_agent.peft.release.comparison import compare
from ticket_agent.peft.release.deployment import DeploymentState
from ticket_agent.peft.release.document_error import reading
from ticket_agent.peft.release.evaluation import Evaluation
from ticket_agent.peft.release.evidence_errors import ComparisonRefusedError, InconsistentError
from ticket_agent.peft.release.paired import pair, require_mean
from ticket_agent.peft.release.phases import TERMINAL, Phase, ReleaseState, forward_phases

if TYPE_CHECKING:
    from ticket_agent.peft.release.comparison import Comparison
    from ticket_agent.peft.release.evaluation import RowLosses
    from ticket_agent.peft.release.observation import PhaseObservation
    from ticket_agent.peft.release.paired import PairedLosses
    from ticket_agent.peft.release.release_record import PhaseRecord, ReleaseRecord
    from ticket_agent.peft.release.request import ReleaseRequest

__all__ = [
    "deployed_after",
    "evaluations_of",
    "require_candidate",
    "require_comparison",
    "require_order",
    "require_outcome",
    "successor",
]


def successor(request: ReleaseRequest, candidate_sha256: str) -> DeploymentState:
    """What is deployed after the request was fulfilled with this candidate."""
    return DeploymentState(
        generation=request.baseline.generation + 1,
        adapter_sha256=candidate_sha256,
        served_artifact_sha256=candidate_sha256,
        runtime_sha256=request.baseline.runtime_sha256,
        healthy=True,
        rollback_verified=True,
    )


def deployed_after(request: ReleaseRequest, record: ReleaseRecord) -> DeploymentState | None:
    """What is deployed after the release; None where nobody knows.

    Raises:
        InconsistentError: the release succeeded with nothing.
    """
    if record.state is ReleaseState.SUCCEEDED:
        if record.comparison is None:
            _refuse("succeeded without a comparison of the candidate")
        return successor(request, record.comparison.candidate_sha256)
    return None if record.state is ReleaseState.ROLLBACK_FAILED else request.baseline


def require_order(request: ReleaseRequest, record: ReleaseRecord) -> None:
    """Refuse phases that were not dispatched one after the other, each after the success of the one before.

    Raises:
        InconsistentError: they were not.
    """
    forward = _forward(record)
    wanted = forward_phases(request.entry)
    if len(forward) < len(record.phases) and record.phases[-1].phase is not Phase.ROLLBACK:
        _refuse(f"{record.phases[-1].phase} cannot come after the rollback")
    for entry, phase in zip(forward, wanted, strict=False):
        if entry.phase is not phase:
            _refuse(f"{entry.phase} cannot come where {phase} must")
    for entry in forward[:-1]:
        if entry.result is None or not entry.result.succeeded:
            _refuse(f"the release went on after {entry.phase}, which did not succeed")
    for before, after in pairwise(record.observations()):
        if after.completed_unix_ms < before.completed_unix_ms:
            _refuse(f"{after.phase} ended before {before.phase}, which came first")


def require_outcome(request: ReleaseRequest, record: ReleaseRecord) -> None:
    """Refuse an end that does not follow from what was observed.

    Raises:
        InconsistentError: it does not.
        DocumentError: a phase tells what is deployed in a way that cannot be read.
    """
    if record.state not in TERMINAL:
        _refuse(f"a release that is {record.state} has not ended")
    if (record.blocker is None) is not (record.state is ReleaseState.SUCCEEDED):
        _refuse("a release succeeds, or something stops it")
    _RULES[record.state](request, record)


def _succeeded(request: ReleaseRequest, record: ReleaseRecord) -> None:
    wanted = forward_phases(request.entry)
    if tuple(entry.phase for entry in record.phases) != wanted:
        _refuse(f"succeeded without each of {', '.join(wanted)}")
    _require_deployed(_result(record, Phase.PROMOTE), deployed_after(request, record))
    if record.recovery is not None:
        _refuse("a recovery never succeeds in what the release was for")


def _failed(_: ReleaseRequest, record: ReleaseRecord) -> None:
    if record.record_of(Phase.LOAD) is not None or record.record_of(Phase.ROLLBACK) is not None:
        _refuse("failed, although the candidate was to be served; that must be rolled back")
    lost = [entry.phase for entry in record.phases if entry.result is None]
    if lost:
        _refuse(f"failed, although nobody knows how {lost[0]} ended")


def _recovered(request: ReleaseRequest, record: ReleaseRecord) -> None:
    if record.recovery is None and record.record_of(Phase.LOAD) is None:
        _refuse("recovered, although the candidate was never to be served and no recovery was asked for")
    _require_deployed(_result(record, Phase.ROLLBACK), request.baseline)


def _rollback_failed(_: ReleaseRequest, record: ReleaseRecord) -> None:
    # Whatever the rollback observed: this end claims nothing about what is deployed.
    if record.recovery is None and record.record_of(Phase.LOAD) is None:
        _refuse("the rollback failed, although the candidate was never to be served")


_RULES = {
    ReleaseState.SUCCEEDED: _succeeded,
    ReleaseState.FAILED: _failed,
    ReleaseState.RECOVERED_FAILURE: _recovered,
    ReleaseState.ROLLBACK_FAILED: _rollback_failed,
}


def evaluations_of(record: ReleaseRecord) -> tuple[Evaluation, Evaluation] | None:
    """What the evaluation observed of baseline and candidate; None when it did not succeed.

    Raises:
        DocumentError: the observation has no two evaluations.
        InconsistentError: one of them is missing.
    """
    entry = record.record_of(Phase.EVALUATE)
    if entry is None or entry.result is None or not entry.result.succeeded:
        return None
    detail = entry.result.detail
    if not {"baseline", "candidate"} <= detail.keys():
        _refuse("evaluate did not observe both baseline and candidate")
    return (
        Evaluation.of_members(detail["baseline"], "baseline"),
        Evaluation.of_members(detail["candidate"], "candidate"),
    )


def require_comparison(
    request: ReleaseRequest, record: ReleaseRecord, reports: tuple[RowLosses, RowLosses] | None
) -> PairedLosses | None:
    """Decide again about the candidate, from the losses of the rows on, and refuse another decision.

    Returns the losses side by side, or None when there was no evaluation.

    Raises:
        InconsistentError: the record has another decision, or went on although there was none.
        ComparisonRefusedError: reports and evaluations contradict each other.
        DocumentError: the observation has no two evaluations.
    """
    found = evaluations_of(record)
    if (found is None) is not (reports is None):
        _refuse("there must be reports of the rows' losses exactly when there is an evaluation")
    if found is None or reports is None:
        if record.comparison is not None:
            _refuse("there is a comparison, and no evaluation that it could be of")
        return None
    for evaluation, report in zip(found, reports, strict=True):
        require_mean(evaluation, report)
    paired = pair(*reports)
    _require_decision(request, record, found)
    return paired


def _require_decision(
    request: ReleaseRequest, record: ReleaseRecord, found: tuple[Evaluation, Evaluation]
) -> None:
    evaluated = _result(record, Phase.EVALUATE)
    if record.comparison is None:
        # Who lost the authority, or was too late, in this moment decides nothing and goes no further.
        if _forward(record)[-1].phase is not Phase.EVALUATE:
            _refuse("the release went on without a decision for the candidate")
        return
    moments = [evaluated]
    canary = record.record_of(Phase.CANARY)
    if record.record_of(Phase.PROMOTE) is not None and canary is not None and canary.result is not None:
        # The decision was made a second time after the canary.
        moments.append(canary.result)
    for moment in moments:
        if _decided(request, found, moment) != record.comparison:
            _refuse("the comparison is not the one that follows from the evaluations")


def _decided(
    request: ReleaseRequest, found: tuple[Evaluation, Evaluation], moment: PhaseObservation
) -> Comparison:
    baseline, candidate = found
    try:
        return compare(
            candidate,
            baseline,
            policy=request.evaluation_policy,
            accepted=request.baseline,
            now_unix_ms=moment.completed_unix_ms,
        )
    except ComparisonRefusedError as error:
        raise InconsistentError(f"the candidate was accepted, although {error}") from error


def require_candidate(record: ReleaseRecord) -> None:
    """Refuse a release that scanned or staged something else than what was compared.

    Raises:
        InconsistentError: it did.
    """
    for phase in (Phase.SCAN, Phase.STAGE):
        entry = record.record_of(phase)
        if entry is None or entry.result is None or not entry.result.succeeded:
            continue
        candidate = None if record.comparison is None else record.comparison.candidate_sha256
        if entry.result.detail.get("adapter_sha256") != candidate:
            _refuse(f"{phase} found another adapter than the one that was compared")


def _forward(record: ReleaseRecord) -> tuple[PhaseRecord, ...]:
    return tuple(entry for entry in record.phases if entry.phase is not Phase.ROLLBACK)


def _result(record: ReleaseRecord, phase: Phase) -> PhaseObservation:
    entry = record.record_of(phase)
    if entry is None or entry.result is None or not entry.result.succeeded:
        _refuse(f"{record.state}, although {phase} was not observed to have succeeded")
    return entry.result


def _deployed(observation: PhaseObservation) -> DeploymentState:
    with reading(f"{observation.phase}: accepted"):
        return DeploymentState.of_members(observation.detail.get("accepted"))


def _require_deployed(observation: PhaseObservation, wanted: DeploymentState | None) -> None:
    if _deployed(observation) != wanted:
        _refuse(f"{observation.phase} left something else deployed than it must")


def _refuse(why: str) -> NoReturn:
    raise InconsistentError(why)
