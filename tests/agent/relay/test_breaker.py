"""The circuit to one peer, with a clock that the test owns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.agent.relay.breaker import FIRST_PAUSE_S, LONGEST_PAUSE_S, THRESHOLD, Breaker, Circuit


def after(failures: int, now: float = 100.0) -> Breaker:
    breaker = Breaker()
    for _ in range(failures):
        breaker = breaker.failed(now, "no route")
    return breaker


@pytest.mark.parametrize(
    ("failures", "later_s", "circuit", "allows"),
    [
        (0, 0.0, Circuit.CLOSED, True),
        (1, 0.0, Circuit.CLOSED, False),
        (1, FIRST_PAUSE_S, Circuit.CLOSED, True),
        (2, FIRST_PAUSE_S, Circuit.CLOSED, False),
        (2, 2 * FIRST_PAUSE_S, Circuit.CLOSED, True),
        (THRESHOLD, 0.9, Circuit.OPEN, False),
        (THRESHOLD, 4 * FIRST_PAUSE_S, Circuit.HALF_OPEN, True),
        (40, LONGEST_PAUSE_S - 0.1, Circuit.OPEN, False),
        (40, LONGEST_PAUSE_S, Circuit.HALF_OPEN, True),
    ],
)
def test_the_table(failures: int, later_s: float, circuit: Circuit, allows: bool) -> None:
    breaker = after(failures)
    assert breaker.circuit(100.0 + later_s) is circuit
    assert breaker.allows(100.0 + later_s) is allows


@given(st.integers(0, 60))
def test_a_contact_that_works_closes_it_whatever_was_before(failures: int) -> None:
    assert after(failures).worked() == Breaker()


@given(st.integers(1, 300))
def test_pauses_grow_and_stay_bounded(failures: int) -> None:
    before, now = after(failures), after(failures + 1)
    assert before.not_before <= now.not_before <= 100.0 + LONGEST_PAUSE_S


def test_a_failed_probe_opens_it_again() -> None:
    breaker = after(THRESHOLD)
    probed_at = breaker.not_before
    assert breaker.circuit(probed_at) is Circuit.HALF_OPEN
    assert breaker.failed(probed_at, "still none").circuit(probed_at) is Circuit.OPEN
