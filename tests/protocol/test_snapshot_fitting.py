from __future__ import annotations

import pytest
from collector_support import LONGEST_PROVIDER, LONGEST_SOURCE, encoded
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.protocol.collecting import CollectError, fact
from ticket_agent.protocol.errors import JsonError
from ticket_agent.protocol.snapshot import DEFAULT_BOUNDS, SnapshotBounds, SnapshotEntry, UnavailableReason
from ticket_agent.protocol.snapshot_enrolment import MAX_CONSOLE_PATH, SnapshotPaths
from ticket_agent.protocol.snapshot_fitting import FRAME_BYTES, Room, entry_bytes, fit

BOUNDS = st.builds(
    SnapshotBounds,
    max_bytes=st.integers(1, 8192),
    max_entries=st.integers(1, 64),
    max_value_bytes=st.integers(1, 4096),
)
ENTRIES = st.lists(
    st.builds(
        SnapshotEntry,
        st.sampled_from([*(f"a/{number}" for number in range(40)), "", "../b", "_c", "x" * 193]),
        st.one_of(st.text(max_size=40), st.text('"\\\n\0é\ud800', max_size=1500)),
    ),
    max_size=80,
)


def omitted(number: int) -> SnapshotEntry:
    return fact("omitted", {"facts": number})


def test_the_frame_of_a_record_is_within_what_is_kept_for_it() -> None:
    shortest_mount = SnapshotPaths(directory=f"/h/snapshots/{LONGEST_PROVIDER}/{LONGEST_SOURCE}")
    assert len(shortest_mount.snapshot) > MAX_CONSOLE_PATH - 2
    assert len(encoded([])) <= FRAME_BYTES


def test_an_entry_is_measured_as_it_stands_in_the_record() -> None:
    entry = fact("a/b", {"quote": '"', "é": "\n"})
    assert len(encoded([entry])) - len(encoded([])) == entry_bytes(entry)
    assert len(encoded([entry, SnapshotEntry("c", "")])) - len(encoded([])) == (
        entry_bytes(entry) + 1 + entry_bytes(SnapshotEntry("c", ""))
    )


def test_a_lone_surrogate_has_no_size() -> None:
    with pytest.raises(JsonError):
        entry_bytes(SnapshotEntry("a", "\ud800"))


def test_what_fits_is_there_without_a_word_about_omissions() -> None:
    entries, left_out = fit([fact("source", "x")], [fact("a", 1)], DEFAULT_BOUNDS, omitted=omitted)
    assert entries == [fact("source", "x"), fact("a", 1)]
    assert left_out == 0


def test_the_most_important_facts_stay_and_the_rest_is_counted() -> None:
    facts = [fact(f"units/{number}", "u") for number in range(64)]
    entries, left_out = fit([fact("source", "x")], facts, DEFAULT_BOUNDS, omitted=omitted)
    assert entries == [fact("source", "x"), omitted(2), *facts[:62]]
    assert left_out == 2
    assert encoded(entries)


def test_the_last_fact_needs_no_room_for_a_count_that_is_not_there() -> None:
    facts = [fact(f"units/{number}", "u") for number in range(63)]
    entries, left_out = fit([fact("source", "x")], facts, DEFAULT_BOUNDS, omitted=omitted)
    assert (len(entries), left_out) == (64, 0)


def test_one_long_fact_does_not_keep_shorter_ones_out() -> None:
    entries, left_out = fit([], [fact("a", "x" * 1025), fact("b", 1)], DEFAULT_BOUNDS, omitted=omitted)
    assert entries == [omitted(1), fact("b", 1)]
    assert left_out == 1


def test_facts_that_were_left_out_earlier_count() -> None:
    entries, left_out = fit([], [fact("a", 1)], DEFAULT_BOUNDS, omitted=omitted, already_out=7)
    assert entries == [omitted(7), fact("a", 1)]
    assert left_out == 7


def test_without_an_entry_for_it_the_number_is_only_returned() -> None:
    entries, left_out = fit([], [fact("..", 1), fact("b", 1)], DEFAULT_BOUNDS)
    assert (entries, left_out) == ([fact("b", 1)], 1)


@pytest.mark.parametrize(
    "entry",
    [
        SnapshotEntry("", "1"),
        SnapshotEntry("_a", "1"),
        SnapshotEntry("a/../b", "1"),
        SnapshotEntry("a@b", "1"),
        SnapshotEntry("a", "\0"),
        SnapshotEntry("a", "\ud800"),
        SnapshotEntry("a", "é" * 513),
        SnapshotEntry("taken", "1"),
    ],
)
def test_what_no_record_may_hold_has_no_room(entry: SnapshotEntry) -> None:
    room = Room(DEFAULT_BOUNDS)
    assert room.take(fact("taken", 1))
    before = (room.entries, room.bytes)
    assert not room.take(fact("other", 1), entry)
    assert (room.entries, room.bytes) == before
    assert room.take(fact("other", 1))


def test_bounds_below_an_empty_record_are_told() -> None:
    with pytest.raises(CollectError, match="an empty record does not fit"):
        fit([], [], SnapshotBounds(max_bytes=200))


@pytest.mark.parametrize(
    "bounds",
    [SnapshotBounds(max_bytes=330), SnapshotBounds(max_entries=1), SnapshotBounds(max_value_bytes=2)],
)
def test_bounds_that_hold_not_even_what_is_required_are_told(bounds: SnapshotBounds) -> None:
    with pytest.raises(CollectError, match=r"raise ecosystem\.host\.snapshots") as caught:
        fit([fact("a", 1), fact("source", "x")], [], bounds)
    assert caught.value.reason is UnavailableReason.SOURCE_FAILED


@given(required=ENTRIES, optional=ENTRIES, bounds=BOUNDS, already_out=st.integers(0, 2000))
def test_whatever_is_returned_fits_and_nothing_is_lost(
    required: list[SnapshotEntry], optional: list[SnapshotEntry], bounds: SnapshotBounds, already_out: int
) -> None:
    try:
        entries, left_out = fit(required[:3], optional, bounds, omitted=omitted, already_out=already_out)
    except CollectError:
        return
    assert encoded(entries, bounds)
    assert entries[: len(required[:3])] == required[:3]
    notes = 1 if left_out else 0
    assert len(entries) - len(required[:3]) - notes + left_out == len(optional) + already_out
    assert (omitted(left_out) in entries) == bool(left_out)
