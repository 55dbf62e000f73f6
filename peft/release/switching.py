"""Replacing one running server by another: the steps, their order, and what undoes them. As data.

The candidate runs beside the incumbent and has to prove itself before the pointer, which says whom to ask,
moves to it. The incumbent is stopped last, when it has nothing left to answer: at every moment whoever the
pointer names is running. What goes wrong before the pointer moved takes the candidate away; what goes wrong
after it moves the pointer back first.

An effect is begun at most once: that it is about to begin is recorded before it does, and from there on only
looking tells how it ended. A look changes nothing and may be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.rules import array, choice

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "RULES",
    "Act",
    "Decision",
    "End",
    "Event",
    "History",
    "IllegalSwitchError",
    "Outcome",
    "Rule",
    "Serving",
    "Step",
    "append",
    "decide",
    "history_members",
    "history_of",
    "serving",
]


class IllegalSwitchError(PeftError):
    """An event that cannot come next; nothing was changed."""

    code = "switch-illegal"


class Step(StrEnum):
    """What is done, or looked at."""

    START = "start"
    READY = "ready"
    CANARY = "canary"
    SWITCH = "switch"
    VERIFY = "verify"
    DRAIN = "drain"
    STOP_OLD = "stop-old"
    OLD_GONE = "old-gone"
    KILL_OLD = "kill-old"
    OLD_KILLED = "old-killed"
    SWITCH_BACK = "switch-back"
    VERIFY_OLD = "verify-old"
    STOP_CANDIDATE = "stop-candidate"
    CANDIDATE_GONE = "candidate-gone"
    KILL_CANDIDATE = "kill-candidate"
    CANDIDATE_KILLED = "candidate-killed"


class Outcome(StrEnum):
    """How a step ended."""

    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"
    DENIED = "denied"
    """It was not begun, because nobody allows it any more."""


class End(StrEnum):
    """How a replacement ended."""

    SWITCHED = "switched"
    LINGERING = "lingering"
    """The candidate serves; that the old server is gone is not proven."""
    RESTORED = "restored"
    """The incumbent serves as before, and the candidate is gone."""
    STUCK = "stuck"
    """What serves, or what still runs, is not as it was; somebody has to look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One step.

    Attributes:
        effect: it changes something; recorded before it is begun, and begun once. Else it is a look.
        authority: it is not begun when the authority for the release is lost.
        after: what comes next, for each way in which it can end.
    """

    effect: bool
    authority: bool
    after: Mapping[Outcome, Step | End]


def _look(*, done: Step | End, failed: Step | End) -> Rule:
    after = {Outcome.DONE: done, Outcome.FAILED: failed, Outcome.UNKNOWN: failed}
    return Rule(effect=False, authority=False, after=MappingProxyType(after))


def _effect(*, done: Step | End, failed: Step | End, denied: Step | End | None) -> Rule:
    after = {Outcome.DONE: done, Outcome.FAILED: failed, Outcome.UNKNOWN: failed}
    if denied is not None:
        after[Outcome.DENIED] = denied
    return Rule(effect=True, authority=denied is not None, after=MappingProxyType(after))


RULES: Final[Mapping[Step, Rule]] = MappingProxyType(
    {
        Step.START: _effect(done=Step.READY, failed=Step.STOP_CANDIDATE, denied=End.RESTORED),
        Step.READY: _look(done=Step.CANARY, failed=Step.STOP_CANDIDATE),
        Step.CANARY: _look(done=Step.SWITCH, failed=Step.STOP_CANDIDATE),
        # Where a failed switch has left the pointer is not known; moving it back is right in either case.
        Step.SWITCH: _effect(done=Step.VERIFY, failed=Step.SWITCH_BACK, denied=Step.STOP_CANDIDATE),
        Step.VERIFY: _look(done=Step.DRAIN, failed=Step.SWITCH_BACK),
        # What has not been answered when the time for it is over is cut off.
        Step.DRAIN: _look(done=Step.STOP_OLD, failed=Step.STOP_OLD),
        Step.STOP_OLD: _effect(done=Step.OLD_GONE, failed=Step.OLD_GONE, denied=End.LINGERING),
        # It did not end, or nobody has asked it to: whoever was to ask may have died before.
        Step.OLD_GONE: _look(done=End.SWITCHED, failed=Step.KILL_OLD),
        Step.KILL_OLD: _effect(done=Step.OLD_KILLED, failed=Step.OLD_KILLED, denied=End.LINGERING),
        Step.OLD_KILLED: _look(done=End.SWITCHED, failed=End.LINGERING),
        Step.SWITCH_BACK: _effect(done=Step.VERIFY_OLD, failed=End.STUCK, denied=End.STUCK),
        # If the incumbent does not answer, the candidate may be the only one that does: it is left alone.
        Step.VERIFY_OLD: _look(done=Step.STOP_CANDIDATE, failed=End.STUCK),
        # Taking away what nobody is sent to needs no authority, or it would stay for ever.
        Step.STOP_CANDIDATE: _effect(done=Step.CANDIDATE_GONE, failed=Step.CANDIDATE_GONE, denied=None),
        Step.CANDIDATE_GONE: _look(done=End.RESTORED, failed=Step.KILL_CANDIDATE),
        Step.KILL_CANDIDATE: _effect(done=Step.CANDIDATE_KILLED, failed=Step.CANDIDATE_KILLED, denied=None),
        Step.CANDIDATE_KILLED: _look(done=End.RESTORED, failed=End.STUCK),
    }
)
"""Every step there is."""

FIRST: Final = Step.START
MAX_EVENTS: Final = 2 * len(RULES)


@dataclass(frozen=True, slots=True)
class Event:
    """A step that was begun (no outcome), or that has ended."""

    step: Step
    outcome: Outcome | None


History = tuple[Event, ...]


class Act(StrEnum):
    """What to do next."""

    BEGIN = "begin"
    """Record the step as begun, then begin it."""
    LOOK = "look"
    """Look how the step ended, or is going; record the outcome when there is one."""
    DENY = "deny"
    """Record the step as denied; do not begin it."""
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do, and with which step; or how it ended."""

    act: Act
    step: Step | None = None
    end: End | None = None


class Serving(StrEnum):
    """Whom the pointer names, as far as the history tells."""

    INCUMBENT = "incumbent"
    CANDIDATE = "candidate"
    EITHER = "either"


def decide(history: History, *, authority: bool) -> Decision:
    """Say what to do next; the same for the same history, whoever asks after whatever crash.

    Args:
        history: everything that was recorded.
        authority: the release is still allowed.

    Raises:
        IllegalSwitchError: no replacement has this history.
    """
    at, begun = _position(history)
    if isinstance(at, End):
        return Decision(act=Act.END, end=at)
    rule = RULES[at]
    if begun or not rule.effect:
        return Decision(act=Act.LOOK, step=at)
    if rule.authority and not authority:
        return Decision(act=Act.DENY, step=at)
    return Decision(act=Act.BEGIN, step=at)


def append(history: History, event: Event) -> History:
    """Return the history with one more event.

    Raises:
        IllegalSwitchError: it cannot come next.
    """
    _position(longer := (*history, event))
    return longer


def serving(history: History) -> Serving:
    """Say whom the pointer names."""
    found = Serving.INCUMBENT
    for event in history:
        if event.step not in {Step.SWITCH, Step.SWITCH_BACK} or event.outcome is Outcome.DENIED:
            continue
        if event.outcome is not Outcome.DONE:
            found = Serving.EITHER
        else:
            found = Serving.CANDIDATE if event.step is Step.SWITCH else Serving.INCUMBENT
    return found


def history_members(history: History) -> list[list[str | None]]:
    """A history as an array of JSON."""
    return [[event.step.value, event.outcome and event.outcome.value] for event in history]


def history_of(value: object) -> History:
    """The history of :func:`history_members`.

    Raises:
        DocumentError: it is no list of events.
        IllegalSwitchError: no replacement has this history.
    """
    history: History = ()
    for item in array(value, "switch history", 0, MAX_EVENTS):
        step, outcome = array(item, "each event", 2, 2)
        choice(step, "step", [step.value for step in Step])
        choice(outcome, "outcome", [None, *(outcome.value for outcome in Outcome)])
        history = append(history, Event(Step(step), None if outcome is None else Outcome(outcome)))
    return history


def _position(history: History) -> tuple[Step | End, bool]:
    at: Step | End = FIRST
    begun = False
    for event in history:
        if isinstance(at, End):
            raise IllegalSwitchError(f"{event.step} after the end, which is {at}")
        if event.step is not at:
            raise IllegalSwitchError(f"{event.step} where {at} comes next")
        begun, at = _moved(at, RULES[at], event.outcome, begun=begun)
    return at, begun


def _moved(at: Step, rule: Rule, outcome: Outcome | None, *, begun: bool) -> tuple[bool, Step | End]:
    if outcome is None:
        if begun or not rule.effect:
            raise IllegalSwitchError(
                f"{at} cannot begin {'again' if begun else 'as an effect: it is a look'}"
            )
        return True, at
    if outcome not in rule.after:
        raise IllegalSwitchError(f"{at} cannot be {outcome}")
    if rule.effect and begun == (outcome is Outcome.DENIED):
        raise IllegalSwitchError(f"{at} cannot be {outcome} when it was {'' if begun else 'not '}begun")
    return False, rule.after[outcome]


def describe() -> list[dict[str, Any]]:
    """The table for reports and diagrams: one object for each step."""
    return [
        {
            "step": step.value,
            "effect": rule.effect,
            "authority": rule.authority,
            "after": {outcome.value: after.value for outcome, after in rule.after.items()},
        }
        for step, rule in RULES.items()
    ]
