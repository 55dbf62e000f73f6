from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_support import BOOT_ID, KEY, PLAN, REQUEST, RESULT, STAGED, VERSION

from ticket_agent.journal.outcome import Committed, Outcome, Pending, Rejected, Underway, Unknown
from ticket_agent.journal.record import HistoryEntry, Record
from ticket_agent.journal.recovery import (
    Admission,
    Decision,
    Facts,
    Visible,
    decide,
    settle_observation,
    settled,
)
from ticket_agent.journal.transitions import TRANSITIONS, Event, State
from ticket_agent.journal.values import MAX_EVIDENCE_BYTES

NOW = 1_000
EVENT = {
    Decision.DISPATCH: Event.DISPATCH,
    Decision.OBSERVE: Event.SETTLE,
    Decision.ADOPT: Event.ADOPT,
    Decision.EXPIRE: Event.REFUSE,
    Decision.FORGET: Event.REFUSE,
    Decision.PUBLISH: Event.PUBLISH,
    Decision.CONFIRM_PUBLISHED: Event.PUBLISH,
    Decision.WITHDRAW: Event.WITHDRAW,
    Decision.FINISH: Event.FINISH,
}


def record(state: State) -> Record:
    path = list(State)[: list(State).index(state) + 1]
    persisted = State.PERSISTED in path
    return Record(
        key=KEY,
        family="ticket-v2",
        epoch=1,
        sequence=1,
        request=REQUEST,
        state=state,
        history=tuple(HistoryEntry(state=step, unix_ms=1, boot_id=BOOT_ID, agent=VERSION) for step in path),
        plan=PLAN if State.EXECUTING in path else None,
        result=RESULT if persisted else None,
        staged=STAGED if persisted else None,
    )


def facts(visible: Visible, admission: Admission, *, expires: int | None = None) -> Facts:
    return Facts(now_unix_ms=NOW, expires_unix_ms=expires, visible=visible, admission=admission)


def expected(state: State, visible: Visible, admission: Admission, *, expired: bool) -> Decision:
    """The rules again, written as prose would say them."""
    shown, forgotten = visible is not Visible.NONE, admission is Admission.FORGOTTEN
    if state is State.PREPARED:
        if shown:
            return Decision.ADOPT
        if forgotten:
            return Decision.FORGET
        return Decision.EXPIRE if expired else Decision.DISPATCH
    if state is State.EXECUTING:
        return Decision.ADOPT if shown else Decision.OBSERVE
    if state is State.PERSISTED:
        if visible is Visible.EXACT:
            return Decision.CONFIRM_PUBLISHED
        return Decision.WITHDRAW if shown or forgotten else Decision.PUBLISH
    return Decision.FINISH if state is State.PUBLISHED else Decision.NOTHING


@pytest.mark.parametrize("state", list(State))
def test_every_combination_of_facts_is_decided(state: State) -> None:
    for visible, admission, expires in itertools.product(Visible, Admission, [None, NOW - 1, NOW, NOW + 1]):
        found = decide(record(state), facts(visible, admission, expires=expires))
        expired = expires is not None and expires <= NOW
        assert found is expected(state, visible, admission, expired=expired)
        if found is not Decision.NOTHING:
            assert EVENT[found] in TRANSITIONS[state]


def test_only_prepared_is_ever_dispatched() -> None:
    combinations = itertools.product(State, Visible, Admission, [None, NOW])
    dispatched = {
        state
        for state, visible, admission, expires in combinations
        if decide(record(state), facts(visible, admission, expires=expires)) is Decision.DISPATCH
    }
    assert dispatched == {State.PREPARED}


def test_expiry_is_reached_in_its_very_millisecond() -> None:
    assert facts(Visible.NONE, Admission.KNOWN, expires=NOW).expired
    assert not facts(Visible.NONE, Admission.KNOWN, expires=NOW + 1).expired
    assert not facts(Visible.NONE, Admission.KNOWN).expired


kinds = st.sampled_from([Committed, Rejected, Pending, Unknown])
outcomes = st.builds(
    lambda kind, detail, evidence: kind(detail, evidence),
    kinds,
    st.text(),
    st.dictionaries(st.text(), st.text() | st.integers() | st.floats(), max_size=3),
)
all_facts = st.builds(
    Facts,
    now_unix_ms=st.just(NOW),
    expires_unix_ms=st.sampled_from([None, NOW, NOW + 1]),
    visible=st.sampled_from(Visible),
    admission=st.sampled_from(Admission),
)


@given(outcomes, all_facts)
def test_an_observation_settles_by_knowledge_first_and_by_rule_last(outcome: Outcome, known: Facts) -> None:
    result = settle_observation(outcome, known)
    if isinstance(outcome, Committed | Rejected):
        assert result is not None
        assert result.outcome == ("confirmed" if isinstance(outcome, Committed) else "rejected")
        assert result.message == outcome.detail
    elif known.expired or known.admission is Admission.FORGOTTEN:
        assert result is not None
        assert result.outcome == "stale"
        assert "not repeated" in result.message
        assert result.message.startswith("expired" if known.expired else "admission forgotten")
    else:
        assert result is None
        return
    assert result.reconciled
    assert 1 <= len(result.message.encode()) <= 192


@given(st.text(), all_facts)
def test_what_is_under_way_is_ended_by_its_provider_alone(detail: str, known: Facts) -> None:
    assert settle_observation(Underway(detail, poll_s=0.25), known) is None


@pytest.mark.parametrize("followed", [True, False])
def test_what_was_followed_to_its_end_is_not_reconciled(followed: bool) -> None:
    facts = Facts(now_unix_ms=1, expires_unix_ms=None, visible=Visible.NONE, admission=Admission.KNOWN)
    told = settle_observation(Committed("done"), facts, followed=followed)
    assert told is not None
    assert told.reconciled is not followed


def test_an_outcome_that_was_told_is_not_reconciled() -> None:
    told = settled(Committed("done", {"seq": 4}), reconciled=False)
    assert told is not None
    assert (told.outcome, told.message, told.reconciled, told.evidence) == (
        "confirmed",
        "done",
        False,
        {"seq": 4},
    )
    assert settled(Pending("waiting"), reconciled=False) is None
    assert settled(Unknown("lost"), reconciled=True) is None


def test_an_outcome_is_not_lost_to_its_evidence() -> None:
    result = settled(Rejected("no", {"log": "x" * MAX_EVIDENCE_BYTES}), reconciled=True)
    assert result is not None
    assert list(result.evidence) == ["evidence_dropped"]
