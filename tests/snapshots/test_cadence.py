"""When providers are due: laws that hold whatever is published, fails or has to wait."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.snapshots.cadence import (
    DEFAULT_INTERVALS_MS,
    FIRST_BACK_OFF_S,
    MOST_BACK_OFF_S,
    Cadence,
    interval_ms,
)

NAMES = ("systemd", "docker", "network")
INTERVALS = st.fixed_dictionaries({name: st.integers(1, 30_000).map(lambda ms: ms / 1000) for name in NAMES})
STEPS = st.lists(
    st.tuples(
        st.floats(0, 40, allow_nan=False),
        st.sampled_from(["published", "failed", "hold", "nothing"]),
        st.sampled_from(NAMES),
    ),
    max_size=40,
)


def test_everybody_is_due_at_first_in_the_order_of_naming() -> None:
    cadence = Cadence({"b": 1.0, "a": 2.0}, 5.0)
    assert cadence.providers == ("b", "a")
    assert cadence.due(4.9) == []
    assert cadence.due(5.0) == ["b", "a"]
    assert cadence.next_s(["a", "b"]) == 5.0


def test_the_longest_overdue_comes_first() -> None:
    cadence = Cadence(dict.fromkeys(NAMES, 1.0), 0.0)
    for now, name in enumerate(reversed(NAMES)):
        cadence.published(name, float(now))
    assert cadence.due(10.0) == ["network", "docker", "systemd"]
    assert cadence.due(2.5) == ["network", "docker"]


@given(INTERVALS, STEPS)
def test_who_is_due_is_due_until_something_is_noted(
    intervals: dict[str, float], steps: list[tuple[float, str, str]]
) -> None:
    now = 0.0
    cadence = Cadence(intervals, now)
    for passed, what, name in steps:
        now += passed
        if what == "published":
            cadence.published(name, now)
            assert name not in cadence.due(now)
        elif what == "failed":
            pause = cadence.failed(name, now)
            assert 0 < pause <= MOST_BACK_OFF_S
            assert name not in cadence.due(now)
        elif what == "hold":
            pause = cadence.hold(now)
            assert FIRST_BACK_OFF_S <= pause <= MOST_BACK_OFF_S
            assert cadence.held(now)
            assert cadence.due(now) == []
        for provider in NAMES:
            at = cadence.next_s([provider])
            # Nobody is forgotten, and nobody is due before that.
            assert provider in cadence.due(max(at, now))
            assert at <= now + max(MOST_BACK_OFF_S, *intervals.values())
            assert at <= now or provider not in cadence.due(now)
        due = cadence.due(now + 100)
        assert sorted(due) == sorted(NAMES)


@given(INTERVALS, STEPS)
def test_one_providers_failures_do_not_move_another(
    intervals: dict[str, float], steps: list[tuple[float, str, str]]
) -> None:
    alone, beside = Cadence(intervals, 0.0), Cadence(intervals, 0.0)
    now = 0.0
    for passed, what, name in steps:
        now += passed
        if name == "docker" and what == "failed":
            beside.failed(name, now)
        elif name != "docker" and what == "published":
            alone.published(name, now)
            beside.published(name, now)
        for other in ("systemd", "network"):
            assert alone.next_s([other]) == beside.next_s([other])


@given(st.integers(1, 30_000), st.integers(1, 40))
def test_pauses_double_up_to_a_bound_and_end_with_a_success(ms: int, count: int) -> None:
    cadence = Cadence({"a": ms / 1000}, 0.0)
    pauses = [cadence.failed("a", 0.0) for _ in range(count)]
    holds = [cadence.hold(0.0) for _ in range(count)]
    for found, first in ((pauses, ms / 1000), (holds, FIRST_BACK_OFF_S)):
        assert found[0] == min(first, MOST_BACK_OFF_S)
        for before, after in pairwise(found):
            assert before <= after <= min(MOST_BACK_OFF_S, before * 2)
    cadence.published("a", 0.0)
    assert cadence.failed("a", 0.0) == pauses[0]
    assert cadence.hold(0.0) == holds[0]


def test_a_hold_ends_at_its_time() -> None:
    cadence = Cadence({"a": 5.0}, 0.0)
    assert cadence.hold(10.0) == 1.0
    assert cadence.due(10.999) == []
    assert cadence.next_s(["a"]) == 11.0
    assert cadence.due(11.0) == ["a"]
    assert cadence.next_s([]) == 11.0


@pytest.mark.parametrize(
    ("provider", "chosen", "ms"),
    [
        *[(provider, {}, ms) for provider, ms in DEFAULT_INTERVALS_MS.items()],
        ("network", {}, 1000),
        ("network", {"systemd": 5}, 1000),
        ("systemd", {"systemd": 5}, 5),
    ],
)
def test_an_interval_is_chosen_or_usual(provider: str, chosen: dict[str, int], ms: int) -> None:
    assert interval_ms(provider, chosen) == ms
