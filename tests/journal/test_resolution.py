"""A person's word on an operation: what it becomes, what it never becomes, and when it is not asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from agent_faults import Killed
from hypothesis import given
from hypothesis import strategies as st
from journal_support import FAMILY, KEY, PLAN, REQUEST, STAGED, open_store, walk

from ticket_agent.journal.errors import RecordError
from ticket_agent.journal.fs import RealFs
from ticket_agent.journal.outcome import Committed, Outcome, Pending, Rejected, Unknown, Unobserved
from ticket_agent.journal.record import (
    HistoryEntry,
    ProviderResult,
    Record,
    decode_record,
    encode_record,
)
from ticket_agent.journal.recovery import Admission, Facts, Visible
from ticket_agent.journal.resolution import (
    Resolution,
    ResolutionRefusedError,
    Said,
    require_resolvable,
    resolution_of,
)
from ticket_agent.journal.transitions import State
from ticket_agent.journal.view import read_journal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ticket_agent.journal.outcome import JsonValue

SAID: tuple[Said, ...] = ("done", "not-done")
WORD = Resolution(said="done", by="ada", reason="seen on the host", unix_ms=7, observed="Unknown: nothing")
FACTS = Facts(now_unix_ms=1_000, expires_unix_ms=2_000, visible=Visible.NONE, admission=Admission.KNOWN)


def _left(path: Path, state: State) -> Record:
    with open_store(path) as store:
        return walk(store, upto=state)


def _refusal(record: Record, facts: Facts | None, outcome: Outcome | None) -> str:
    with pytest.raises(ResolutionRefusedError) as caught:
        require_resolvable(record, facts, outcome)
    return str(caught.value)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (State.PREPARED, "never dispatched"),
        (State.PERSISTED, "decided (confirmed)"),
        (State.PUBLISHED, "decided (confirmed)"),
        (State.TERMINAL, "ended as confirmed"),
    ],
)
def test_only_an_executing_operation_is_resolved(tmp_path: Path, state: State, words: str) -> None:
    assert words in _refusal(_left(tmp_path, state), None, None)
    assert words in _refusal(read_journal(tmp_path).records[KEY], FACTS, Unknown("who knows"))


@pytest.mark.parametrize(
    ("facts", "outcome", "words"),
    [
        (FACTS, Committed("it is there"), "it is done (it is there); run `journal replay --apply`"),
        (FACTS, Rejected("it is not"), "it is not done (it is not); run `journal replay --apply`"),
        (None, Committed("it is there"), "it is done"),
        (None, Rejected("it is not"), "it is not done"),
        (FACTS, Pending("phase 2 of 5"), "still under way"),
        (None, Pending("a child process lives"), "still under way"),
        (FACTS, Unobserved("the hive is busy"), "could not look just now"),
        (replace(FACTS, now_unix_ms=2_000), Unknown("x"), "ends it as stale by rule"),
        (replace(FACTS, admission=Admission.FORGOTTEN), Unknown("x"), "ends it as stale by rule"),
        (replace(FACTS, visible=Visible.OTHER), Unknown("x"), "the root already shows a result"),
    ],
)
def test_what_still_ends_without_anybody_is_refused(
    tmp_path: Path, facts: Facts | None, outcome: Outcome, words: str
) -> None:
    assert words in _refusal(_left(tmp_path, State.EXECUTING), facts, outcome)


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        (FACTS, Unknown("absent")),
        (replace(FACTS, expires_unix_ms=None), Unknown("absent")),
        (replace(FACTS, admission=Admission.UNCERTAIN), Unknown("absent")),
        (None, Unknown("no plan to observe")),
        (None, Unobserved("no hive")),
        (None, None),
    ],
)
def test_what_nobody_can_tell_may_be_resolved(
    tmp_path: Path, facts: Facts | None, outcome: Outcome | None
) -> None:
    require_resolvable(_left(tmp_path, State.EXECUTING), facts, outcome)


LINES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=48)


@given(said=st.sampled_from(SAID), by=LINES, reason=LINES, observed=LINES, unix_ms=st.integers(0, 2**63 - 1))
def test_no_word_ever_confirms_and_every_word_comes_back(
    said: Said, by: str, reason: str, observed: str, unix_ms: int
) -> None:
    word = Resolution(said=said, by=by, reason=reason, observed=observed, unix_ms=unix_ms)
    result = word.result()
    assert result.outcome == {"done": "stale", "not-done": "rejected"}[said]
    assert result.message.isascii()
    again = decode_record(encode_record(_settled(result)))
    assert again == _settled(result)
    assert resolution_of(again) == word


def _settled(result: ProviderResult) -> Record:
    walked = (State.PREPARED, State.EXECUTING, State.PERSISTED)
    return Record(
        key=KEY,
        family=FAMILY,
        epoch=1,
        sequence=1,
        request=REQUEST,
        state=State.PERSISTED,
        history=tuple(HistoryEntry(state=state, unix_ms=1, boot_id="b", agent="a") for state in walked),
        plan=PLAN,
        result=result,
        staged=STAGED,
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"said": "perhaps"}, "done or not-done"),
        ({"reason": ""}, "reason must have 1..=192 bytes"),
        ({"reason": "x" * 193}, "reason must have 1..=192 bytes"),
        ({"reason": "two\nlines"}, "reason must not hold control characters"),
        ({"reason": "\udcff"}, "lone surrogate"),
        ({"by": ""}, "by must have 1..=192 bytes"),
        ({"by": "\x1b[31m"}, "by must not hold control characters"),
        ({"unix_ms": -1}, "unix_ms must be in"),
        ({"observed": ""}, "observed must have"),
    ],
)
def test_a_word_is_one_line_of_a_bounded_size(change: dict[str, Any], words: str) -> None:
    with pytest.raises(RecordError, match=words):
        replace(WORD, **change)


@pytest.mark.parametrize(
    "evidence",
    [
        {},
        {"by_id": "id=lease-1"},
        {"resolved_by_hand": None},
        {"resolved_by_hand": {"as": "done"}},
        {"resolved_by_hand": {"as": ["done"], "by": "a", "reason": "b", "unix_ms": 1, "observed": "c"}},
        {"resolved_by_hand": {"as": "maybe", "by": "a", "reason": "b", "unix_ms": 1, "observed": "c"}},
        {"resolved_by_hand": {"as": "done", "by": 3, "reason": "b", "unix_ms": 1, "observed": "c"}},
    ],
)
def test_what_is_no_word_is_not_shown_as_one(evidence: dict[str, JsonValue]) -> None:
    result = ProviderResult(outcome="rejected", message="no", evidence=evidence)
    assert resolution_of(_settled(result)) is None


class MortalFs(RealFs):
    """The real file system; the process dies before or after the n-th call that changes anything."""

    CHANGES = ("create_new", "write", "fsync", "rename", "rename_new", "fsync_dir", "unlink")

    def __init__(self) -> None:
        self.calls = 0
        self.at: int | None = None
        self.after = False
        for name in self.CHANGES:
            setattr(self, name, self._mortal(getattr(self, name)))

    def _mortal(self, call: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object) -> object:
            dies = self.at is not None and self.calls == self.at
            self.calls += 1
            if dies and not self.after:
                raise Killed
            answer = call(*arguments)
            if dies:
                raise Killed
            return answer

        return called


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("said", SAID)
def test_death_leaves_it_unresolved_or_resolved_as_a_whole(tmp_path: Path, said: Said, after: bool) -> None:
    word = replace(WORD, said=said)
    seen: set[State] = set()
    at, finished = 0, False
    while not finished:
        path = tmp_path / str(at)
        fs = MortalFs()
        store = open_store(path, fs=fs)
        walk(store, upto=State.EXECUTING)
        executing = store.records[KEY]
        fs.calls, fs.at, fs.after = 0, at, after
        try:
            store.settle(KEY, word.result(), STAGED)
            finished = True
        except Killed:
            pass
        fs.at = None
        store.close()
        with open_store(path) as again:
            assert not again.quarantined
            record = again.records[KEY]
            seen.add(record.state)
            if record.state is State.EXECUTING:
                assert record == executing
                again.settle(KEY, word.result(), STAGED)
                record = again.records[KEY]
            assert resolution_of(record) == word
            assert record.staged == STAGED
            again.publish(KEY)
            again.finish(KEY)
            assert resolution_of(again.records[KEY]) == word
        at += 1
    assert at > 4
    assert seen == {State.EXECUTING, State.PERSISTED}
