"""Collectors in threads: one that hangs holds up no other, and what it brings too late is thrown away."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import pytest

from ticket_agent.protocol.collecting import CollectContext, CollectError, Deadline, fact
from ticket_agent.protocol.snapshot import SnapshotEntry, UnavailableReason
from ticket_agent.snapshots.looking import MOST_ENTRIES, Look, look_once
from ticket_agent.snapshots.lookouts import Lookouts

PATIENCE_S = 20.0


def a_look(provider: str, now_s: float = 0.0, life_s: float = 10.0) -> tuple[Look, CollectContext]:
    look = Look(provider=provider, observed_unix_ms=1, began_s=now_s, deadline_s=now_s + life_s)
    return look, CollectContext(deadline=Deadline(look.deadline_s, lambda: now_s))


def quick(_: CollectContext) -> list[SnapshotEntry]:
    return [fact("a", 1)]


class Gate:
    """A collector that waits until the test lets it go."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)

    def __call__(self, context: CollectContext) -> list[SnapshotEntry]:
        self.entered.release()
        assert self.open.wait(PATIENCE_S)
        return [fact("late", 1)]


def test_a_look_comes_back() -> None:
    lookouts = Lookouts({"quick": quick})
    assert lookouts.idle("quick")
    look, context = a_look("quick")
    lookouts.start(look, context)
    (seen,) = lookouts.wait(PATIENCE_S)
    assert (seen.look, seen.entries, seen.reason) == (look, (fact("a", 1),), None)
    assert lookouts.idle("quick")


def test_one_that_hangs_holds_up_no_other() -> None:
    gate = Gate()
    lookouts = Lookouts({"gate": gate, "quick": quick})
    lookouts.start(*a_look("gate"))
    assert gate.entered.acquire(timeout=PATIENCE_S)
    for _ in range(3):
        lookouts.start(*a_look("quick"))
        (seen,) = lookouts.wait(PATIENCE_S)
        assert seen.look.provider == "quick"
    assert not lookouts.idle("gate")
    gate.open.set()
    (seen,) = lookouts.wait(PATIENCE_S)
    assert seen.look.provider == "gate"


def test_an_overdue_look_is_told_once_and_then_forgotten() -> None:
    gate = Gate()
    lookouts = Lookouts({"gate": gate})
    look, context = a_look("gate")
    lookouts.start(look, context)
    assert lookouts.next_deadline_s() == 10.0
    assert lookouts.overdue(9.999) == []
    assert lookouts.overdue(10.0) == [look]
    assert lookouts.overdue(11.0) == []
    assert lookouts.next_deadline_s() is None
    assert lookouts.stuck() == {"gate": look}
    gate.open.set()
    deadline = time.monotonic() + PATIENCE_S
    while not lookouts.idle("gate") and time.monotonic() < deadline:
        assert lookouts.wait(PATIENCE_S) == [], "what comes too late is thrown away"
    assert lookouts.stuck() == {}
    lookouts.start(*a_look("gate"))
    (seen,) = lookouts.wait(PATIENCE_S)
    assert seen.entries == (fact("late", 1),)


def test_a_wait_can_be_ended() -> None:
    lookouts = Lookouts({})
    lookouts.wake()
    assert lookouts.wait(PATIENCE_S) == []


def _collect_error(_: CollectContext) -> Any:
    raise CollectError("no such thing\n" + "x" * 900, UnavailableReason.NOT_SUPPORTED)


def _error(_: CollectContext) -> Any:
    raise ValueError("wrong")


def _generator(_: CollectContext) -> Any:
    yield fact("a", 1)
    raise OSError("half way")


def _nothing(_: CollectContext) -> Any:
    return None


@pytest.mark.parametrize(
    ("collector", "reason", "detail"),
    [
        (_collect_error, UnavailableReason.NOT_SUPPORTED, "no such thing x"),
        (_error, UnavailableReason.SOURCE_FAILED, "ValueError: wrong"),
        (_generator, UnavailableReason.SOURCE_FAILED, "OSError: half way"),
        (_nothing, UnavailableReason.SOURCE_FAILED, "TypeError: "),
        (lambda _: [("a", "1")], UnavailableReason.SOURCE_FAILED, "TypeError: a collector returns entries"),
    ],
)
def test_whatever_is_raised_becomes_a_reason(collector: Any, reason: UnavailableReason, detail: str) -> None:
    look, context = a_look("x")
    seen = look_once(collector, context, look)
    assert (seen.reason, seen.entries) == (reason, ())
    assert seen.detail.startswith(detail)
    assert len(seen.detail.encode()) <= 200


class Liar(str):
    """Says that it is shorter than it is."""

    __slots__ = ()

    def __len__(self) -> int:
        return 1


class Panic(BaseException):
    """As extension modules raise it."""


@pytest.mark.parametrize("error", [KeyboardInterrupt("now"), SystemExit(3), Panic("now"), GeneratorExit()])
def test_nothing_that_is_raised_ends_the_lookout(error: BaseException) -> None:
    def fails(_: CollectContext) -> Any:
        raise error

    lookouts = Lookouts({"x": fails})
    for _ in range(2):
        lookouts.start(*a_look("x"))
        (seen,) = lookouts.wait(PATIENCE_S)
        assert seen.reason is UnavailableReason.SOURCE_FAILED
        assert seen.detail.startswith(type(error).__name__)


def test_a_text_that_lies_about_itself_is_no_text() -> None:
    look, context = a_look("x")
    seen = look_once(lambda _: [SnapshotEntry("a", Liar("x" * 5000))], context, look)
    assert (seen.reason, seen.entries) == (UnavailableReason.SOURCE_FAILED, ())


def test_a_password_in_a_url_is_not_told() -> None:
    def fails(_: CollectContext) -> Any:
        raise OSError("GET https://user:hunter2@host/path failed")

    look, context = a_look("x")
    assert look_once(fails, context, look).detail == "OSError: GET https://host/path failed"


@pytest.mark.parametrize("collector", [quick, _collect_error, _error])
def test_what_comes_at_the_deadline_comes_too_late(collector: Any) -> None:
    look = Look(provider="x", observed_unix_ms=1, began_s=0.0, deadline_s=10.0)
    seen = look_once(collector, CollectContext(deadline=Deadline(10.0, lambda: 10.0)), look)
    assert (seen.reason, seen.entries) == (UnavailableReason.TIMED_OUT, ())
    assert seen.detail == "no answer within 10.0 s"


def test_a_collector_without_an_end_is_not_listened_to_for_ever() -> None:
    look, context = a_look("endless")
    seen = look_once(lambda _: (fact(f"n/{number}", 0) for number in itertools.count()), context, look)
    assert len(seen.entries) == MOST_ENTRIES
