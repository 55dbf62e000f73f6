"""Looking at the request logs: few commands, never half of a look, nothing twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ticket_agent.agent.feed import CALLERS_PERIOD_S, MAX_LOOKS, Feed
from ticket_agent.protocol.namespace import (
    AppendAnswer,
    HiveError,
    HiveRefusedError,
    HiveUnreachableError,
    HiveViolationError,
    Refusal,
    RefusalKind,
)
from ticket_agent.protocol.paths import TicketPaths
from ticket_agent.protocol.retention import Retention, encode_retention

if TYPE_CHECKING:
    from collections.abc import Callable

PATHS = TicketPaths("/host")


class Logs:
    """The two request logs of a hive in memory, with or without retention offsets."""

    def __init__(self, *, retention: bool) -> None:
        self.session = 1
        self.has_retention = retention
        self.logs: dict[str, list[str]] = {"spec": [], "spec.snapshot": []}
        self.dropped = {"spec": 0, "spec.snapshot": 0}
        self.reads: list[str] = []
        self.before_read: Callable[[str], None] = lambda leaf: None
        self.malformed = False

    def ls(self, path: str) -> list[str]:
        assert path == PATHS.directory
        names = ["spec", "spec.snapshot", "status", "deadletter"]
        return [*names, "retention", "current"] if self.has_retention else names

    def read(self, path: str) -> list[str]:
        leaf = path.rsplit("/", 1)[-1]
        self.before_read(leaf)
        self.reads.append(leaf)
        if leaf == "retention":
            return ["rubbish"] if self.malformed else [self._offsets(name) for name in self.logs]
        if leaf not in self.logs:
            refusal = Refusal(kind=RefusalKind.INVALID_PATH, text="ERR CAT detail=invalid-path")
            raise HiveRefusedError("CAT", path, refusal)
        return list(self.logs[leaf])

    def _offsets(self, leaf: str) -> str:
        size = sum(len(line) + 1 for line in self.logs[leaf])
        base = self.dropped[leaf]
        return encode_retention(
            Retention(
                path=leaf,
                base=base,
                next=base + size,
                retained_bytes=size,
                retained_wire_lines=len(self.logs[leaf]),
                dropped_lines=0,
                dropped_bytes=base,
            )
        )

    def drop(self, leaf: str) -> None:
        if self.logs[leaf]:
            self.dropped[leaf] += len(self.logs[leaf].pop(0)) + 1

    def commands(self) -> list[str]:
        seen, self.reads = self.reads, []
        return seen

    def append(self, path: str, line: str, *, session: int | None = None) -> AppendAnswer:
        raise AssertionError("nothing here asks for this")

    def tail(self, path: str) -> list[str]:
        raise AssertionError("nothing here asks for this")

    def close(self) -> None:
        raise AssertionError("nothing here asks for this")


class Tick:
    """Monotonic seconds; each look of these tests comes long after the one before."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _feed(logs: Logs, tick: Tick | None = None) -> Feed:
    return Feed(logs, PATHS, monotonic=tick or Tick())


def test_an_idle_look_costs_one_command_with_offsets() -> None:
    logs = Logs(retention=True)
    logs.logs["spec.snapshot"].append("one")
    feed = _feed(logs)
    first = feed.look()
    assert first is not None
    assert first.admitted == ("one",)
    logs.commands()
    for _ in range(3):
        assert feed.look() is None
    assert logs.commands() == ["retention"] * 3


def test_only_the_log_that_moved_is_read_again() -> None:
    logs, tick = Logs(retention=True), Tick()
    feed = _feed(logs, tick)
    feed.look()
    logs.commands()
    logs.logs["spec.snapshot"].append("admitted")
    look = feed.look()
    assert look is not None
    assert look.admitted == ("admitted",)
    assert logs.commands() == ["retention", "spec.snapshot", "retention"]
    tick.now += CALLERS_PERIOD_S
    logs.logs["spec"].append("called")
    look = feed.look()
    assert look is not None
    assert look.callers == ("called",)
    assert "spec.snapshot" not in logs.commands()


def test_the_callers_log_is_read_in_peace_but_is_not_forgotten() -> None:
    logs, tick = Logs(retention=True), Tick()
    feed = _feed(logs, tick)
    feed.look()
    logs.logs["spec"].append("called")
    assert feed.look() is None
    tick.now += CALLERS_PERIOD_S
    look = feed.look()
    assert look is not None
    assert look.callers == ("called",)
    assert feed.look() is None


def test_without_offsets_content_tells() -> None:
    logs = Logs(retention=False)
    feed = _feed(logs)
    assert feed.look() is not None
    assert feed.look() is None
    logs.logs["spec"].append("called")
    look = feed.look()
    assert look is not None
    assert (look.callers, look.retention) == (("called",), {})
    assert not feed.features().current


def test_a_log_that_moves_while_it_is_read_is_read_again() -> None:
    logs = Logs(retention=True)
    logs.logs["spec.snapshot"] += ["one", "two"]
    moves = iter(["append", "drop"])

    def move(leaf: str) -> None:
        kind = next(moves, "") if leaf == "spec.snapshot" else ""
        if kind == "append":
            logs.logs[leaf].append("three")
        elif kind == "drop":
            logs.drop(leaf)

    logs.before_read = move
    look = _feed(logs).look()
    assert look is not None
    assert look.admitted == ("two", "three")
    assert look.retention["spec.snapshot"].base == 4
    assert look.retention["spec.snapshot"].next == 14


def test_a_log_that_never_holds_still_is_left_for_the_next_pass() -> None:
    logs = Logs(retention=True)

    def grow(leaf: str) -> None:
        if leaf == "spec.snapshot":
            logs.logs[leaf].append("x")

    logs.before_read = grow
    feed = _feed(logs)
    with pytest.raises(HiveUnreachableError, match="next pass"):
        feed.look()
    assert logs.commands().count("spec.snapshot") == MAX_LOOKS
    logs.before_read = lambda leaf: None
    assert feed.look() is not None


@pytest.mark.parametrize("retention", [True, False])
def test_a_new_session_makes_a_full_look(retention: bool) -> None:
    logs = Logs(retention=retention)
    feed = _feed(logs)
    feed.look()
    assert feed.session == 1
    logs.session = 2
    logs.commands()
    assert feed.look() is not None
    assert {"spec", "spec.snapshot"} <= set(logs.commands())
    assert feed.session == 2
    assert feed.look() is None


def test_a_session_that_changes_during_a_look_does_not_count() -> None:
    logs = Logs(retention=True)
    logs.logs["spec.snapshot"].append("old life")
    lives = iter(["new life"])

    def reboot(leaf: str) -> None:
        if leaf == "spec.snapshot" and (line := next(lives, None)):
            logs.session += 1
            logs.logs["spec.snapshot"] = [line]

    logs.before_read = reboot
    feed = _feed(logs)
    look = feed.look()
    assert look is not None
    assert look.admitted == ("new life",)
    assert feed.session == 2


def test_a_root_that_was_replaced_is_asked_again_what_it_offers() -> None:
    logs = Logs(retention=True)
    feed = _feed(logs)
    assert feed.features().retention
    logs.has_retention = False
    assert feed.features().retention
    logs.session = 2
    assert not feed.features().retention


def test_forgetting_shows_everything_again() -> None:
    logs = Logs(retention=True)
    feed = _feed(logs)
    feed.look()
    feed.forget()
    assert feed.look() is not None


def test_malformed_offsets_are_a_violation_of_the_hive() -> None:
    """Not an error of ours: the daemon waits it out like any other."""
    logs = Logs(retention=True)
    logs.malformed = True
    with pytest.raises(HiveViolationError, match="retention"):
        _feed(logs).look()


def test_a_hive_without_tickets_is_named() -> None:
    logs = Logs(retention=False)
    del logs.logs["spec.snapshot"]
    with pytest.raises(HiveError, match="does this hive offer host tickets"):
        _feed(logs).look()


MOVES = st.lists(st.sampled_from(["admit", "call", "drop", "reconnect", "tick", "look"]), max_size=30)


@settings(max_examples=150, deadline=None)
@given(moves=MOVES, retention=st.booleans())
def test_the_last_look_is_what_the_logs_hold_once_they_rest(moves: list[str], retention: bool) -> None:
    logs, tick = Logs(retention=retention), Tick()
    feed = _feed(logs, tick)
    shown: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    for number, move in enumerate(moves):
        if move == "admit":
            logs.logs["spec.snapshot"].append(f"a{number}")
        elif move == "call":
            logs.logs["spec"].append(f"c{number}")
        elif move == "drop":
            logs.drop("spec.snapshot")
        elif move == "reconnect":
            logs.session += 1
        elif move == "tick":
            tick.now += CALLERS_PERIOD_S
        elif (look := feed.look()) is not None:
            shown = (look.admitted, look.callers)
    tick.now += CALLERS_PERIOD_S
    if (look := feed.look()) is not None:
        shown = (look.admitted, look.callers)
    assert shown == (tuple(logs.logs["spec.snapshot"]), tuple(logs.logs["spec"]))
    assert feed.look() is None
