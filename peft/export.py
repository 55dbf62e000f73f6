"""``peft.export``: copy a finished job's three files from the hive to the export root, all or none.

The files are read from the hive when the action is planned, and the plan holds their digests. So a hive that
cannot be read only makes the ticket wait, what is done after the dispatch needs this host alone, and the plan
tells exactly what must be there for the action to have happened. A job that is complete on this host already
is a success without asking the hive.

What a transport preserves is said in :mod:`ticket_agent.peft.hive_jobs`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from ticket_agent.journal.outcome import (
    Committed,
    Outcome,
    Pending,
    Plan,
    PlanRefusedError,
    PlanWaitsError,
    Rejected,
    Unknown,
    Unobserved,
)
from ticket_agent.peft.action import PASSING, export_lane, planning, root_tag
from ticket_agent.peft.errors import LockHeldError, PeftError
from ticket_agent.peft.hive_jobs import take_job
from ticket_agent.peft.job import JOB_FILES, ExportJob, job_digest, read_job
from ticket_agent.peft.limits import LOCK_WAIT_S
from ticket_agent.peft.names import EXPORT_STAGING, check_component
from ticket_agent.peft.planned import PlannedError, artifact, member, planned, staging, text
from ticket_agent.peft.publishing import Attempt, discard, require_space, staged, staging_name
from ticket_agent.peft.trees import locked_exports
from ticket_agent.protocol.args import EmptyArgs
from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.namespace import HiveError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.manifest import Artifact
    from ticket_agent.peft.settings import PeftRoots
    from ticket_agent.protocol.namespace import Namespace
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["ExportProvider"]

ACTION: Final = "peft.export"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Goal:
    """A plan as a value.

    Attributes:
        job: the job, and the name of its directory.
        staging: where it is put together.
        root: which export root; another one would prove nothing.
        files: what its files are to be, by name.
        complete: it was there already when this was planned.
    """

    job: str
    staging: str
    root: str
    files: Mapping[str, Artifact]
    complete: bool

    def says(self, clause: str) -> str:
        """One line about the operation."""
        return f"{ACTION} job={self.job} {clause}"

    def done(self, *, observed: bool) -> Committed:
        size = sum(file.bytes for file in self.files.values())
        digest = job_digest(self.files)
        clause = f"files={len(self.files)} bytes={size} digest={digest}"
        return Committed(
            self.says(f"observed=complete {clause}" if observed else clause),
            {"digest": digest, "files": {name: planned(file) for name, file in self.files.items()}},
        )

    def to_plan(self) -> Plan:
        return Plan(
            before={"complete": self.complete},
            intent={
                "action": ACTION,
                "job": self.job,
                "staging": self.staging,
                "exports": self.root,
                "files": {name: planned(file) for name, file in self.files.items()},
            },
        )

    @classmethod
    def from_plan(cls, plan: Plan) -> Self:
        """The value of :meth:`to_plan`.

        Raises:
            PeftError: anything else.
        """
        if text(plan.intent, "action") != ACTION:
            raise PlannedError(f"the plan is one of {text(plan.intent, 'action')}")
        files = member(plan.intent, "files")
        return cls(
            job=check_component(text(plan.intent, "job"), what="the planned job"),
            staging=staging(plan.intent),
            root=text(plan.intent, "exports"),
            files={name: artifact(files, name) for name in JOB_FILES},
            complete=plan.before.get("complete") is True,
        )


class ExportProvider:
    """The action on one hive and one export root."""

    def __init__(self, roots: PeftRoots, namespace: Namespace) -> None:
        self._roots: Final = roots
        self._namespace: Final = namespace
        self._taken: ExportJob | None = None
        """What the latest plan took from the hive, kept until its execution."""

    def lane(self, request: HostTicketSpec) -> str:
        """One lane per job."""
        return export_lane(request.subject_ref)

    def plan(self, request: HostTicketSpec) -> Plan:
        """Read the job, from this host if it is there, else from the hive. Reads only.

        Raises:
            PlanRefusedError: the job is not there, or not acceptable, on whichever side.
            PlanWaitsError: the export root cannot be used now.
            HiveError: the hive could not be read.
        """
        try:
            args = request.action_args()
        except ProtocolError as error:
            raise PlanRefusedError(f"{ACTION} cannot be performed: {error}") from error
        if not isinstance(args, EmptyArgs):
            raise PlanRefusedError(f"{ACTION} takes no arguments")
        return self.plan_for(request.subject_ref, operation=request.journal_key)

    def plan_for(self, job: str | None, *, operation: str) -> Plan:
        """Plan for a job; ``operation`` is the identity of the request. Errors as for :meth:`plan`."""
        with planning(ACTION):
            name = check_component(job, what="the job")
        with planning(f"{ACTION} job={name}"):
            with locked_exports(self._roots) as exports:
                complete = exports.kind(name) is not None
                if complete:
                    files = read_job(exports, name).artifacts
                else:
                    require_space(exports, sum(JOB_FILES.values()))
            if not complete:
                # Not under the lock: a hive takes its time, and execution looks again anyway.
                files = self._take(name).artifacts
        return _Goal(
            job=name,
            staging=staging_name(EXPORT_STAGING, operation),
            root=root_tag(self._roots.export),
            files=files,
            complete=complete,
        ).to_plan()

    def execute(self, plan: Plan) -> Outcome:
        """Write the planned files beside their place, sync them, and publish them with one rename."""
        try:
            goal = self._goal(plan)
        except PeftError as error:
            return Rejected(f"{ACTION} not applied: {error}")
        attempt = Attempt()
        try:
            job = None if goal.complete else self._planned_job(goal)
            with locked_exports(self._roots, wait_s=LOCK_WAIT_S) as exports:
                return _perform(exports, goal, job, attempt)
        except (PeftError, OSError, HiveError, PlanWaitsError) as error:
            if attempt.publishing:
                return self._look(goal, why=str(error))
            return Rejected(goal.says(f"not applied: {error}"))

    def observe(self, plan: Plan) -> Outcome:
        """Tell from the export root what became of the planned files; what was left half-way is removed.

        Takes the root's lock, so that whoever dispatched it is certainly not at work any more.
        """
        try:
            goal = self._goal(plan)
        except PeftError as error:
            return Unobserved(f"{ACTION} cannot be observed: {error}")
        return self._look(goal, why="nothing was published")

    def _look(self, goal: _Goal, *, why: str) -> Outcome:
        try:
            with locked_exports(self._roots) as exports:
                outcome = _judge(exports, goal, why=why)
                if not self._roots.looks_only:
                    with suppress(PeftError, OSError):  # it is no part of the outcome, and is seen later
                        discard(exports, goal.staging)
                return outcome
        except LockHeldError as error:
            return Pending(goal.says(f"waits: {error}"))
        except PASSING as error:
            return Unobserved(goal.says(f"cannot be observed: {error}"))
        except (PeftError, OSError) as error:
            return Unknown(goal.says(f"cannot be observed: {error}"))

    def _goal(self, plan: Plan) -> _Goal:
        goal = _Goal.from_plan(plan)
        if goal.root != root_tag(self._roots.export):
            raise PlannedError("the configuration named another export root when this was planned")
        return goal

    def _take(self, job: str) -> ExportJob:
        self._taken = None
        self._taken = take_job(self._namespace, job)
        return self._taken

    def _planned_job(self, goal: _Goal) -> ExportJob:
        """The planned files; read again from the hive if another plan was made meanwhile."""
        taken, self._taken = self._taken, None
        if taken is None or taken.artifacts != goal.files:
            taken = take_job(self._namespace, goal.job)
        _require_planned(taken, goal, "the hive's")
        return taken


def _perform(exports: Directory, goal: _Goal, job: ExportJob | None, attempt: Attempt) -> Outcome:
    """Publish the job unless it is there; the lock must be held."""
    if job is None or exports.kind(goal.job) is not None:
        attempt.publishing = True  # somebody did: then only looking tells
        return _judge(exports, goal, why="it was removed since it was planned")
    with staged(exports, goal.staging) as folder:
        for name, data in job.files.items():
            folder.write_file(name, data)
        attempt.publishing = True
        exports.rename(goal.staging, exports, goal.job, replace=False)
    return goal.done(observed=False)


def _judge(exports: Directory, goal: _Goal, *, why: str) -> Outcome:
    """What there is of the job; ``why`` is the reason when there is nothing. The lock must be held.

    Raises:
        PeftError: it cannot be read now.
    """
    if exports.kind(goal.job) is None:
        return Rejected(goal.says(f"not applied: {why}"))
    try:
        _require_planned(read_job(exports, goal.job), goal, "there is another one, whose")
    except PASSING:
        raise
    except PeftError as error:
        return Rejected(goal.says(f"not applied: {error}"))
    # Whoever renamed it may have died before that was durable.
    exports.sync()
    return goal.done(observed=True)


def _require_planned(job: ExportJob, goal: _Goal, whose: str) -> None:
    for name, found in job.artifacts.items():
        if found != goal.files[name]:
            raise PlannedError(f"{whose} {name} is not the one that was planned")
