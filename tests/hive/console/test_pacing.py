from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.hive.console.handshake import FailureKind, HandshakeFailure
from ticket_agent.hive.console.pacing import Pacing, retry_delay


def failure(kind: FailureKind, delay_s: float | None = None) -> HandshakeFailure:
    return HandshakeFailure(kind=kind, why="-", delay_s=delay_s)


def test_back_off_doubles_to_two_seconds_and_ends_with_work() -> None:
    pacing = Pacing()
    waits = []
    for _ in range(6):
        waits.append(pacing.wait(100.0))
        pacing.failed(100.0)
    assert waits == pytest.approx([0.0, 0.2, 0.4, 0.8, 1.6, 2.0])
    pacing.worked()
    assert pacing.wait(100.0) == 0.0
    pacing.failed(100.0)
    assert pacing.wait(100.0) == pytest.approx(0.2)


def test_time_that_passed_elsewhere_counts_as_waiting() -> None:
    pacing = Pacing()
    pacing.failed(100.0)
    assert pacing.wait(100.15) == pytest.approx(0.05)
    assert pacing.wait(150.0) == 0.0


def test_a_thousand_failures_do_not_overflow() -> None:
    pacing = Pacing()
    for _ in range(1100):
        pacing.failed(0.0)
    assert pacing.wait(0.0) == 2.0


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        (FailureKind.AUTH_REFUSED, 3),
        (FailureKind.SILENT_CLOSE, 3),
        (FailureKind.ATTACH_REFUSED, 2),
    ],
)
def test_refusals_are_rationed_per_minute(kind: FailureKind, most: int) -> None:
    pacing = Pacing()
    for second in range(most):
        assert pacing.blocked(float(second)) is None
        pacing.refused(kind, float(second))
    assert pacing.blocked(10.0) == pytest.approx(50.0)
    assert pacing.blocked(59.5) == pytest.approx(0.5)
    assert pacing.blocked(60.0) is None
    pacing.refused(kind, 60.0)
    assert pacing.blocked(60.0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "kind", [FailureKind.NO_ANSWER, FailureKind.UNAVAILABLE, FailureKind.THROTTLED, FailureKind.VIOLATION]
)
def test_other_failures_are_not_rationed(kind: FailureKind) -> None:
    pacing = Pacing()
    for _ in range(10):
        pacing.refused(kind, 0.0)
    assert pacing.blocked(0.0) is None


@given(st.lists(st.tuples(st.floats(0, 30), st.sampled_from(list(FailureKind))), max_size=40))
def test_never_more_than_three_refused_auths_in_any_minute(attempts: list[tuple[float, FailureKind]]) -> None:
    pacing = Pacing()
    now = 0.0
    made: list[float] = []
    for pause, kind in attempts:
        now += pause
        if pacing.blocked(now) is None:
            pacing.refused(kind, now)
            if kind in {FailureKind.AUTH_REFUSED, FailureKind.SILENT_CLOSE}:
                made.append(now)
    assert all(len([at for at in made if start <= at < start + 60.0]) <= 3 for start in made)


def test_a_console_that_asks_for_time_gets_it() -> None:
    pacing = Pacing()
    pacing.failed(100.0, delay_s=90.0)
    assert pacing.throttled(100.0) == 90.0
    assert pacing.throttled(189.0) == pytest.approx(1.0)
    assert pacing.throttled(190.0) is None
    assert Pacing().throttled(0.0) is None


@pytest.mark.parametrize(
    ("kind", "delay_s", "retries", "expected"),
    [
        (FailureKind.SILENT_CLOSE, None, 0, 0.05),
        (FailureKind.SILENT_CLOSE, None, 1, 1.2),
        (FailureKind.SILENT_CLOSE, None, 2, None),
        (FailureKind.THROTTLED, 0.24, 0, 0.24),
        (FailureKind.THROTTLED, 0.24, 1, None),
        (FailureKind.THROTTLED, 2.5, 0, None),
        (FailureKind.AUTH_REFUSED, None, 0, None),
        (FailureKind.ATTACH_REFUSED, None, 0, None),
        (FailureKind.NO_ANSWER, None, 0, None),
        (FailureKind.UNAVAILABLE, None, 0, None),
        (FailureKind.VIOLATION, None, 0, None),
    ],
)
def test_only_what_may_help_is_retried(
    kind: FailureKind, delay_s: float | None, retries: int, expected: float | None
) -> None:
    assert retry_delay(failure(kind, delay_s), retries) == expected
