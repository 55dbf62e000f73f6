"""Reads a release from its files, while it runs or later, by any process: no lock, no journal, no change."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypeVar

from ticket_agent.peft.errors import AbsentError, PeftError
from ticket_agent.peft.opened import Kind
from ticket_agent.peft.release.cas import ObjectStore
from ticket_agent.peft.release.control_files import ControlFiles
from ticket_agent.peft.release.document_error import DocumentError, reading
from ticket_agent.peft.release.evidence_limits import MAX_EVALUATE_BYTES, MAX_EVIDENCE_BYTES
from ticket_agent.peft.release.guard import Guard
from ticket_agent.peft.release.layout import (
    BEGUN_FILE,
    BUNDLE_FILE,
    END_FILE,
    MAX_BEGUN_BYTES,
    RECOVERY_PREFIX,
    Begun,
    OperationFiles,
)
from ticket_agent.peft.release.observation import parse_observation
from ticket_agent.peft.release.paired import pair
from ticket_agent.peft.release.phases import Phase, forward_phases
from ticket_agent.peft.release.profile import parse_profile
from ticket_agent.peft.release.release_record import ReleaseRecord
from ticket_agent.peft.release.release_view import (
    AttemptView,
    DeploymentView,
    PhaseView,
    ReleaseView,
    Standing,
)
from ticket_agent.peft.release.request import MAX_REQUEST_BYTES, ReleaseRequest, parse_request
from ticket_agent.peft.release.row_reports import read_rows
from ticket_agent.peft.release.rules import check_operation_id, is_operation_id
from ticket_agent.peft.release.run_files import EndReason
from ticket_agent.peft.release.running_phase import Finished, Lost, NotStarted, Running, RunningPhase
from ticket_agent.peft.release.serving_pointer import PointerFile
from ticket_agent.peft.release.training_progress import read_losses
from ticket_agent.peft.roots import open_to_read
from ticket_agent.protocol.json_strict import parse_object

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.release.observation import PhaseObservation
    from ticket_agent.peft.release.paired import PairedLosses
    from ticket_agent.peft.release.profile import Profile
    from ticket_agent.peft.release.running_phase import PhaseState
    from ticket_agent.peft.release.training_progress import TrainingLosses

__all__ = ["LOG_LINES", "ReleaseReader"]

LOG_LINES: Final = 12
"""Lines of output that a view has."""

_T = TypeVar("_T")


class ReleaseReader:
    """An open root to look into; use it in a ``with`` statement.

    Attributes:
        root: where it is.
    """

    def __init__(self, root: Path) -> None:
        """Open it.

        Raises:
            RootRefusedError: there is no such directory, or the path leads through a link.
            PeftIoError: the system failed, or reading is not permitted.
        """
        self.root: Final = root
        with ExitStack() as opened:
            self._root = opened.enter_context(open_to_read(root, label="release root"))
            self._operations = opened.enter_context(self._root.open_dir("operations"))
            objects = opened.enter_context(self._root.open_dir("objects"))
            self._objects = ObjectStore(objects, Guard())
            self._closing = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def deployment(self) -> DeploymentView:
        """What is deployed now. What cannot be read is told as a problem."""
        control, problems = ControlFiles(self._root, Guard()), _Problems()
        return DeploymentView(
            accepted=problems.of(control.accepted),
            runtime=problems.of(control.runtime),
            pointer=problems.of(PointerFile(self._root, Guard()).read),
            owner=problems.of(control.owner),
            blocker=problems.of(control.blocker),
            problems=tuple(problems.found),
        )

    def operations(self) -> list[str]:
        """Ids of all operations that have a directory, sorted; whatever else is there is passed over."""
        names = self._operations.names()
        return [name for name in names if is_operation_id(name) and self._operations.kind(name) is Kind.DIR]

    def release(self, operation_id: str, *, log_lines: int = LOG_LINES) -> ReleaseView:
        """One release; one that has no directory has not begun.

        Raises:
            DocumentError: no release can have this id.
        """
        check_operation_id(operation_id)
        with ExitStack() as opened:
            try:
                directory = opened.enter_context(self._operations.open_dir(operation_id))
            except AbsentError:
                directory = None
            return self._view(operation_id, directory, log_lines)

    def request(self, sha256: str) -> ReleaseRequest:
        """A request of the object store.

        Raises:
            PeftError: it is not there, or is none.
        """
        return parse_request(self._objects.load(sha256, max_bytes=MAX_REQUEST_BYTES))

    def losses(self, operation_id: str) -> PairedLosses | None:
        """The losses of the held-out rows under both models; None where there are none to be read."""
        try:
            with self._operations.open_dir(check_operation_id(operation_id)) as directory:
                return pair(*read_rows(directory))
        except PeftError:
            return None

    def _view(self, operation_id: str, directory: Directory | None, log_lines: int) -> ReleaseView:
        problems, deployment = _Problems(), self.deployment()
        files = OperationFiles(root=self.root, operation_id=operation_id)
        # Before the phases: what they leave meanwhile is then newer than an end that is not there yet.
        end = None if directory is None else problems.of(lambda: _end(directory))
        begun = None if directory is None else problems.of(lambda: _begun(directory))
        request: ReleaseRequest | None = None
        profile: Profile | None = None
        if begun is not None:
            sha256 = begun.request_sha256
            request = problems.of(lambda: self.request(sha256))
        if request is not None:
            wanted = request.profile_sha256
            profile = problems.of(lambda: parse_profile(self._objects.load(wanted)))
        phases = _phases(files, directory, request)
        newest = [view for view in phases if view.standing is not Standing.NOT_STARTED]
        log_phase = newest[-1].phase if newest else None
        return ReleaseView(
            operation_id=operation_id,
            begun=begun,
            request=request,
            profile=profile,
            phases=phases,
            own_end=end,
            attempts=_attempts(self.root, operation_id, directory, problems),
            losses=_losses(directory),
            log_phase=log_phase,
            log=() if log_phase is None else _log(files, log_phase, log_lines),
            owns_root=deployment.owner is not None and deployment.owner.operation_id == operation_id,
            blocks_root=deployment.blocker is not None and deployment.blocker.operation_id == operation_id,
            bundle=directory is not None and directory.kind(BUNDLE_FILE) is Kind.FILE,
            problems=tuple(problems.found),
        )


class _Problems:
    """What could not be read, while the rest was."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def of(self, read: Callable[[], _T | None]) -> _T | None:
        """What ``read`` returns; None where there is nothing, or it cannot be read."""
        try:
            return read()
        except AbsentError:
            return None
        except PeftError as error:
            self.found.append(str(error))
            return None


def _begun(directory: Directory) -> Begun:
    return Begun.parse(directory.read_file(BEGUN_FILE, max_bytes=MAX_BEGUN_BYTES))


def _end(directory: Directory) -> ReleaseRecord:
    data = directory.read_file(END_FILE, max_bytes=MAX_EVIDENCE_BYTES)
    with reading(directory.path(END_FILE)):
        return ReleaseRecord.of_members(parse_object(data, what=END_FILE, max_bytes=MAX_EVIDENCE_BYTES))


def _phases(
    files: OperationFiles, directory: Directory | None, request: ReleaseRequest | None
) -> tuple[PhaseView, ...]:
    wanted = tuple(Phase) if request is None else (*forward_phases(request.entry), Phase.ROLLBACK)
    views = [_phase(files, phase, directory) for phase in wanted]
    return tuple(
        view
        for view in views
        if view.standing is not Standing.NOT_STARTED
        or (request is not None and view.phase is not Phase.ROLLBACK)
    )


def _phase(files: OperationFiles, phase: Phase, directory: Directory | None) -> PhaseView:
    if directory is None:
        return PhaseView(phase=phase, standing=Standing.NOT_STARTED)
    process = RunningPhase(files.run(phase), launch_id=files.launch_id(phase.value))
    try:
        # Before the observation: a process that ends in between has left it by then.
        state = process.poll()
        observation = _observation(directory, files.operation_id, phase)
    except PeftError as error:
        return PhaseView(phase=phase, standing=Standing.UNKNOWN, problem=str(error))
    return _told(phase, state, observation)


def _told(phase: Phase, state: PhaseState, observation: PhaseObservation | None) -> PhaseView:
    started: int | None = None
    ended: int | None = None
    match state:
        case Running(record=record):
            started = None if record is None else record.started_unix_ms
        case Lost(record=record):
            started = record.started_unix_ms
        case Finished(record=record):
            started, ended = record.started_unix_ms, record.ended_unix_ms
    problem = None
    if observation is not None:
        ended = observation.completed_unix_ms
        standing = Standing.SUCCEEDED if observation.succeeded else Standing.FAILED
    elif isinstance(state, Running):
        standing = Standing.RUNNING
    elif isinstance(state, NotStarted):
        standing = Standing.NOT_STARTED
    elif isinstance(state, Finished) and state.record.reason is EndReason.NOT_STARTED:
        standing, problem = Standing.FAILED, f"it could not be started: {state.record.error}"
    else:
        standing = Standing.LOST
    return PhaseView(
        phase=phase,
        standing=standing,
        started_unix_ms=started,
        ended_unix_ms=ended,
        observation=observation,
        exit=state.record if isinstance(state, Finished) else None,
        problem=problem,
    )


def _observation(directory: Directory, operation_id: str, phase: Phase) -> PhaseObservation | None:
    try:
        with directory.open_dir(phase.value) as job, job.open_dir("out") as out:
            data = out.read_file(f"{phase}.json", max_bytes=MAX_EVALUATE_BYTES)
    except AbsentError:
        return None
    found = parse_observation(data)
    if (found.operation_id, found.phase) != (operation_id, phase):
        raise DocumentError(f"the observation of {phase} is one of {found.operation_id}, {found.phase}")
    return found


def _attempts(
    root: Path, operation_id: str, directory: Directory | None, problems: _Problems
) -> tuple[AttemptView, ...]:
    if directory is None:
        return ()
    found = []
    for name in directory.names():
        ticket_id = name.removeprefix(RECOVERY_PREFIX)
        if ticket_id == name or directory.kind(name) is not Kind.DIR:
            continue
        view = problems.of(partial(_attempt, root, operation_id, directory, ticket_id))
        if view is not None:
            found.append(view)
    return tuple(sorted(found, key=lambda view: 0 if view.begun is None else view.begun.began_unix_ms))


def _attempt(root: Path, operation_id: str, directory: Directory, ticket_id: str) -> AttemptView:
    files = OperationFiles(root=root, operation_id=operation_id, recovery=ticket_id)
    problems = _Problems()
    with directory.open_dir(f"{RECOVERY_PREFIX}{ticket_id}") as own:
        end = problems.of(lambda: _end(own))
        return AttemptView(
            ticket_id=ticket_id,
            begun=problems.of(lambda: _begun(own)),
            rollback=_phase(files, Phase.ROLLBACK, own),
            end=end,
        )


def _losses(directory: Directory | None) -> TrainingLosses | None:
    if directory is None:
        return None
    try:
        with directory.open_dir(Phase.TRAIN.value) as job, job.open_dir("out") as out:
            return read_losses(out)
    except PeftError:
        return None


def _log(files: OperationFiles, phase: Phase, lines: int) -> tuple[str, ...]:
    try:
        found = RunningPhase(files.run(phase), launch_id=files.launch_id(phase.value)).log().lines()
    except PeftError:
        return ()
    return tuple(found[-lines:]) if lines else ()
