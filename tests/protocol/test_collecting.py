from __future__ import annotations

from itertools import count

import pytest

from ticket_agent.protocol.collecting import CollectContext, CollectError, Collector, Deadline, fact
from ticket_agent.protocol.errors import JsonError
from ticket_agent.protocol.snapshot import DEFAULT_BOUNDS, SnapshotEntry, UnavailableReason


def test_a_deadline_passes_on_its_own_clock() -> None:
    moments = iter([10.0, 10.5, 11.999, 12.0, 12.0])
    deadline = Deadline.after(2.0, lambda: next(moments))
    assert deadline.at == 12.0
    assert deadline.left_s() == 1.5
    assert (deadline.passed(), deadline.passed()) == (False, True)
    with pytest.raises(CollectError) as late:
        deadline.left_s()
    assert late.value.reason is UnavailableReason.TIMED_OUT


def test_what_a_collector_cannot_show_is_its_sources_failure_unless_it_says_otherwise() -> None:
    failed = CollectError("the bus does not answer")
    assert (failed.reason, failed.detail) == (UnavailableReason.SOURCE_FAILED, "the bus does not answer")
    assert str(failed) == failed.detail
    off = CollectError("no address is set", UnavailableReason.NOT_ENABLED)
    assert off.reason is UnavailableReason.NOT_ENABLED


def test_a_context_without_more_has_the_default_bounds_and_no_environment() -> None:
    ticks = count()
    context = CollectContext(deadline=Deadline.after(5.0, lambda: float(next(ticks))))
    assert (context.bounds, dict(context.environ)) == (DEFAULT_BOUNDS, {})


def test_a_plain_function_is_a_collector() -> None:
    def collect(context: CollectContext) -> list[SnapshotEntry]:
        return [fact("host/name", context.environ["NAME"])]

    collector: Collector = collect
    context = CollectContext(deadline=Deadline.after(1.0, lambda: 0.0), environ={"NAME": "é"})
    assert collector(context) == [SnapshotEntry("host/name", '"é"')]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("docker-engine-api", '"docker-engine-api"'),
        ({"b": 1, "a": [None, True, 2.5]}, '{"b":1,"a":[null,true,2.5]}'),
        ("\u2028\x7f\n\x01é", '"\u2028\x7f\\n\\u0001é"'),
        ([], "[]"),
        (None, "null"),
        (2**64 - 1, "18446744073709551615"),
    ],
)
def test_a_fact_is_compact_json_in_the_order_it_has(value: object, text: str) -> None:
    assert fact("a", value) == SnapshotEntry("a", text)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("-inf")], "\ud800", {"\udfff": 1}])
def test_what_has_no_json_is_no_fact(value: object) -> None:
    with pytest.raises(JsonError):
        fact("a", value)
