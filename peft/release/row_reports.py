"""The reports that an evaluation leaves beside its observation: the loss of every held-out row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ticket_agent.peft.release.consistency import evaluations_of
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.evaluation import parse_row_losses
from ticket_agent.peft.release.evidence_limits import MAX_REPORT_BYTES
from ticket_agent.peft.release.phases import Phase

if TYPE_CHECKING:
    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.release.evaluation import RowLosses
    from ticket_agent.peft.release.release_record import ReleaseRecord

__all__ = ["read_reports", "read_rows"]

_REPORTS: Final = ("baseline-rows.json", "candidate-rows.json")


def read_rows(operation: Directory) -> tuple[RowLosses, RowLosses]:
    """The losses under baseline and candidate, held against nothing.

    Raises:
        AbsentError: a report is not there, or not there any more.
        DocumentError: it is no report.
        PeftError: it cannot be read.
    """
    with operation.open_dir(Phase.EVALUATE.value) as job, job.open_dir("out") as out:
        baseline, candidate = (
            parse_row_losses(out.read_file(name, max_bytes=MAX_REPORT_BYTES)) for name in _REPORTS
        )
    return baseline, candidate


def read_reports(operation: Directory, record: ReleaseRecord) -> tuple[RowLosses, RowLosses] | None:
    """The losses that the evaluation of a release names; None when that did not succeed.

    Raises:
        AbsentError: a report is not there any more.
        DocumentError: it is no report, or not the one that was observed.
        PeftError: it cannot be read.
    """
    found = evaluations_of(record)
    if found is None:
        return None
    reports = read_rows(operation)
    for name, report, evaluation in zip(_REPORTS, reports, found, strict=True):
        if report.sha256 != evaluation.native_report_sha256:
            raise DocumentError(f"{name} is not the report that the evaluation names")
    return reports
