"""Evaluations: every member is held to its rule, and the written form is the canonical one."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from release_scene import Scene

from ticket_agent.peft.release.canonical import encode
from ticket_agent.peft.release.context import EvaluationContext
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.evaluation import parse_evaluation, parse_row_losses
from ticket_agent.peft.release.spelled import spell

EVALUATION = Scene().evaluations[1]
REPORT = Scene().reports[1]

BAD: dict[str, tuple[object, ...]] = {
    "schema": ("cohesix-native-evaluation/v2", None),
    "artifact_sha256": ("ee", "EE" * 32, None),
    "context": (None, {}, []),
    "samples": (-1, 2**32, 16.0, True, None),
    "completed_unix_ms": (-1, 2**64 - 1.0, "1", None),
    "metrics": (
        None,
        [],
        {},
        {"x": 1},
        {"": 1.0},
        {"x" * 65: 1.0},
        {f"m{index}": 1.0 for index in range(17)},
    ),
    "native_report_sha256": ("ee", None),
    "extra": (1,),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values]
)
def test_other_members_are_refused(name: str, value: object) -> None:
    document = json.loads(EVALUATION.encode()) | {name: value}
    data = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(DocumentError, match="evaluation: "):
        parse_evaluation(data)


@pytest.mark.parametrize("name", [field.name for field in fields(EvaluationContext)])
@pytest.mark.parametrize("value", ["", "x" * 129, "a\nb", None, "é"])
def test_a_context_is_made_of_digests_and_labels(name: str, value: Any) -> None:
    document = json.loads(EVALUATION.encode())
    document["context"][name] = value
    with pytest.raises(DocumentError, match=f"context.{name} must be"):
        parse_evaluation(encode(document))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 5e-5, -0.0, 1])
def test_metrics_are_numbers_that_everybody_prints_alike(value: float) -> None:
    with pytest.raises(DocumentError, match="metrics"):
        replace(EVALUATION, metrics={"eval_loss": value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("schema", "x"), ("artifact_sha256", "ee"), ("rows", []), ("losses", []), ("losses", [1]), ("extra", 1)],
)
def test_other_reports_are_refused(name: str, value: object) -> None:
    document = json.loads(REPORT.encode()) | {name: value}
    with pytest.raises(DocumentError, match="row losses: "):
        parse_row_losses(spell(document))


def test_metrics_cannot_be_changed_afterwards() -> None:
    metrics = {"eval_loss": 3.0}
    evaluation = replace(EVALUATION, metrics=metrics)
    metrics["eval_loss"] = 1.0
    assert evaluation.metrics["eval_loss"] == 3.0
