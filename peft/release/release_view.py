"""One release, and what is deployed, as its files tell it. Values only; ``release_reader`` reads them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.phases import TERMINAL, Phase, ReleaseState
from ticket_agent.peft.release.told import failure_of

if TYPE_CHECKING:
    from ticket_agent.peft.release.deployment import DeploymentState
    from ticket_agent.peft.release.layout import Begun
    from ticket_agent.peft.release.markers import Blocker, Owner, RuntimeSelection
    from ticket_agent.peft.release.observation import PhaseObservation
    from ticket_agent.peft.release.profile import Profile
    from ticket_agent.peft.release.release_record import ReleaseRecord
    from ticket_agent.peft.release.request import ReleaseRequest
    from ticket_agent.peft.release.run_files import ExitRecord
    from ticket_agent.peft.release.serving_pointer import ServingPointer
    from ticket_agent.peft.release.training_progress import TrainingLosses

__all__ = [
    "AttemptView",
    "DeploymentView",
    "PhaseView",
    "ReleaseView",
    "Stage",
    "Standing",
]

_SERVED: Final = frozenset({Phase.LOAD, Phase.CANARY, Phase.PROMOTE, Phase.ROLLBACK})
"""From here on a phase that is lost is answered with a rollback."""


class Standing(StrEnum):
    """Where one phase stands."""

    NOT_STARTED = "not started"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    """Its process is gone, and it left no observation: nobody knows what it achieved."""
    UNKNOWN = "unknown"
    """Its files cannot be read."""


class Stage(StrEnum):
    """Where the whole release stands."""

    PENDING = "pending"
    """It has not begun."""
    RUNNING = "running"
    AMBIGUOUS = "ambiguous"
    """Nobody knows how one of its phases ended, and no rollback follows by itself."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseView:
    """One phase.

    Attributes:
        phase: which.
        standing: where it stands.
        started_unix_ms: when its process was started; None where that is not known.
        ended_unix_ms: when it ended, by its observation, or else by its supervisor.
        observation: what it observed, or None.
        exit: how its process ended, or None.
        problem: why its files cannot be read, or None.
    """

    phase: Phase
    standing: Standing
    started_unix_ms: int | None = None
    ended_unix_ms: int | None = None
    observation: PhaseObservation | None = None
    exit: ExitRecord | None = None
    problem: str | None = None

    @property
    def rule(self) -> str | None:
        """The rule that a failed phase has named."""
        return None if self.observation is None else failure_of(self.observation)[0]

    @property
    def reason(self) -> str | None:
        """Why it did not succeed, in one line; None when it did, or when it has not ended."""
        if self.problem is not None:
            return self.problem
        if self.standing is Standing.FAILED and self.observation is not None:
            return failure_of(self.observation)[1]
        if self.standing is Standing.LOST:
            return _how_it_ended(self.exit)
        return None

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        return {
            "phase": self.phase.value,
            "standing": self.standing.value,
            "started_unix_ms": self.started_unix_ms,
            "ended_unix_ms": self.ended_unix_ms,
            "rule": self.rule if self.standing is Standing.FAILED else None,
            "reason": self.reason,
        }


def _how_it_ended(record: ExitRecord | None) -> str:
    if record is None:
        return "its process and its supervisor are gone"
    how = record.reason.value if record.code is None else f"{record.reason.value} with code {record.code}"
    if record.signal is not None:
        how = f"{record.reason.value} by signal {record.signal}"
    return f"its process is gone ({how}) without an observation"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """An attempt to recover a release.

    Attributes:
        ticket_id: the ticket that asked for it.
        begun: what was settled when it began; None where that cannot be read.
        rollback: its one phase.
        end: how it ended, or None.
    """

    ticket_id: str
    begun: Begun | None
    rollback: PhaseView
    end: ReleaseRecord | None

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        return {
            "ticket_id": self.ticket_id,
            "began_unix_ms": None if self.begun is None else self.begun.began_unix_ms,
            "rollback": self.rollback.members(),
            "state": None if self.end is None else self.end.state.value,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentView:
    """What is deployed in a root, and who works in it. None: there is none, or a problem says why not.

    Attributes:
        accepted: the generation that is deployed.
        runtime: what a server loads.
        pointer: who answers now.
        owner: the release that is not finished.
        blocker: why no release may start.
        problems: what cannot be read, one line each.
    """

    accepted: DeploymentState | None
    runtime: RuntimeSelection | None
    pointer: ServingPointer | None
    owner: Owner | None
    blocker: Blocker | None
    problems: tuple[str, ...] = ()

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        pointer = self.pointer
        return {
            "accepted": None if self.accepted is None else self.accepted.members(),
            "serving": None
            if pointer is None
            else {"name": pointer.name, "port": pointer.port, "generation": pointer.generation},
            "owner": None if self.owner is None else self.owner.operation_id,
            "blocked_by": None if self.blocker is None else self.blocker.operation_id,
            "blocked_because": None if self.blocker is None else self.blocker.reason,
            "problems": list(self.problems),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseView:
    """One release. None: there is none, or not yet, or a problem says why not.

    Attributes:
        operation_id: which.
        begun: what was settled when it began.
        request: what is asked for.
        profile: under which profile.
        phases: all that it consists of, in their order; the rollback only where there is one.
        own_end: how it ended.
        attempts: to recover it, in the order in which they began.
        losses: of its training.
        log_phase: the phase that the lines of ``log`` are of.
        log: the last lines of the newest phase's output.
        owns_root: the root belongs to it.
        blocks_root: its rollback failed, and no release may start.
        bundle: its signed bundle is there.
        problems: what cannot be read, one line each.
    """

    operation_id: str
    begun: Begun | None
    request: ReleaseRequest | None
    profile: Profile | None
    phases: tuple[PhaseView, ...]
    own_end: ReleaseRecord | None
    attempts: tuple[AttemptView, ...]
    losses: TrainingLosses | None
    log_phase: Phase | None
    log: tuple[str, ...]
    owns_root: bool
    blocks_root: bool
    bundle: bool
    problems: tuple[str, ...] = ()

    @property
    def end(self) -> ReleaseRecord | None:
        """How it ended in the end: a recovery counts, and the last one most."""
        ends = [attempt.end for attempt in self.attempts if attempt.end is not None]
        return ends[-1] if ends else self.own_end

    @property
    def state(self) -> ReleaseState | None:
        """The state of that end; None while there is none."""
        end = self.end
        return end.state if end is not None and end.state in TERMINAL else None

    @property
    def stage(self) -> Stage:
        """Where it stands."""
        if self.state is not None:
            concluding = self.owns_root and self.state is not ReleaseState.ROLLBACK_FAILED
            recovering = bool(self.attempts) and self.attempts[-1].end is None
            return Stage.RUNNING if concluding or recovering else Stage.ENDED
        if self.begun is None:
            return Stage.PENDING
        if self.attempts:
            return Stage.RUNNING
        lost = [view.phase for view in self.phases if view.standing is Standing.LOST]
        told = self.own_end is not None and self.own_end.state is ReleaseState.AMBIGUOUS
        return Stage.AMBIGUOUS if told or any(phase not in _SERVED for phase in lost) else Stage.RUNNING

    @property
    def current(self) -> PhaseView | None:
        """The phase that was started last."""
        started = [view for view in self.phases if view.standing is not Standing.NOT_STARTED]
        return started[-1] if started else None

    @property
    def stopped(self) -> PhaseView | None:
        """The first phase that did not succeed and will not."""
        bad = (Standing.FAILED, Standing.LOST, Standing.UNKNOWN)
        return next((view for view in self.phases if view.standing in bad), None)

    def phase(self, phase: Phase) -> PhaseView | None:
        """One phase; None when it does not belong to this release."""
        return next((view for view in self.phases if view.phase is phase), None)

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        losses = self.losses
        return {
            "operation_id": self.operation_id,
            "model_id": None if self.request is None else self.request.model_id,
            "entry": None if self.request is None else self.request.entry.value,
            "request_sha256": None if self.begun is None else self.begun.request_sha256,
            "stage": self.stage.value,
            "state": None if self.state is None else self.state.value,
            "blocker": None if self.end is None else self.end.blocker,
            "began_unix_ms": None if self.begun is None else self.begun.began_unix_ms,
            "expires_unix_ms": None if self.begun is None else self.begun.expires_unix_ms,
            "phases": [view.members() for view in self.phases],
            "training": None
            if losses is None
            else {
                "steps": list(losses.steps),
                "losses": list(losses.losses),
                "max_steps": losses.max_steps,
                "complete": losses.complete,
            },
            "attempts": [attempt.members() for attempt in self.attempts],
            "bundle": self.bundle,
            "problems": list(self.problems),
        }
