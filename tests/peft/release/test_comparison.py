"""The decision for or against a candidate: every way to be refused, and made the same way twice."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from release_scene import BARE, BASE, CONTEXT, DEPLOYED, POLICY, Scene, successor

from ticket_agent.peft.release.comparison import Comparison, compare, recheck
from ticket_agent.peft.release.context import EvaluationContext
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.evaluation import Evaluation, parse_evaluation
from ticket_agent.peft.release.evidence_errors import ComparisonRefusedError
from ticket_agent.peft.release.request import Direction, Metric, policy_digest

BASELINE, CANDIDATE = Scene().evaluations
ENDED = CANDIDATE.completed_unix_ms


def decided(candidate: Evaluation = CANDIDATE, baseline: Evaluation = BASELINE, **changes: Any) -> Comparison:
    arguments: dict[str, Any] = {"policy": POLICY, "accepted": DEPLOYED, "now_unix_ms": ENDED + 100} | changes
    return compare(candidate, baseline, **arguments)


def loss(value: float, of: Evaluation = CANDIDATE) -> Evaluation:
    return replace(of, metrics={"eval_loss": value})


def test_a_better_candidate_is_accepted_and_the_decision_says_what_it_was_made_of() -> None:
    assert decided() == Comparison(
        candidate_sha256=CANDIDATE.artifact_sha256,
        baseline=DEPLOYED,
        candidate_report_sha256=CANDIDATE.sha256,
        baseline_report_sha256=BASELINE.sha256,
        policy_sha256=policy_digest(POLICY),
        context_sha256=CONTEXT.sha256,
    )


@pytest.mark.parametrize("name", [field.name for field in fields(EvaluationContext)])
def test_a_context_that_differs_in_anything_is_not_comparable(name: str) -> None:
    value = "ee" * 32 if name.endswith("_sha256") else "another"
    changed = replace(CANDIDATE, context=replace(CONTEXT, **{name: value}))
    with pytest.raises(ComparisonRefusedError, match=f"{name} differs") as refused:
        decided(changed)
    assert (refused.value.member, refused.value.regression) == (name, False)


def test_there_are_eleven_members_of_a_context() -> None:
    assert len(fields(EvaluationContext)) == 11


MUCH = 4.0001
REFUSED: dict[str, tuple[dict[str, Any], str, bool]] = {
    "15 rows": ({"candidate": replace(CANDIDATE, samples=15)}, "15 rows", False),
    "15 rows of the baseline": ({"baseline": replace(BASELINE, samples=15)}, "baseline: 15", False),
    "another number of rows": ({"candidate": replace(CANDIDATE, samples=17)}, "17 and 16 rows", False),
    "never ended": ({"candidate": replace(CANDIDATE, completed_unix_ms=0)}, "in the past", False),
    "ended in the future": ({"now_unix_ms": ENDED - 1}, "in the past", False),
    "exactly too old": ({"now_unix_ms": ENDED + POLICY.maximum_age_ms}, "60000 ms old", False),
    "above the bound": ({"candidate": loss(MUCH), "baseline": loss(5.0, BASELINE)}, "at most", True),
    "a little worse": ({"candidate": loss(3.6), "baseline": loss(3.5999, BASELINE)}, "worse", True),
    "another metric": ({"candidate": replace(CANDIDATE, metrics={"loss": 1.0})}, "is missing", False),
    "baseline lacks it": ({"baseline": replace(BASELINE, metrics={"x": 1.0})}, "baseline: eval", False),
    "unhealthy": ({"accepted": replace(DEPLOYED, healthy=False)}, "not healthy", False),
    "no way back": ({"accepted": replace(DEPLOYED, rollback_verified=False)}, "come back", False),
    "another runtime": ({"accepted": replace(DEPLOYED, runtime_sha256="ee" * 32)}, "runtime", False),
    "another incumbent": ({"accepted": successor(DEPLOYED, "ee" * 32)}, "not what is served", False),
    "bare, and not the base": (
        {
            "accepted": replace(BARE, served_artifact_sha256="ee" * 32),
            "baseline": replace(BASELINE, artifact_sha256="ee" * 32),
        },
        "must be the base model",
        False,
    ),
}


@pytest.mark.parametrize(("changes", "words", "regression"), REFUSED.values(), ids=REFUSED)
def test_the_candidate_is_refused(changes: dict[str, Any], words: str, regression: bool) -> None:
    with pytest.raises(ComparisonRefusedError, match=words) as refused:
        decided(**changes)
    assert refused.value.regression is regression


ACCEPTED: dict[str, dict[str, Any]] = {
    "as good as before": {"candidate": loss(3.5), "baseline": loss(3.5, BASELINE)},
    "exactly at the bound": {"candidate": loss(4.0), "baseline": loss(4.0, BASELINE)},
    "almost too old": {"now_unix_ms": ENDED + POLICY.maximum_age_ms - 1},
    "in this very moment": {"now_unix_ms": ENDED},
    "more rows than needed": {
        "candidate": replace(CANDIDATE, samples=32),
        "baseline": replace(BASELINE, samples=32),
    },
    "the base model": {"accepted": BARE, "baseline": replace(BASELINE, artifact_sha256=BASE)},
}


@pytest.mark.parametrize("changes", ACCEPTED.values(), ids=ACCEPTED)
def test_the_candidate_is_accepted(changes: dict[str, Any]) -> None:
    decided(**changes)


@pytest.mark.parametrize(
    ("value", "reference", "fits"),
    [(0.9, 0.9, True), (0.8, 0.85, True), (0.8, 0.851, False), (0.69, 0.69, False), (0.7, 0.7, True)],
)
def test_more_can_be_better(value: float, reference: float, fits: bool) -> None:
    metric = Metric(
        name="accuracy", direction=Direction.HIGHER, absolute_bound=0.7, maximum_regression=0.05 + 1e-9
    )
    policy = replace(POLICY, metrics=(replace(metric, maximum_regression=0.0501),))
    reports = (
        replace(CANDIDATE, metrics={"accuracy": value}),
        replace(BASELINE, metrics={"accuracy": reference}),
    )
    if fits:
        decided(*reports, policy=policy)
    else:
        with pytest.raises(ComparisonRefusedError) as refused:
            decided(*reports, policy=policy)
        assert refused.value.regression


@pytest.mark.parametrize("metrics", [{}, {"eval_loss": float("nan")}, {"eval_loss": float("inf")}])
def test_an_evaluation_without_finite_metrics_cannot_exist(metrics: dict[str, float]) -> None:
    with pytest.raises(DocumentError):
        replace(CANDIDATE, metrics=metrics)


@given(
    st.floats(0.001, 8.0), st.floats(0.001, 8.0), st.floats(0.001, 8.0), st.sampled_from([0.0, 0.001, 0.5])
)
def test_what_is_accepted_keeps_both_bounds(
    value: float, reference: float, bound: float, slack: float
) -> None:
    metric = replace(POLICY.metrics[0], absolute_bound=bound, maximum_regression=slack)
    policy = replace(POLICY, metrics=(metric,))
    if value > bound or value - reference > slack:
        with pytest.raises(ComparisonRefusedError) as refused:
            decided(loss(value), loss(reference, BASELINE), policy=policy)
        assert refused.value.regression
    else:
        decided(loss(value), loss(reference, BASELINE), policy=policy)


def again(first: Comparison, *, candidate: Evaluation = CANDIDATE, **changes: Any) -> Comparison:
    arguments: dict[str, Any] = {"policy": POLICY, "accepted": DEPLOYED, "now_unix_ms": ENDED + 101} | changes
    return recheck(first, candidate, BASELINE, **arguments)


def test_the_second_decision_is_the_first() -> None:
    first = decided()
    assert again(first) == first
    assert again(first).identity == first.identity


def test_what_changed_meanwhile_is_named() -> None:
    first = decided()
    with pytest.raises(ComparisonRefusedError, match="generation 2 is deployed, not the 1"):
        again(first, accepted=successor(DEPLOYED))
    with pytest.raises(ComparisonRefusedError, match="generation 1 is deployed"):
        again(first, accepted=replace(DEPLOYED, healthy=False))
    with pytest.raises(ComparisonRefusedError, match="candidate_sha256 is not the one"):
        again(first, candidate=replace(CANDIDATE, artifact_sha256="ee" * 32))
    with pytest.raises(ComparisonRefusedError, match="candidate_report_sha256 is not the one"):
        again(first, candidate=loss(3.0))
    with pytest.raises(ComparisonRefusedError, match="policy_sha256 is not the one"):
        again(first, policy=replace(POLICY, minimum_samples=15))
    with pytest.raises(ComparisonRefusedError, match="younger than"):
        again(first, now_unix_ms=ENDED + POLICY.maximum_age_ms)


def test_documents_come_back_as_they_were() -> None:
    first = decided()
    assert Comparison.of_members(first.members()) == first
    assert parse_evaluation(CANDIDATE.encode()) == CANDIDATE


@pytest.mark.parametrize("name", [field.name for field in fields(Comparison) if field.name != "baseline"])
@pytest.mark.parametrize("value", ["ee", "EE" * 32, None])
def test_a_comparison_is_made_of_digests(name: str, value: Any) -> None:
    with pytest.raises(DocumentError, match=f"comparison: {name} must be a SHA-256"):
        Comparison.of_members(decided().members() | {name: value})


@pytest.mark.parametrize("name", [*CANDIDATE.members(), "extra"])
def test_an_evaluation_has_exactly_its_members(name: str) -> None:
    document = CANDIDATE.members()
    if name in document:
        del document[name]
    else:
        document[name] = 1
    with pytest.raises(DocumentError, match=name):
        Evaluation.of_members(document)
