from __future__ import annotations

import itertools

import pytest

from ticket_agent.journal.errors import IllegalTransitionError
from ticket_agent.journal.transitions import TRANSITIONS, Event, State, advance, follows

LEGAL = {
    (State.PREPARED, Event.DISPATCH): State.EXECUTING,
    (State.PREPARED, Event.REFUSE): State.PERSISTED,
    (State.PREPARED, Event.ADOPT): State.PERSISTED,
    (State.EXECUTING, Event.NOTE): State.EXECUTING,
    (State.EXECUTING, Event.SETTLE): State.PERSISTED,
    (State.EXECUTING, Event.ADOPT): State.PERSISTED,
    (State.PERSISTED, Event.PUBLISH): State.PUBLISHED,
    (State.PERSISTED, Event.WITHDRAW): State.TERMINAL,
    (State.PUBLISHED, Event.FINISH): State.TERMINAL,
}


def test_state_names_are_those_of_the_protocol() -> None:
    names = ["prepared", "executing", "provider-result-persisted", "result-published", "terminal"]
    assert [state.value for state in State] == names


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_pair_is_either_in_the_table_or_refused(state: State, event: Event) -> None:
    expected = LEGAL.get((state, event))
    if expected is not None:
        assert advance(state, event) is expected
        return
    with pytest.raises(IllegalTransitionError, match=f"{state}.*{event}"):
        advance(state, event)


def test_no_path_returns_to_an_earlier_state() -> None:
    order = list(State)
    for state, row in TRANSITIONS.items():
        for after in row.values():
            assert order.index(after) >= order.index(state)


def test_dispatch_is_possible_from_prepared_only() -> None:
    assert [state for state, row in TRANSITIONS.items() if Event.DISPATCH in row] == [State.PREPARED]


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[State.TERMINAL][Event.DISPATCH] = State.EXECUTING  # type: ignore[index]


def test_history_steps_are_the_tables_without_staying() -> None:
    steps = {(before, after) for (before, _), after in LEGAL.items() if before is not after}
    assert {pair for pair in itertools.product(State, State) if follows(*pair)} == steps
