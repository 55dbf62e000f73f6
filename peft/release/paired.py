"""Losses of candidate and incumbent, row by row: how large the difference is, and how sure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.document_error import reading
from ticket_agent.peft.release.evaluation import MAX_LOSS, check_rows
from ticket_agent.peft.release.evidence_errors import ComparisonRefusedError
from ticket_agent.peft.release.evidence_limits import MAX_ROWS
from ticket_agent.peft.release.profile import EVAL_LOSS
from ticket_agent.peft.release.rules import array, exact, refuse
from ticket_agent.peft.release.spelled import finite_floats, spell

if TYPE_CHECKING:
    from ticket_agent.peft.release.evaluation import Evaluation, RowLosses

__all__ = ["PairedLosses", "pair", "require_mean"]

_TOLERANCE: Final = 1e-5
"""Relative; an evaluator that adds up 256 losses in single precision is off by less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedLosses:
    """The same rows under both models, in the order of evaluation.

    Attributes:
        rows: SHA-256 of each row's text; 1..=256 different ones.
        baseline: the incumbent's losses, in nats.
        candidate: the candidate's losses, in nats.

    Raises:
        DocumentError: a value that no such report has.
    """

    rows: tuple[str, ...]
    baseline: tuple[float, ...]
    candidate: tuple[float, ...]

    def __post_init__(self) -> None:
        check_rows(self.rows)
        for name in ("baseline", "candidate"):
            losses = list(getattr(self, name))
            finite_floats(losses, name, count=len(self.rows), low=0.0, high=MAX_LOSS)

    @property
    def differences(self) -> tuple[float, ...]:
        """Candidate less baseline; below 0 the candidate is better."""
        return tuple(ours - theirs for ours, theirs in zip(self.candidate, self.baseline, strict=True))

    @property
    def mean_difference(self) -> float:
        """Mean of the differences."""
        # Adding 0.0 turns -0.0, which has no JSON form of ours, into 0.0.
        return math.fsum(self.differences) / len(self.rows) + 0.0

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean difference, of the rows as a sample; None for a single row.

        A difference of less than about two of it may be chance: other rows could show the opposite.
        """
        count = len(self.rows)
        if count == 1:
            return None
        mean = self.mean_difference
        squares = math.fsum((difference - mean) ** 2 for difference in self.differences)
        return math.sqrt(squares / (count - 1) / count)

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON, with what follows from it."""
        return {
            "rows": list(self.rows),
            "baseline": list(self.baseline),
            "candidate": list(self.candidate),
            "mean_difference": self.mean_difference,
            "standard_error": self.standard_error,
        }

    @classmethod
    def of_members(cls, value: object) -> PairedLosses:
        """The value of :meth:`members`.

        Raises:
            DocumentError: anything else, or figures that do not follow from the losses.
        """
        with reading("losses"):
            document = exact(value, ("rows", "baseline", "candidate", "mean_difference", "standard_error"))
            paired = cls(
                **{
                    name: tuple(array(document[name], name, 1, MAX_ROWS))
                    for name in ("rows", "baseline", "candidate")
                }
            )
            for name in ("mean_difference", "standard_error"):
                if spell(document[name]) != spell(getattr(paired, name)):
                    refuse(name, f"{getattr(paired, name)}, which follows from the losses")
        return paired


def pair(baseline: RowLosses, candidate: RowLosses) -> PairedLosses:
    """Put the losses of the same rows side by side.

    Raises:
        ComparisonRefusedError: they are not of the same rows in the same order.
    """
    if baseline.rows != candidate.rows:
        raise ComparisonRefusedError(
            "candidate and baseline were not evaluated on the same rows in the same order", member="rows"
        )
    return PairedLosses(rows=baseline.rows, baseline=baseline.losses, candidate=candidate.losses)


def require_mean(evaluation: Evaluation, report: RowLosses) -> None:
    """Refuse an evaluation that its own report contradicts.

    Raises:
        ComparisonRefusedError: the report is of another artifact or number of rows, is not the one that the
            evaluation names, or its mean is not the evaluation's loss.
    """
    if report.sha256 != evaluation.native_report_sha256:
        _refuse("native_report_sha256", "the losses of the rows are not the report that the evaluation names")
    if report.artifact_sha256 != evaluation.artifact_sha256:
        _refuse("artifact_sha256", "the losses of the rows are of another artifact than the evaluation")
    if len(report.rows) != evaluation.samples:
        _refuse(
            "samples", f"the evaluation tells {evaluation.samples} rows, and its report {len(report.rows)}"
        )
    mean = math.fsum(report.losses) / len(report.losses)
    told = evaluation.metrics.get(EVAL_LOSS)
    if told is not None and not math.isclose(told, mean, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
        _refuse(EVAL_LOSS, f"{EVAL_LOSS} is told as {told}, and the rows have {mean}")


def _refuse(member: str, why: str) -> None:
    raise ComparisonRefusedError(why, member=member)
