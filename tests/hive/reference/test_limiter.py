from __future__ import annotations

from ticket_agent.hive.reference.limiter import AttachLimiter


class Seconds:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_each_failure_in_a_row_doubles_the_wait_and_success_resets_it() -> None:
    clock = Seconds()
    limiter = AttachLimiter(clock)
    assert limiter.refusal() is None
    for delay in (250, 500):
        limiter.failed()
        assert limiter.refusal() == f"detail=throttled delay_ms={delay}"
        clock.now += delay / 1000 - 0.01
        assert limiter.refusal() == "detail=throttled delay_ms=10"
        clock.now += 0.01
        assert limiter.refusal() is None
    limiter.succeeded()
    clock.now += 61
    limiter.failed()
    assert limiter.refusal() == "detail=throttled delay_ms=250"


def test_three_failures_within_a_minute_lock_everybody_out() -> None:
    clock = Seconds()
    limiter = AttachLimiter(clock)
    for _ in range(3):
        limiter.failed()
        clock.now += 20
    assert limiter.refusal() == "detail=rate-limited delay_ms=70000"
    clock.now += 70
    assert limiter.refusal() is None


def test_failures_spread_over_more_than_a_minute_do_not() -> None:
    clock = Seconds()
    limiter = AttachLimiter(clock)
    for _ in range(5):
        limiter.failed()
        clock.now += 31
        assert limiter.refusal() is None


def test_the_throttle_stops_doubling() -> None:
    clock = Seconds()
    limiter = AttachLimiter(clock)
    for _ in range(12):
        limiter.failed()
        clock.now += 1000
    limiter.failed()
    assert limiter.refusal() == "detail=throttled delay_ms=64000"
