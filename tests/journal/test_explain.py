"""What is explained is what is decided, for every state and all facts."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
from journal_support import open_store, walk

from ticket_agent.journal.explain import FactName, Known, explain
from ticket_agent.journal.outcome import Committed, Outcome, Pending, Rejected, Underway, Unknown
from ticket_agent.journal.recovery import Admission, Decision, Facts, Visible, decide
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.journal.record import Record

ASSUMED = dict.fromkeys(FactName, Known.ASSUMED)


def _facts(
    visible: Visible = Visible.NONE, admission: Admission = Admission.KNOWN, expires: int | None = None
) -> Facts:
    return Facts(now_unix_ms=1_000, expires_unix_ms=expires, visible=visible, admission=admission)


def _record(path: Path, state: State) -> Record:
    with open_store(path) as store:
        return walk(store, upto=state)


@pytest.mark.parametrize("state", State)
def test_the_decision_and_its_alternatives_are_those_of_the_table(tmp_path: Path, state: State) -> None:
    record = _record(tmp_path / "state", state)
    every = [_facts(*each) for each in product(Visible, Admission, (None, 1_000, 1_001))]
    reachable = {decide(record, facts).name for facts in every}
    for facts in every:
        told = explain(record, facts, known=ASSUMED)
        assert told.decision is decide(record, facts)
        assert told.rule.startswith(f"{state}, and ")
        assert told.rule.endswith(f"-> {told.decision.name}")
        others = {other.rsplit(": ", 1)[1] for other in told.otherwise}
        assert others <= reachable - {told.decision.name}
        assert told.assumed == tuple(FactName)


def test_the_reason_is_the_first_row_that_fits(tmp_path: Path) -> None:
    record = _record(tmp_path / "state", State.PREPARED)
    told = explain(record, _facts(Visible.OTHER, Admission.FORGOTTEN, 1), known=ASSUMED)
    assert "shows a terminal result" in told.rule
    told = explain(record, _facts(Visible.NONE, Admission.FORGOTTEN, 1), known=ASSUMED)
    assert "has forgotten the admission -> FORGET" in told.rule
    told = explain(record, _facts(expires=1_001), known=ASSUMED)
    assert told.decision is Decision.DISPATCH
    assert "if the request is expired: EXPIRE" in told.otherwise


@pytest.mark.parametrize(
    ("outcome", "expires", "words"),
    [
        (Committed("c"), None, "settle as confirmed (by knowledge): c"),
        (Rejected("r"), 1, "settle as rejected (by knowledge): r"),
        (Unknown("u"), 1, "settle as stale (by rule, not by knowledge)"),
        (Unknown("u"), None, "keep it executing and uncertain"),
        (Pending("p"), 1_001, "keep it executing and uncertain"),
        (Underway("o", poll_s=0.25), None, "let it go on, as it is known to do, and look again every 0.25 s"),
        (Underway("o", poll_s=0.25), 1, "let it go on"),
        (None, 1, "ends it as stale, because the request is expired"),
        (None, None, "keeps it uncertain"),
    ],
)
def test_an_observation_is_followed_to_its_end(
    tmp_path: Path, outcome: Outcome | None, expires: int | None, words: str
) -> None:
    record = _record(tmp_path / "state", State.EXECUTING)
    told = explain(record, _facts(expires=expires), known=ASSUMED, outcome=outcome)
    assert words in told.effect
    assert (told.outcome is None) == (outcome is None)
    assert told.uncertain is words.startswith("keep")
