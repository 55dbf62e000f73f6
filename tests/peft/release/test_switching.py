from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.switching import (
    RULES,
    Act,
    End,
    Event,
    History,
    IllegalSwitchError,
    Outcome,
    Serving,
    Step,
    append,
    decide,
    describe,
    history_members,
    history_of,
    serving,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOOKED = (Outcome.DONE, Outcome.FAILED, Outcome.UNKNOWN)
FORWARD = (
    Step.START,
    Step.READY,
    Step.CANARY,
    Step.SWITCH,
    Step.VERIFY,
    Step.DRAIN,
    Step.STOP_OLD,
    Step.OLD_GONE,
)


def run(outcome_of: Callable[[Step], Outcome], authority: Callable[[Step], bool] = lambda _: True) -> History:
    history: History = ()
    while True:
        decision = decide(history, authority=True)
        if decision.step is not None:
            decision = decide(history, authority=authority(decision.step))
        step = decision.step
        if step is None:
            return history
        outcome = {Act.BEGIN: None, Act.DENY: Outcome.DENIED, Act.LOOK: outcome_of(step)}[decision.act]
        history = append(history, Event(step, outcome))


def end_of(history: History) -> End | None:
    return decide(history, authority=True).end


def steps(history: History) -> list[Step]:
    return [event.step for event in history if event.outcome is not None]


def every_history() -> Iterator[History]:
    """Every history there is, complete or cut off anywhere."""
    waiting: list[History] = [()]
    while waiting:
        history = waiting.pop()
        yield history
        for authority in (True, False):
            decision = decide(history, authority=authority)
            step = decision.step
            if step is None:
                break
            if decision.act is Act.DENY:
                waiting.append(append(history, Event(step, Outcome.DENIED)))
            elif authority and decision.act is Act.BEGIN:
                waiting.append(append(history, Event(step, None)))
            elif authority:
                waiting += [append(history, Event(step, outcome)) for outcome in LOOKED]


ALL = list(every_history())


def test_a_good_replacement_takes_the_steps_in_their_order() -> None:
    history = run(lambda _: Outcome.DONE)
    assert tuple(steps(history)) == FORWARD
    assert end_of(history) is End.SWITCHED


@pytest.mark.parametrize("bad", [Outcome.FAILED, Outcome.UNKNOWN])
@pytest.mark.parametrize(
    ("step", "then", "end"),
    [
        (Step.START, [Step.STOP_CANDIDATE, Step.CANDIDATE_GONE], End.RESTORED),
        (Step.READY, [Step.STOP_CANDIDATE, Step.CANDIDATE_GONE], End.RESTORED),
        (Step.CANARY, [Step.STOP_CANDIDATE, Step.CANDIDATE_GONE], End.RESTORED),
        (
            Step.SWITCH,
            [Step.SWITCH_BACK, Step.VERIFY_OLD, Step.STOP_CANDIDATE, Step.CANDIDATE_GONE],
            End.RESTORED,
        ),
        (
            Step.VERIFY,
            [Step.SWITCH_BACK, Step.VERIFY_OLD, Step.STOP_CANDIDATE, Step.CANDIDATE_GONE],
            End.RESTORED,
        ),
        (Step.DRAIN, [Step.STOP_OLD, Step.OLD_GONE], End.SWITCHED),
        (Step.STOP_OLD, [Step.OLD_GONE], End.SWITCHED),
        (Step.OLD_GONE, [Step.KILL_OLD, Step.OLD_KILLED], End.SWITCHED),
    ],
)
def test_what_goes_wrong_is_undone(step: Step, then: list[Step], end: End, bad: Outcome) -> None:
    history = run(lambda at: bad if at is step else Outcome.DONE)
    assert steps(history) == [*FORWARD[: FORWARD.index(step) + 1], *then]
    assert end_of(history) is end


@pytest.mark.parametrize(
    ("failed", "end", "left_alone"),
    [
        ({Step.VERIFY, Step.SWITCH_BACK}, End.STUCK, Step.STOP_CANDIDATE),
        ({Step.VERIFY, Step.VERIFY_OLD}, End.STUCK, Step.STOP_CANDIDATE),
        ({Step.CANARY, Step.CANDIDATE_GONE, Step.CANDIDATE_KILLED}, End.STUCK, Step.STOP_OLD),
        ({Step.OLD_GONE, Step.OLD_KILLED}, End.LINGERING, Step.STOP_CANDIDATE),
        ({Step.CANARY, Step.CANDIDATE_GONE}, End.RESTORED, Step.STOP_OLD),
        ({Step.CANARY, Step.STOP_CANDIDATE}, End.RESTORED, Step.STOP_OLD),
    ],
)
def test_what_cannot_be_undone_is_said(failed: set[Step], end: End, left_alone: Step) -> None:
    history = run(lambda at: Outcome.FAILED if at in failed else Outcome.DONE)
    assert end_of(history) is end
    assert left_alone not in steps(history)


@pytest.mark.parametrize(
    ("lost", "end"),
    [
        (Step.START, End.RESTORED),
        (Step.SWITCH, End.RESTORED),
        (Step.STOP_OLD, End.LINGERING),
        (Step.SWITCH_BACK, End.STUCK),
    ],
)
def test_nothing_is_begun_without_authority(lost: Step, end: End) -> None:
    history = run(
        lambda at: Outcome.FAILED if lost is Step.SWITCH_BACK and at is Step.VERIFY else Outcome.DONE,
        lambda at: at is not lost,
    )
    assert Event(lost, None) not in history
    assert Event(lost, Outcome.DENIED) in history
    assert end_of(history) is end


def test_every_effect_begins_at_most_once_and_only_after_it_was_recorded() -> None:
    for history in ALL:
        for step, rule in RULES.items():
            begun = history.count(Event(step, None))
            ended = [event for event in history if event.step is step and event.outcome in LOOKED]
            assert begun <= rule.effect
            assert not rule.effect or len(ended) <= begun


def test_whoever_is_stopped_is_not_whom_the_pointer_names() -> None:
    for history in ALL:
        for at, event in enumerate(history):
            if event in {Event(Step.STOP_OLD, None), Event(Step.KILL_OLD, None)}:
                assert serving(history[:at]) is Serving.CANDIDATE
                assert Event(Step.CANARY, Outcome.DONE) in history[:at]
                assert Event(Step.VERIFY, Outcome.DONE) in history[:at]
            if event in {Event(Step.STOP_CANDIDATE, None), Event(Step.KILL_CANDIDATE, None)}:
                assert serving(history[:at]) is Serving.INCUMBENT


def test_at_most_one_of_the_two_is_ever_stopped() -> None:
    for history in ALL:
        stopped = {event.step for event in history} & {Step.STOP_OLD, Step.STOP_CANDIDATE}
        assert len(stopped) <= 1


def test_the_end_says_who_serves() -> None:
    seen = set()
    for history in ALL:
        end = end_of(history)
        if end is not None:
            seen.add(end)
        if end in {End.SWITCHED, End.LINGERING}:
            assert serving(history) is Serving.CANDIDATE
        if end is End.RESTORED:
            assert serving(history) is Serving.INCUMBENT
            if Event(Step.START, None) in history:
                gone = {Event(Step.CANDIDATE_GONE, Outcome.DONE), Event(Step.CANDIDATE_KILLED, Outcome.DONE)}
                assert history[-1] in gone
    assert seen == set(End)


def test_after_a_crash_an_effect_that_had_begun_is_only_looked_at() -> None:
    for history in ALL:
        if history and history[-1].outcome is None:
            for authority in (True, False):
                decision = decide(history, authority=authority)
                assert (decision.act, decision.step) == (Act.LOOK, history[-1].step)


def test_every_history_is_read_back() -> None:
    for history in ALL:
        assert history_of(history_members(history)) == history


def test_only_these_histories_are_legal() -> None:
    for history in ALL:
        for step in Step:
            for outcome in (None, *Outcome):
                event = Event(step, outcome)
                try:
                    legal = append(history, event) == (*history, event)
                except IllegalSwitchError:
                    legal = False
                assert legal == ((*history, event) in KNOWN)


@given(st.lists(st.sampled_from(LOOKED), min_size=len(Step), max_size=len(Step)), st.integers(0, len(Step)))
def test_whatever_happens_it_ends(outcomes: list[Outcome], lost: int) -> None:
    left = iter(outcomes)
    seen: list[Step] = []

    def outcome(step: Step) -> Outcome:
        seen.append(step)
        return next(left)

    history = run(outcome, lambda _: len(seen) < lost)
    assert end_of(history) is not None
    assert history in KNOWN


KNOWN = frozenset(ALL)


@pytest.mark.parametrize(
    "events",
    [
        [("ready", "done")],
        [("start", "done")],
        [("start", None), ("start", None)],
        [("start", None), ("start", "denied")],
        [("start", "denied"), ("start", None)],
        [("start", None), ("start", "done"), ("ready", None)],
        [("start", None), ("start", "done"), ("ready", "denied")],
        [("start", None), ("start", "done"), ("ready", "done"), ("switch", None)],
    ],
)
def test_an_illegal_event_is_refused(events: list[tuple[str, str | None]]) -> None:
    with pytest.raises(IllegalSwitchError):
        history_of(events)


@pytest.mark.parametrize("value", [None, {}, [["start"]], [["begin", None]], [["start", "so-so"]], [[1, 2]]])
def test_what_is_no_history_is_refused(value: object) -> None:
    with pytest.raises(DocumentError):
        history_of(value)


def test_the_table_names_every_step_and_every_end() -> None:
    table = describe()
    assert [row["step"] for row in table] == [step.value for step in Step]
    reached = {after for row in table for after in row["after"].values()}
    assert reached == {step.value for step in Step if step is not Step.START} | {end.value for end in End}
    assert all(first != second for first, second in pairwise(steps(run(lambda _: Outcome.DONE))))
