"""Losses side by side: figures against an independent computation, and laws."""

from __future__ import annotations

import math
import statistics
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from release_scene import BASELINE_LOSSES, CANDIDATE_LOSSES, ROWS, Scene

from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.evaluation import MAX_LOSS, RowLosses, parse_row_losses
from ticket_agent.peft.release.evidence_errors import ComparisonRefusedError
from ticket_agent.peft.release.evidence_limits import MAX_ROWS
from ticket_agent.peft.release.paired import PairedLosses, pair, require_mean
from ticket_agent.peft.release.spelled import spell

PAIRED = PairedLosses(rows=ROWS, baseline=BASELINE_LOSSES, candidate=CANDIDATE_LOSSES)
LOSSES = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=12)


def of(pairs: list[tuple[float, float]]) -> PairedLosses:
    return PairedLosses(
        rows=tuple(f"{index:064x}" for index in range(len(pairs))),
        baseline=tuple(abs(baseline) for baseline, _ in pairs),
        candidate=tuple(abs(candidate) for _, candidate in pairs),
    )


def test_a_case_computed_by_hand() -> None:
    # Differences -1, -2, -3: mean -2, deviation 1, standard error 1 / sqrt(3).
    paired = of([(4.0, 3.0), (4.0, 2.0), (4.0, 1.0)])
    assert paired.mean_difference == -2.0
    assert paired.standard_error == pytest.approx(1 / math.sqrt(3), rel=1e-15)


@given(LOSSES)
def test_the_figures_are_those_of_the_standard_library(pairs: list[tuple[float, float]]) -> None:
    paired = of(pairs)
    assert paired.mean_difference == pytest.approx(statistics.fmean(paired.differences), abs=1e-12)
    if len(pairs) == 1:
        assert paired.standard_error is None
    else:
        expected = statistics.stdev(paired.differences) / math.sqrt(len(pairs))
        assert paired.standard_error == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(LOSSES)
def test_documents_come_back_as_they_were(pairs: list[tuple[float, float]]) -> None:
    paired = of(pairs)
    assert PairedLosses.of_members(paired.members()) == paired
    report = RowLosses(artifact_sha256="ee" * 32, rows=paired.rows, losses=paired.candidate)
    assert parse_row_losses(report.encode()) == report


@given(LOSSES)
def test_the_order_of_rows_and_who_is_who_do_not_matter(pairs: list[tuple[float, float]]) -> None:
    paired, other, reverse = of(pairs), of(pairs[::-1]), of([(b, a) for a, b in pairs])
    assert other.mean_difference == paired.mean_difference
    assert reverse.mean_difference == -paired.mean_difference + 0.0
    assert other.standard_error == paired.standard_error == reverse.standard_error


def test_equal_losses_differ_by_nothing() -> None:
    paired = of([(1.5, 1.5), (2.5, 2.5)])
    assert spell([paired.mean_difference, paired.standard_error]) == b"[0.0,0.0]"


@pytest.mark.parametrize("name", ["mean_difference", "standard_error"])
@pytest.mark.parametrize("value", [0.0, None, -0.25, 1])
def test_figures_that_do_not_follow_from_the_losses_are_refused(name: str, value: object) -> None:
    with pytest.raises(DocumentError, match=f"losses: {name} must be .*, which follows from the losses"):
        PairedLosses.of_members(PAIRED.members() | {name: value})


BAD: dict[str, tuple[tuple[str, ...], tuple[object, ...]]] = {
    "none": ((), ()),
    "too many": (tuple(f"{index:064x}" for index in range(MAX_ROWS + 1)), (1.0,) * (MAX_ROWS + 1)),
    "a row twice": ((ROWS[0], ROWS[0]), (1.0, 1.0)),
    "no digest": (("row",), (1.0,)),
    "a loss too few": (ROWS[:2], (1.0,)),
    "negative": (ROWS[:1], (-0.1,)),
    "minus nothing": (ROWS[:1], (-0.0,)),
    "not a number": (ROWS[:1], (math.nan,)),
    "infinite": (ROWS[:1], (math.inf,)),
    "huge": (ROWS[:1], (MAX_LOSS * 1.01,)),
    "an integer": (ROWS[:1], (1,)),
    "true": (ROWS[:1], (True,)),
    "text": (ROWS[:1], ("1.0",)),
}


@pytest.mark.parametrize(("rows", "losses"), BAD.values(), ids=BAD)
def test_other_losses_are_refused(rows: tuple[str, ...], losses: tuple[float, ...]) -> None:
    with pytest.raises(DocumentError):
        RowLosses(artifact_sha256="ee" * 32, rows=rows, losses=losses)
    with pytest.raises(DocumentError):
        PairedLosses(rows=rows, baseline=losses, candidate=losses)


def test_only_the_same_rows_are_put_side_by_side() -> None:
    baseline, candidate = Scene().reports
    assert pair(baseline, candidate) == PAIRED
    for rows in (tuple(reversed(ROWS)), ("ee" * 32, *ROWS[1:])):
        with pytest.raises(ComparisonRefusedError, match="same rows in the same order"):
            pair(baseline, replace(candidate, rows=rows))


@pytest.mark.parametrize(("factor", "fits"), [(1.0, True), (1 + 5e-6, True), (1 + 5e-5, False), (0.9, False)])
def test_the_mean_is_the_evaluations_loss_as_closely_as_single_precision(factor: float, fits: bool) -> None:
    (_, evaluation), (_, report) = Scene().evaluations, Scene().reports
    told = replace(evaluation, metrics={"eval_loss": evaluation.metrics["eval_loss"] * factor})
    if fits:
        require_mean(told, report)
    else:
        with pytest.raises(ComparisonRefusedError, match="the rows have"):
            require_mean(told, report)


def test_a_mean_in_single_precision_is_within_the_tolerance() -> None:
    def single(value: float) -> float:
        return float(struct.unpack("f", struct.pack("f", value))[0])

    total = 0.0
    for loss in CANDIDATE_LOSSES:
        total = single(total + single(loss))
    (_, evaluation), (_, report) = Scene().evaluations, Scene().reports
    require_mean(replace(evaluation, metrics={"eval_loss": single(total / len(ROWS))}), report)
