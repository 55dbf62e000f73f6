"""The phase ``canary``: the candidate's server has to say what the evaluation of the candidate said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.canary import Reference
from ticket_agent.peft.release.canary_run import BASE, INCUMBENT, CanaryRun
from ticket_agent.peft.release.control_errors import ControlJobError
from ticket_agent.peft.release.control_load import expected_tensors
from ticket_agent.peft.release.observing import PhaseFailedError

if TYPE_CHECKING:
    from ticket_agent.peft.release.canary import CanaryReport, Expected
    from ticket_agent.peft.release.control_work import ControlJob
    from ticket_agent.peft.release.server_room import KnownServer

__all__ = ["bounded", "canary", "candidate_canary", "incumbent_canary", "require_passed"]

_FINDINGS: Final = 4
"""How many an observation tells; the log has all of them."""


def canary(job: ControlJob) -> dict[str, Any]:
    """Ask the candidate's server its canary.

    Raises:
        PhaseFailedError: something was found.
        PeftError: the phase cannot be done.
    """
    job.require_authority("the candidate was asked")
    report = candidate_canary(job, job.candidate())
    require_passed(report, {})
    return bounded(report)


def candidate_canary(job: ControlJob, server: KnownServer) -> CanaryReport:
    """The canary of the candidate, against what it answered when it was evaluated.

    Raises:
        ControlJobError: nothing was evaluated.
    """
    behaviour = job.behaviour
    if behaviour is None:
        raise ControlJobError(f"nothing was evaluated; {job.facts.phase} needs what the candidate said")
    kind = BASE if job.request.baseline.adapter_sha256 is None else INCUMBENT
    texts = tuple(answer.text for answer in behaviour.baseline)
    return _run(
        job,
        server,
        expected=behaviour.candidate,
        references=(Reference(kind=kind, texts=texts),),
        tensors=expected_tensors(job),
    )


def incumbent_canary(job: ControlJob, server: KnownServer) -> CanaryReport | None:
    """The canary of what the release began with; None where it was not evaluated."""
    behaviour = job.behaviour
    if behaviour is None:
        return None
    return _run(job, server, expected=behaviour.baseline, references=(), tensors=None)


def _run(
    job: ControlJob,
    server: KnownServer,
    *,
    expected: tuple[Expected, ...],
    references: tuple[Reference, ...],
    tensors: int | None,
) -> CanaryReport:
    return CanaryRun(
        client=server.client(),
        backend=server.backend,
        instance=server.instance,
        canary=job.profile.canary,
        expected=expected,
        references=references,
        identity=server.identity,
        tensors=tensors,
    ).run()


def bounded(report: CanaryReport) -> dict[str, Any]:
    """The report's members, short enough for an observation."""
    members = report.members()
    return members | {"findings": members["findings"][:_FINDINGS]}


def require_passed(report: CanaryReport, detail: dict[str, Any]) -> None:
    """Refuse what a canary found something in.

    Raises:
        PhaseFailedError: with the report's members and ``detail``.
    """
    if not report.passed:
        first = report.findings[0]
        raise PhaseFailedError(
            f"{report.name}: {first.text}", rule=first.rule, detail=bounded(report) | detail
        )
