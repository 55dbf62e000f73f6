"""What comes next in a release: pure, and the same for the same situation, whoever asks after whatever crash.

A phase is dispatched at most once. From then on only its own observation tells how it ended; where its
process is gone and there is none, nobody knows. Before the candidate's server is started that leaves the
release ambiguous, since nothing that is served was touched; afterwards everything is put back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.release.phases import Phase, ReleaseState, forward_phases

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.peft.release.request import Entry

__all__ = [
    "RULES",
    "AcceptedIs",
    "Act",
    "Allowed",
    "Compared",
    "Move",
    "Situation",
    "Standing",
    "decide",
]


class Standing(StrEnum):
    """How a phase that was dispatched stands."""

    OPEN = "open"
    """Its process runs, or nobody has looked yet whether it does."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """It observed that it did not do what it is for."""
    NOT_STARTED = "not-started"
    """Not one instruction of it ran, and none will."""
    LOST = "lost"
    """Its process is gone and left no observation."""


class Allowed(StrEnum):
    """What is known of the ticket's authority."""

    HELD = "held"
    UNPROVEN = "unproven"
    """It could not be proved just now; that passes, one way or the other."""
    LOST = "lost"
    """It has expired, or its Worker is gone: it does not come back."""


class AcceptedIs(StrEnum):
    """What is deployed, compared with what the release began with."""

    BASELINE = "baseline"
    SUCCESSOR = "successor"
    """Exactly what this release promotes."""
    OTHER = "other"
    UNREADABLE = "unreadable"
    """It could not be read just now; nothing follows from that."""


class Compared(StrEnum):
    """The decision about the candidate."""

    NOT_YET = "not-yet"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    OUTDATED = "outdated"
    """It was accepted, and that does not hold any more right before the promotion."""


class Act(StrEnum):
    """What to do."""

    BEGIN = "begin"
    """Make the phase's intent durable, then start it."""
    AWAIT = "await"
    """Look whether the phase has ended."""
    STOP = "stop"
    """End the phase's process: it is not allowed any more."""
    WAIT = "wait"
    """Nothing can be decided now; try again."""
    COMPARE = "compare"
    """Decide about the candidate and make the decision durable."""
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One phase.

    Attributes:
        from_baseline: it begins only while the baseline is deployed.
        undone: once it was dispatched, a release that does not succeed has to be rolled back.
    """

    from_baseline: bool
    undone: bool


def _rules() -> Mapping[Phase, Rule]:
    deployed = {Phase.EVALUATE, Phase.LOAD, Phase.PROMOTE}
    touching = {Phase.LOAD, Phase.CANARY, Phase.PROMOTE}
    return MappingProxyType(
        {phase: Rule(from_baseline=phase in deployed, undone=phase in touching) for phase in Phase}
    )


RULES: Final = _rules()
"""Every phase there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Everything that a decision depends on.

    Attributes:
        entry: where the candidate comes from; None for an attempt to recover a release, which has one phase.
        phases: what was dispatched, in that order, each with how it stands.
        allowed: the ticket's authority.
        accepted: what is deployed.
        compared: the decision about the candidate.
        promoted: the release that is recovered may have promoted its candidate.
    """

    entry: Entry | None
    phases: tuple[tuple[Phase, Standing], ...]
    allowed: Allowed
    accepted: AcceptedIs
    compared: Compared = Compared.NOT_YET
    promoted: bool = False

    @property
    def recovers(self) -> bool:
        """It is an attempt to recover a release."""
        return self.entry is None

    @property
    def must_undo(self) -> bool:
        """What is served was, or may have been, touched."""
        return self.recovers or any(RULES[phase].undone for phase, _ in self.phases)

    @property
    def may_have_promoted(self) -> bool:
        """The successor may be deployed by this very release."""
        return self.promoted or any(phase is Phase.PROMOTE for phase, _ in self.phases)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What to do next.

    Attributes:
        act: what.
        phase: with which phase.
        state: how the release ends.
        why: in words; the blocker of a release that ends without success.
    """

    act: Act
    phase: Phase | None = None
    state: ReleaseState | None = None
    why: str = ""


def decide(situation: Situation) -> Move:
    """Say what comes next."""
    if not situation.phases:
        return _begin(situation, Phase.ROLLBACK if situation.recovers else Phase.VALIDATE)
    phase, standing = situation.phases[-1]
    if standing is Standing.OPEN:
        act = Act.STOP if situation.allowed is Allowed.LOST else Act.AWAIT
        return Move(act=act, phase=phase)
    if standing is not Standing.SUCCEEDED:
        return _give_up(situation, _WHY[standing].format(phase=phase))
    if phase is Phase.ROLLBACK:
        return _restored(situation)
    if phase is Phase.PROMOTE:
        return _promoted(situation)
    if phase is Phase.EVALUATE and situation.compared is Compared.NOT_YET:
        return Move(act=Act.COMPARE)
    if situation.compared in _AGAINST and phase in {Phase.EVALUATE, Phase.CANARY}:
        return _give_up(situation, _AGAINST[situation.compared])
    return _begin(situation, _after(situation, phase))


_AGAINST: Final[Mapping[Compared, str]] = MappingProxyType(
    {
        Compared.REFUSED: "the candidate is refused",
        Compared.OUTDATED: "the decision for the candidate does not hold any more",
    }
)

_WHY: Final[Mapping[Standing, str]] = MappingProxyType(
    {
        Standing.FAILED: "{phase} failed",
        Standing.NOT_STARTED: "{phase} was not started",
        Standing.LOST: "{phase} ended without an observation",
    }
)


def _after(situation: Situation, phase: Phase) -> Phase:
    assert situation.entry is not None  # a recovery has one phase
    order = forward_phases(situation.entry)
    return order[order.index(phase) + 1]


def _begin(situation: Situation, phase: Phase) -> Move:
    match situation.allowed:
        case Allowed.UNPROVEN:
            return Move(act=Act.WAIT, why=f"{phase} waits for proof that the release is still allowed")
        case Allowed.LOST:
            return _give_up(situation, f"no longer allowed before {phase}")
        case Allowed.HELD:
            pass
    if phase is Phase.ROLLBACK:
        return _undo(situation, "recovery")
    if RULES[phase].from_baseline:
        if situation.accepted is AcceptedIs.UNREADABLE:
            return Move(act=Act.WAIT, why=f"{phase} waits: what is deployed cannot be read")
        if situation.accepted is not AcceptedIs.BASELINE:
            return _give_up(situation, f"baseline-generation: something else is deployed before {phase}")
    return Move(act=Act.BEGIN, phase=phase)


def _give_up(situation: Situation, why: str) -> Move:
    """Something went wrong; say what follows."""
    if any(phase is Phase.ROLLBACK for phase, _ in situation.phases):
        return Move(act=Act.END, state=ReleaseState.ROLLBACK_FAILED, why=why)
    if situation.must_undo:
        return _undo(situation, why)
    lost = any(standing is Standing.LOST for _, standing in situation.phases)
    return Move(act=Act.END, state=ReleaseState.AMBIGUOUS if lost else ReleaseState.FAILED, why=why)


def _undo(situation: Situation, why: str) -> Move:
    if situation.allowed is Allowed.UNPROVEN:
        return Move(act=Act.WAIT, why=f"rollback waits for proof that it is allowed: {why}")
    if situation.accepted is AcceptedIs.UNREADABLE:
        return Move(act=Act.WAIT, why=f"rollback waits: what is deployed cannot be read: {why}")
    own = situation.accepted is AcceptedIs.SUCCESSOR and situation.may_have_promoted
    if situation.allowed is Allowed.LOST:
        return _stuck(f"{why}; no longer allowed to roll back")
    if not (own or situation.accepted is AcceptedIs.BASELINE):
        return _stuck(f"{why}; somebody else's deployment is not rolled back")
    return Move(act=Act.BEGIN, phase=Phase.ROLLBACK, why=why)


def _stuck(why: str) -> Move:
    return Move(act=Act.END, state=ReleaseState.ROLLBACK_FAILED, why=why)


def _promoted(situation: Situation) -> Move:
    if situation.accepted is AcceptedIs.UNREADABLE:
        return Move(act=Act.WAIT, why="what is deployed cannot be read after the promotion")
    if situation.accepted is AcceptedIs.SUCCESSOR:
        return Move(act=Act.END, state=ReleaseState.SUCCEEDED)
    return _give_up(situation, "promotion-postcondition: the candidate is not what is deployed")


def _restored(situation: Situation) -> Move:
    if situation.accepted is AcceptedIs.UNREADABLE:
        return Move(act=Act.WAIT, why="what is deployed cannot be read after the rollback")
    if situation.accepted is AcceptedIs.BASELINE:
        return Move(act=Act.END, state=ReleaseState.RECOVERED_FAILURE)
    return _stuck("the rollback did not bring the baseline back")
