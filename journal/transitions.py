"""The life of one operation as a table.

Read ``TRANSITIONS`` as: in this state, this event leads there. Whatever is not in the table is illegal. In
particular there is no way back from ``executing`` to ``prepared``, and no second ``DISPATCH``: after a
restart an executing operation can only be observed.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from ticket_agent.journal.errors import IllegalTransitionError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TRANSITIONS", "Event", "State", "advance", "follows"]


class State(StrEnum):
    """How far an operation is, in order (host tickets, execution journal: state)."""

    PREPARED = "prepared"
    EXECUTING = "executing"
    PERSISTED = "provider-result-persisted"
    PUBLISHED = "result-published"
    TERMINAL = "terminal"


class Event(StrEnum):
    """What can happen to an operation."""

    DISPATCH = "dispatch"
    """The plan is durable; the effect may be performed, once, after this."""
    NOTE = "note"
    """The effect's end is not known at present; only the note changes."""
    SETTLE = "settle"
    """The effect's end is known, or its uncertainty ended by rule."""
    REFUSE = "refuse"
    """A definite end without any dispatch."""
    ADOPT = "adopt"
    """The root already shows a terminal result of this admission."""
    PUBLISH = "publish"
    """The root has the staged result."""
    WITHDRAW = "withdraw"
    """The root can never take the staged result; the reason is recorded."""
    FINISH = "finish"
    """Nothing is left to do."""


TRANSITIONS: Mapping[State, Mapping[Event, State]] = MappingProxyType(
    {
        State.PREPARED: MappingProxyType(
            {
                Event.DISPATCH: State.EXECUTING,
                Event.REFUSE: State.PERSISTED,
                Event.ADOPT: State.PERSISTED,
            }
        ),
        State.EXECUTING: MappingProxyType(
            {
                Event.NOTE: State.EXECUTING,
                Event.SETTLE: State.PERSISTED,
                Event.ADOPT: State.PERSISTED,
            }
        ),
        State.PERSISTED: MappingProxyType(
            {
                Event.PUBLISH: State.PUBLISHED,
                Event.WITHDRAW: State.TERMINAL,
            }
        ),
        State.PUBLISHED: MappingProxyType({Event.FINISH: State.TERMINAL}),
        State.TERMINAL: MappingProxyType({}),
    }
)

_STEPS = frozenset(
    (before, after) for before, row in TRANSITIONS.items() for after in row.values() if after is not before
)


def advance(state: State, event: Event) -> State:
    """Return the state after ``event``.

    Raises:
        IllegalTransitionError: the table has no such event in this state.
    """
    after = TRANSITIONS[state].get(event)
    if after is None:
        raise IllegalTransitionError(f"an operation that is {state} cannot take the event {event}")
    return after


def follows(before: State, after: State) -> bool:
    """Tell whether a history may show ``after`` directly behind ``before``."""
    return (before, after) in _STEPS
