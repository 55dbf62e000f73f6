"""Which processes a journal saw: their order, their ends, and what nobody can know."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from past_records import BOOT, agent, past

from ticket_agent.journal.lives import End, lives_of, name_of
from ticket_agent.journal.starts import Start


def start(number: int, at: int, *, stopped: int | None = None, boot: str = BOOT) -> Start:
    return Start(pid=number, boot_id=boot, started_unix_ms=at, agent=agent(number), stopped_unix_ms=stopped)


def test_a_restart_within_one_boot_is_seen_by_the_start_id() -> None:
    lives, names = lives_of([past([10, 20, 50], [agent(1), agent(1), agent(2)])], (), running=False)
    assert [(life.number, life.agent, life.rebooted) for life in lives] == [
        (1, agent(1), False),
        (2, agent(2), False),
    ]
    assert names == {(BOOT, agent(1)): 1, (BOOT, agent(2)): 2}
    assert [(life.first_unix_ms, life.last_unix_ms, life.entries) for life in lives] == [
        (10, 20, 2),
        (50, 50, 1),
    ]


def test_another_boot_is_a_reboot_of_the_host() -> None:
    record = past([10, 20, 50], [agent(1), agent(1), agent(2)], boots=["a", "a", "b"])
    assert [life.rebooted for life in lives_of([record], (), running=False)[0]] == [False, True]


@pytest.mark.parametrize(
    ("starts", "running", "ends"),
    [
        ((), False, [End.UNSAID, End.UNSAID]),
        ((start(1, 5), start(2, 40)), True, [End.CRASHED, End.RUNNING]),
        ((start(1, 5), start(2, 40)), False, [End.CRASHED, End.UNSAID]),
        ((start(1, 5, stopped=30), start(2, 40, stopped=60)), False, [End.STOPPED, End.STOPPED]),
        # Older lines were dropped from the file: how the first one ended is not known.
        ((start(2, 40, stopped=60),), False, [End.UNSAID, End.STOPPED]),
        # A running process without a line of its own says nothing about the ones in the records.
        ((), True, [End.UNSAID, End.UNSAID]),
    ],
)
def test_how_a_process_ended(starts: tuple[Start, ...], running: bool, ends: list[End]) -> None:
    record = past([10, 20, 50], [agent(1), agent(1), agent(2)])
    assert [life.end for life in lives_of([record], starts, running=running)[0]] == ends


def test_a_start_that_wrote_no_record_is_known_from_the_file() -> None:
    record = past([10, 20, 50], [agent(1), agent(1), agent(3)])
    lives, names = lives_of([record], (start(1, 5), start(2, 30), start(3, 40)), running=False)
    assert [(life.first_unix_ms, life.entries, life.end) for life in lives] == [
        (5, 2, End.CRASHED),
        (30, 0, End.CRASHED),
        (40, 1, End.UNSAID),
    ]
    assert names[BOOT, agent(3)] == 3


def test_starts_without_a_start_id_stay_apart_and_are_not_mixed_up_with_a_version() -> None:
    record = past([10, 20], ["0.1.0", "0.1.0"])
    old = [Start(pid=number, boot_id=BOOT, started_unix_ms=at) for number, at in ((1, 5), (2, 30))]
    lives, names = lives_of([record], old, running=False)
    assert [life.agent for life in lives] == [None, "0.1.0", None]
    assert [life.is_one_process for life in lives] == [True, False, True]
    assert names == {(BOOT, "0.1.0"): 2}


def test_histories_order_lives_where_the_clock_lies() -> None:
    """The host's clock went back an hour at the restart."""
    record = past([5_000, 5_001, 1_000], [agent(1), agent(1), agent(2)])
    lives, _ = lives_of([record], (), running=False)
    assert [life.agent for life in lives] == [agent(1), agent(2)]


def test_versions_that_took_turns_are_ordered_by_the_clock_and_nothing_hangs() -> None:
    record = past([1, 2, 3], ["1.0", "2.0", "1.0"])
    lives, names = lives_of([record], (), running=False)
    assert [life.agent for life in lives] == ["1.0", "2.0"]
    assert set(names.values()) == {1, 2}


@given(
    st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5).map(sorted), max_size=8),
    st.lists(st.integers(0, 1_000), min_size=7, max_size=7),
)
def test_no_order_contradicts_a_history(walks: list[list[int]], clocks: list[int]) -> None:
    """Whatever the clocks say, a life never comes before one that it followed in some record."""
    records = [
        past([clocks[life] for life in walk], [agent(life) for life in walk], sequence=number)
        for number, walk in enumerate(walks, start=1)
    ]
    lives, names = lives_of(records, (), running=False)
    assert [life.number for life in lives] == list(range(1, len(lives) + 1))
    assert sorted(names.values()) == list(range(1, len(lives) + 1))
    for record in records:
        numbers = [names[name_of(entry)] for entry in record.history]
        assert all(before <= after for before, after in pairwise(numbers))
