"""Whether a candidate may take the incumbent's place: pure, and decided the same way each time.

Both were evaluated on the same rows in the same context. The decision is made once after the evaluation and
again right before promotion, on what is then deployed; the two must be one and the same.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from ticket_agent.peft.names import shown
from ticket_agent.peft.release.canonical import digest_of
from ticket_agent.peft.release.deployment import DeploymentState
from ticket_agent.peft.release.document_error import reading
from ticket_agent.peft.release.evidence_errors import ComparisonRefusedError
from ticket_agent.peft.release.request import Direction, policy_digest
from ticket_agent.peft.release.rules import digest_text, exact, field_names

if TYPE_CHECKING:
    from ticket_agent.peft.release.evaluation import Evaluation
    from ticket_agent.peft.release.request import EvaluationPolicy, Metric

__all__ = ["Comparison", "compare", "recheck"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A decision for the candidate, by what it was made of.

    Attributes:
        candidate_sha256: the adapter that may be promoted.
        baseline: what was deployed when the decision was made.
        candidate_report_sha256: digest of the candidate's evaluation.
        baseline_report_sha256: digest of the incumbent's evaluation.
        policy_sha256: digest of the policy.
        context_sha256: digest of the context of both evaluations.

    Raises:
        DocumentError: a value that no comparison has.
    """

    candidate_sha256: str
    baseline: DeploymentState
    candidate_report_sha256: str
    baseline_report_sha256: str
    policy_sha256: str
    context_sha256: str

    def __post_init__(self) -> None:
        for name in field_names(type(self)):
            if name.endswith("_sha256"):
                digest_text(getattr(self, name), name)

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        return asdict(self) | {"baseline": self.baseline.members()}

    @classmethod
    def of_members(cls, value: object) -> Comparison:
        """The value of :meth:`members`.

        Raises:
            DocumentError: anything else.
        """
        with reading("comparison"):
            document = dict(exact(value, field_names(cls)))
            document["baseline"] = DeploymentState.of_members(document["baseline"])
            return cls(**document)

    @property
    def identity(self) -> str:
        """SHA-256 of the canonical form; two comparisons with the same one decided about the same."""
        return digest_of(self.members())


def compare(
    candidate: Evaluation,
    baseline: Evaluation,
    *,
    policy: EvaluationPolicy,
    accepted: DeploymentState,
    now_unix_ms: int,
) -> Comparison:
    """Decide for the candidate, or say what is against it.

    Args:
        candidate: evaluation of what may be promoted.
        baseline: evaluation of what is served now.
        policy: what the request demands.
        accepted: what is deployed now.
        now_unix_ms: the host's clock.

    Raises:
        ComparisonRefusedError: a report is too small, too old or from the future; the two are not comparable;
            what is deployed is not what was evaluated, or not in a state to be replaced; or a metric misses
            its bound or regressed by more than allowed. A metric that is as good as before is accepted.
    """
    for name, report in (("candidate", candidate), ("baseline", baseline)):
        _require_fresh(name, report, policy, now_unix_ms)
    _require_comparable(candidate, baseline)
    _require_deployed(baseline, accepted)
    for metric in policy.metrics:
        _require_metric(metric, candidate, baseline)
    return Comparison(
        candidate_sha256=candidate.artifact_sha256,
        baseline=accepted,
        candidate_report_sha256=candidate.sha256,
        baseline_report_sha256=baseline.sha256,
        policy_sha256=policy_digest(policy),
        context_sha256=candidate.context.sha256,
    )


def recheck(
    first: Comparison,
    candidate: Evaluation,
    baseline: Evaluation,
    *,
    policy: EvaluationPolicy,
    accepted: DeploymentState,
    now_unix_ms: int,
) -> Comparison:
    """Decide again, right before promotion.

    Raises:
        ComparisonRefusedError: as :func:`compare`; or what is deployed, the reports or the policy are not
            those of the first decision.
    """
    if accepted != first.baseline:
        _refuse(
            "accepted",
            f"generation {accepted.generation} is deployed, not the {first.baseline.generation} that was"
            " compared with; evaluate again and ask for a new approval",
        )
    again = compare(candidate, baseline, policy=policy, accepted=accepted, now_unix_ms=now_unix_ms)
    for name in field_names(Comparison):
        if getattr(again, name) != getattr(first, name):
            _refuse(name, f"{name} is not the one of the comparison that was approved")
    return again


def _require_fresh(name: str, report: Evaluation, policy: EvaluationPolicy, now_unix_ms: int) -> None:
    if report.samples < policy.minimum_samples:
        _refuse(
            "samples",
            f"{name}: {report.samples} rows were evaluated; at least {policy.minimum_samples} must be",
        )
    if not 0 < report.completed_unix_ms <= now_unix_ms:
        _refuse(
            "completed_unix_ms", f"{name}: the evaluation did not end in the past; check the host's clock"
        )
    age = now_unix_ms - report.completed_unix_ms
    if age >= policy.maximum_age_ms:
        _refuse(
            "completed_unix_ms",
            f"{name}: the evaluation is {age} ms old; it must be younger than {policy.maximum_age_ms} ms",
        )


def _require_comparable(candidate: Evaluation, baseline: Evaluation) -> None:
    for name in field_names(type(candidate.context)):
        ours, theirs = getattr(candidate.context, name), getattr(baseline.context, name)
        if ours != theirs:
            _refuse(name, f"{name} differs between candidate ({shown(ours)}) and baseline ({shown(theirs)})")
    if candidate.samples != baseline.samples:
        _refuse(
            "samples",
            f"candidate and baseline were evaluated on {candidate.samples} and {baseline.samples} rows",
        )


def _require_deployed(baseline: Evaluation, accepted: DeploymentState) -> None:
    if not accepted.healthy:
        _refuse("healthy", "the deployed generation is not healthy; repair it before it is replaced")
    if not accepted.rollback_verified:
        _refuse("rollback_verified", "it is not known how to come back to the deployed generation")
    if baseline.artifact_sha256 != accepted.served_artifact_sha256:
        _refuse("artifact_sha256", "the baseline that was evaluated is not what is served")
    if baseline.context.runtime_sha256 != accepted.runtime_sha256:
        _refuse("runtime_sha256", "the evaluation's runtime is not the one that serves")
    if accepted.adapter_sha256 is None and baseline.artifact_sha256 != baseline.context.base_sha256:
        _refuse("base_sha256", "without an adapter the baseline must be the base model")


def _require_metric(metric: Metric, candidate: Evaluation, baseline: Evaluation) -> None:
    name = metric.name
    for who, report in (("candidate", candidate), ("baseline", baseline)):
        if name not in report.metrics:
            _refuse(name, f"{who}: {name} is missing, and the policy has a bound for it")
    value, reference = candidate.metrics[name], baseline.metrics[name]
    lower = metric.direction is Direction.LOWER
    worse = value - reference if lower else reference - value
    if (value > metric.absolute_bound) if lower else (value < metric.absolute_bound):
        limit = "at most" if lower else "at least"
        _refuse(name, f"{name} is {value}; it must be {limit} {metric.absolute_bound}", regression=True)
    if worse > metric.maximum_regression:
        _refuse(
            name,
            f"{name} is {value}, worse than the baseline's {reference} by more than"
            f" {metric.maximum_regression}",
            regression=True,
        )


def _refuse(member: str, why: str, *, regression: bool = False) -> NoReturn:
    raise ComparisonRefusedError(why, member=member, regression=regression)
