"""What changed between two observations, and which numbers nobody saw."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshot_shelf import PROVIDER, SOURCE, Shelf, record

from ticket_agent.protocol.snapshot import UnavailableReason
from ticket_agent.snapshots import HostObservation, SnapshotReader, changes_between
from ticket_agent.snapshots.changes import Step
from ticket_agent.snapshots.sequence_account import SequenceAccount


def observed(
    sequence: int = 1, entries: dict[str, str] | None = None, reason: UnavailableReason | None = None
) -> HostObservation:
    shelf = Shelf()
    shelf.put(record(sequence, entries, reason=reason))
    return SnapshotReader(shelf, shelf.enrolment).read(PROVIDER, SOURCE)


def test_the_same_record_twice_is_no_change() -> None:
    change = changes_between(observed(4), observed(4))
    assert (change.step, change.between, change.entries) == (Step.SAME, 0, ())
    assert not change.availability_changed


@pytest.mark.parametrize(
    ("before", "after", "step", "between"),
    [(4, 5, Step.FORWARD, 0), (4, 9, Step.FORWARD, 4), (4, 3, Step.RESTARTED, 0), (9, 1, Step.RESTARTED, 0)],
)
def test_how_the_sequence_went_on(before: int, after: int, step: Step, between: int) -> None:
    change = changes_between(observed(before), observed(after))
    assert (change.step, change.between) == (step, between)


def test_another_epoch_is_a_restart_and_other_bytes_under_one_number_are_neither() -> None:
    again = changes_between(observed(4), replace(observed(5), epoch=2))
    assert again.step is Step.RESTARTED
    rewritten = changes_between(observed(4, {"a": "1"}), observed(4, {"a": "2"}))
    assert (rewritten.step, len(rewritten.entries)) == (Step.REWRITTEN, 1)


def test_two_pairs_are_not_compared() -> None:
    with pytest.raises(ValueError, match="take two of one pair"):
        changes_between(observed(), replace(observed(), provider="docker"))


def test_entries_that_come_go_and_change() -> None:
    change = changes_between(
        observed(1, {"a": "1", "b": "2", "c": "3"}), observed(2, {"a": "1", "b": "4", "d": "5"})
    )
    assert [(one.path, one.before, one.after) for one in change.entries] == [
        ("b", "2", "4"),
        ("c", "3", None),
        ("d", None, "5"),
    ]
    assert not change.availability_changed


@pytest.mark.parametrize(
    ("before", "after", "members"),
    [
        ('{"a":1,"b":2}', '{"a":1,"b":3}', [("b", "2", "3")]),
        ('{"a":1}', '{"b":1}', [("a", "1", None), ("b", None, "1")]),
        ('{"a":1}', '{"a":true}', [("a", "1", "true")]),
        ('{"a":1}', '{"a":1.0}', [("a", "1", "1.0")]),
        ('{"a":{"x":1}}', '{"a":{"x":2}}', [("a", '{"x":1}', '{"x":2}')]),
        ('{"a":null}', "{}", [("a", "null", None)]),
        ('{"a":1,"b":2}', '{"b":2,"a":1}', []),
        ("[1,2,3]", "[1,5,3]", [("[1]", "2", "5")]),
        ("[1]", "[1,[2]]", [("[1]", None, "[2]")]),
        ("[1,2]", "[1]", [("[1]", "2", None)]),
        ("[1]", '{"a":1}', []),
        ('"text"', '"other"', []),
        ("not json", '{"a":1}', []),
        ('{"a":1,"a":2}', '{"a":1}', []),
        ("", "[]", []),
        ("[" * 500, "[]", []),
        ('{"é":"\u2028"}', '{"é":"x"}', [("é", '"\u2028"', '"x"')]),
    ],
)
def test_what_changed_inside_a_value(
    before: str, after: str, members: list[tuple[str, str | None, str | None]]
) -> None:
    (entry,) = changes_between(observed(1, {"a": before}), observed(2, {"a": after})).entries
    assert (entry.before, entry.after) == (before, after)
    assert [(one.name, one.before, one.after) for one in entry.members] == members


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        (None, UnavailableReason.SOURCE_FAILED, True),
        (UnavailableReason.SOURCE_FAILED, None, True),
        (UnavailableReason.SOURCE_FAILED, UnavailableReason.TIMED_OUT, True),
        (UnavailableReason.NOT_ENABLED, UnavailableReason.NOT_ENABLED, False),
        (None, None, False),
    ],
)
def test_whether_the_state_is_known_is_part_of_the_change(
    before: UnavailableReason | None, after: UnavailableReason | None, changed: bool
) -> None:
    change = changes_between(observed(1, reason=before), observed(2, reason=after))
    assert change.availability_changed is changed
    assert (change.reason_before, change.reason_after) == (before, after)
    gone = [(entry.before is None, entry.after is None) for entry in change.entries]
    assert gone == ([] if (before is None) == (after is None) else [(before is not None, after is not None)])


PATHS = st.sampled_from(["a", "b", "b/c", "links/10", "links/2"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=6,
).map(lambda value: json.dumps(value, separators=(",", ":")))
ENTRIES = st.dictionaries(PATHS, VALUES, max_size=4)


@given(before=ENTRIES, after=ENTRIES)
def test_the_changes_lead_from_the_one_to_the_other(before: dict[str, str], after: dict[str, str]) -> None:
    entries = changes_between(observed(1, before), observed(2, after)).entries
    built = dict(before)
    for one in entries:
        assert built.get(one.path) == one.before
        if one.after is None:
            del built[one.path]
        else:
            built[one.path] = one.after
        for member in one.members:
            assert member.before != member.after
    assert built == after


# -- numbers that nobody saw ---------------------------------------------------------------------------------


def _missed(*rounds: list[int]) -> list[int]:
    account = SequenceAccount()
    found = []
    for sequences in rounds:
        for sequence in sequences:
            account.saw(sequence)
        found.append(account.round_over())
    return found


@pytest.mark.parametrize(
    ("rounds", "missed"),
    [
        ([[5, 9, 7]], [0]),
        ([[5, 9, 7], [5, 9, 7], [5, 9, 7]], [0, 0, 0]),
        ([[1, 2], [3, 4], [5, 6], [7, 8]], [0, 0, 0, 0]),
        ([[1, 2], [3, 5], [4, 6], [7, 8]], [0, 0, 0, 0]),
        ([[1, 2], [3, 5], [6, 5], [6, 5]], [0, 0, 1, 0]),
        ([[1], [9], [9]], [0, 0, 7]),
        ([[1], [2**64 - 1], [2**64 - 1]], [0, 0, 2**64 - 3]),
        ([[], [], [3], [4], [4]], [0, 0, 0, 0, 0]),
        ([[], [3], [9], [9]], [0, 0, 0, 5]),
        ([[5], [], [8], []], [0, 0, 0, 2]),
    ],
)
def test_a_number_is_given_up_one_round_after_a_higher_one(
    rounds: list[list[int]], missed: list[int]
) -> None:
    assert _missed(*rounds) == missed


@given(
    st.lists(st.lists(st.integers(1, 60), max_size=4), min_size=1, max_size=12),
)
def test_the_account_balances(rounds: list[list[int]]) -> None:
    account = SequenceAccount()
    seen: set[int] = set()
    missed, began = 0, 0
    for sequences in [*rounds, [], []]:
        for sequence in sequences:
            account.saw(sequence)
            seen.add(sequence)
        missed += account.round_over()
        began = began or max(seen, default=0)
    # Whatever came out of its round's order counts at most once, as seen or as missed.
    assert 0 <= missed <= max(seen, default=0) - began
    assert missed >= max(seen, default=0) - began - sum(1 for one in seen if one > began)
