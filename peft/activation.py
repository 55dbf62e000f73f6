"""``peft.activate`` and ``peft.rollback``: which model of the registry is active.

Both are one commit of the two control files, planned in full: what they say, what they are to say, and the
digest of the manifest of the model that becomes active. The plan only reads that manifest. The model's files
are hashed when the action is due, under the lock and right before the commit, because only that says what
becomes active; hashed at the time of the plan as well, they would be read twice and be no safer.

A process that dies in the middle leaves files from which the plan tells how far it came, and the observer
finishes the commit, or takes it back if the model was damaged meanwhile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from ticket_agent.journal.outcome import (
    Committed,
    Outcome,
    Pending,
    Plan,
    PlanRefusedError,
    Rejected,
    Unknown,
    Unobserved,
)
from ticket_agent.peft.action import PASSING, REGISTRY_LANE, planning, root_tag
from ticket_agent.peft.control import (
    Control,
    Progress,
    commit,
    decide,
    read_control,
    remove_unfinished,
    roll_forward,
    set_back,
)
from ticket_agent.peft.errors import (
    AbsentError,
    ArtifactRefusedError,
    LockHeldError,
    PeftError,
    RegistryError,
)
from ticket_agent.peft.limits import LOCK_WAIT_S
from ticket_agent.peft.names import check_component
from ticket_agent.peft.planned import member, text
from ticket_agent.peft.registry import Registry, load_manifest
from ticket_agent.peft.trees import locked_registry
from ticket_agent.peft.verify import require_intact
from ticket_agent.protocol.args import EmptyArgs
from ticket_agent.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from ticket_agent.journal.outcome import JsonValue
    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.settings import PeftRoots
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["ActivateProvider", "RollbackProvider"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Goal:
    """A plan as a value.

    Attributes:
        action: the ticket's action, for messages.
        model: the model that is to be active.
        manifest_sha256: digest of its manifest, as planned.
        root: which registry; another one would prove nothing.
        before: what the control files said.
        after: what they are to say.
    """

    action: str
    model: str
    manifest_sha256: str
    root: str
    before: Control
    after: Control

    @property
    def nothing_to_do(self) -> bool:
        """The model is active already, and both files say so."""
        return self.before == self.after

    def says(self, clause: str) -> str:
        """One line about the operation."""
        return f"{self.action} model={self.model} {clause}"

    def to_plan(self) -> Plan:
        return Plan(
            before={"control": dict(self.before.to_members())},
            intent={
                "action": self.action,
                "model": self.model,
                "manifest_sha256": self.manifest_sha256,
                "registry": self.root,
                "control": dict(self.after.to_members()),
                "already_active": self.nothing_to_do,
            },
        )

    @classmethod
    def from_plan(cls, plan: Plan) -> Self:
        """The value of :meth:`to_plan`.

        Raises:
            PeftError: anything else; it was not written by these actions.
        """
        return cls(
            action=text(plan.intent, "action"),
            model=check_component(text(plan.intent, "model"), what="the planned model"),
            manifest_sha256=text(plan.intent, "manifest_sha256"),
            root=text(plan.intent, "registry"),
            before=Control.from_members(member(plan.before, "control")),
            after=Control.from_members(member(plan.intent, "control")),
        )


class _ControlAction(ABC):
    """What the two actions share; they differ in which model becomes active, and in what must hold before."""

    action: str

    def __init__(self, roots: PeftRoots) -> None:
        self._roots: Final = roots

    def lane(self, request: HostTicketSpec) -> str:  # noqa: ARG002 - one registry, one lane
        """One lane for the registry."""
        return REGISTRY_LANE

    def plan(self, request: HostTicketSpec) -> Plan:
        """Look at the registry under its lock and fix what the control files are to say. Changes neither.

        Raises:
            PlanRefusedError: the registry excludes the action.
            PlanWaitsError: the registry cannot be looked at now.
        """
        try:
            args = request.action_args()
        except ProtocolError as error:
            raise PlanRefusedError(f"{self.action} cannot be performed: {error}") from error
        if not isinstance(args, EmptyArgs) or request.subject_ref is None:
            raise PlanRefusedError(f"{self.action} takes no arguments and needs a model as its subject")
        return self.plan_for(request.subject_ref)

    def plan_for(self, model: str | None) -> Plan:
        """Plan for a model; None means the one that the registry itself names. Errors as for :meth:`plan`."""
        what = self.action if model is None else f"{self.action} model={model}"
        with planning(what), locked_registry(self._roots) as root:
            before = read_control(root)
            after = self._after(before, model)
            subject = str(after.pointer)
            return _Goal(
                action=self.action,
                model=subject,
                manifest_sha256=_manifest_digest(root, subject),
                root=root_tag(self._roots.registry),
                before=before,
                after=after,
            ).to_plan()

    def execute(self, plan: Plan) -> Outcome:
        """Commit what was planned, once, if the registry is still as the plan saw it."""
        goal = _Goal.from_plan(plan)
        if other := self._other_registry(goal):
            return Rejected(goal.says(f"not applied: {other}"))
        try:
            with locked_registry(self._roots, wait_s=LOCK_WAIT_S) as root:
                return self._perform(root, goal)
        except PeftError as error:
            # Nothing from the commit on raises: this was before it.
            return Rejected(goal.says(f"not applied: {error}"))

    def observe(self, plan: Plan) -> Outcome:
        """Tell from the control files how far the commit came, and finish it if it is half done.

        Takes the registry's lock, so that whoever dispatched it is certainly not at work any more.
        """
        try:
            goal = _Goal.from_plan(plan)
        except PeftError as error:
            return Unknown(f"{self.action}: the plan in the record is not one of this action: {error}")
        if other := self._other_registry(goal):
            return Unobserved(goal.says(f"cannot be observed: {other}"))
        try:
            with locked_registry(self._roots) as root:
                if self._roots.looks_only:
                    return _look(root, goal)
                outcome = _judge(root, goal)
                with suppress(PeftError):  # it is no part of the outcome, and is seen later
                    remove_unfinished(root)
                return outcome
        except LockHeldError as error:
            return Pending(goal.says(f"waits: {error}"))
        except PeftError as error:
            return _unseen(goal, error)

    def _perform(self, root: Directory, goal: _Goal) -> Outcome:
        """Everything before the commit may raise; from the commit on, every way out is an outcome."""
        found = read_control(root)
        if found != goal.before:
            return Rejected(goal.says(f"not applied: changed since it was planned: {found}"), _seen(found))
        _require_intact(root, goal)
        if goal.nothing_to_do:
            return Committed(goal.says("observed=active (it was already)"), _seen(found))
        try:
            commit(root, goal.before, goal.after)
        except RegistryError as error:
            return Rejected(goal.says(f"not applied: {error}"))
        except PeftError as error:
            return _after_failure(root, goal, error)
        try:
            return _read_back(goal, read_control(root))
        except PeftError as error:
            return _unseen(goal, error)

    def _other_registry(self, goal: _Goal) -> str | None:
        if goal.root == root_tag(self._roots.registry):
            return None
        return "the configuration named another registry root when this was planned; name it again"

    @abstractmethod
    def _after(self, before: Control, model: str | None) -> Control:
        """What the files are to say; raises PeftError or PlanRefusedError where that is excluded."""


class ActivateProvider(_ControlAction):
    """``peft.activate``: make a model active; the one that was becomes the model to return to.

    To activate the active model changes nothing. Where the two files disagree, the pointer is what counts,
    and they agree again afterwards; which model was active before is then known only from the pointer.
    """

    action = "peft.activate"

    def _after(self, before: Control, model: str | None) -> Control:
        if model is None:
            raise PlanRefusedError(f"{self.action} needs a model")
        check_component(model, what="the model")
        if before.pointer != model:
            return Control(pointer=model, current=model, previous=before.pointer)
        if before.consistent:
            return before
        return Control(pointer=model, current=model)


class RollbackProvider(_ControlAction):
    """``peft.rollback``: return to the model that was active before, which must be the ticket's subject."""

    action = "peft.rollback"

    def _after(self, before: Control, model: str | None) -> Control:
        if not before.consistent:
            raise RegistryError(
                f"the registry's two files disagree ({before}), so the model to return to is not known;"
                " activate one"
            )
        if before.previous is None:
            raise RegistryError("there is no previous model to return to")
        if before.previous == before.pointer:
            raise RegistryError("the previous model is the active one; there is nothing to return to")
        if model is not None and before.previous != model:
            raise RegistryError(f"the model to return to is {before.previous}; nothing was changed")
        return Control(pointer=before.previous, current=before.previous, previous=before.pointer)


def _after_failure(root: Directory, goal: _Goal, error: PeftError) -> Outcome:
    """A failed write may have reached the disk: look, and finish what can be finished."""
    try:
        outcome = _judge(root, goal)
    except PeftError as second:
        return Unknown(goal.says(f"failed half-way: {error}; then: {second}"))
    if isinstance(outcome, Rejected):
        return Rejected(goal.says(f"not applied: {error}"), outcome.evidence)
    return outcome


def _judge(root: Directory, goal: _Goal) -> Outcome:
    """What became of the commit; the lock must be held.

    Raises:
        PeftError: the files cannot be read, or a half commit can be neither finished nor taken back.
    """
    found = read_control(root)
    if goal.nothing_to_do:
        return _told_idle(goal, found)
    if decide(goal.before, goal.after, found).progress is Progress.HALF:
        try:
            _require_intact(root, goal)
        except PASSING:
            raise
        except PeftError as error:
            set_back(root, goal.before, goal.after)
            return Rejected(goal.says(f"not applied, taken back half-way: {error}"), _seen(goal.before))
        roll_forward(root, goal.before, goal.after)
        return Committed(goal.says("observed=active (an interrupted commit was finished)"), _seen(goal.after))
    # As it was applied, this makes it durable.
    return _told(goal, roll_forward(root, goal.before, goal.after).control)


def _look(root: Directory, goal: _Goal) -> Outcome:
    """What :func:`_judge` would have to judge, and nothing is finished or taken back."""
    found = read_control(root)
    if goal.nothing_to_do:
        return _told_idle(goal, found)
    if decide(goal.before, goal.after, found).progress is Progress.HALF:
        return Pending(goal.says("is half done; the agent finishes it, or takes it back"), _seen(found))
    return _told(goal, found)


def _told(goal: _Goal, found: Control) -> Outcome:
    """What a registry tells that is not half-way."""
    if found == goal.before:
        # Not that nothing happened: somebody may have returned to it since.
        active = found.pointer or "none"
        return Rejected(goal.says(f"not applied: the registry shows active={active} as before"), _seen(found))
    return _active(goal, found) or Unknown(
        goal.says(f"the registry was changed by somebody else: {found}"), _seen(found)
    )


def _read_back(goal: _Goal, found: Control) -> Outcome:
    """What a registry tells after a commit without an error: there are tools that do not ask for the lock."""
    return _active(goal, found) or Unknown(
        goal.says(f"was written and then changed by somebody else: {found}"), _seen(found)
    )


def _active(goal: _Goal, found: Control) -> Outcome | None:
    """The model is active and both files say so; None otherwise."""
    if not found.pointer == found.current == goal.model:
        return None
    clause = "observed=active"
    if found != goal.after:
        clause += f", but somebody else wrote previous={found.previous or 'none'}"
    return Committed(goal.says(clause), _seen(found))


def _told_idle(goal: _Goal, found: Control) -> Outcome:
    if found.pointer == goal.model and found.consistent:
        return Committed(goal.says("observed=active (it was already)"), _seen(found))
    return Rejected(
        goal.says(f"nothing was written, as it was active; now the registry shows {found}"), _seen(found)
    )


def _unseen(goal: _Goal, error: PeftError) -> Outcome:
    detail = goal.says(f"cannot be observed: {error}")
    return Unobserved(detail) if isinstance(error, PASSING) else Unknown(detail)


def _manifest_digest(root: Directory, model: str) -> str:
    with Registry.open(root) as registry, registry.open_model(model) as folder:
        try:
            return load_manifest(folder, model)[1]
        except AbsentError:
            raise RegistryError(f"model {model} is not available: its import was not finished") from None


def _require_intact(root: Directory, goal: _Goal) -> None:
    """Hash the model, and refuse it unless it is whole and the one that was planned."""
    with Registry.open(root) as registry:
        intact = require_intact(registry, goal.model)
    if intact.manifest_sha256 != goal.manifest_sha256:
        raise ArtifactRefusedError(
            f"model {goal.model} is not the one that was planned; its manifest differs"
        )


def _seen(control: Control) -> dict[str, JsonValue]:
    return {"control": dict(control.to_members())}
