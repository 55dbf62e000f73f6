"""Publishing a staged result: always the same bytes, never sent blindly, given up only for good cause."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from agent_support import Bench, agent_on
from hive_support import STATUS, ManualClock, raw_grant, running_hive

from ticket_agent.agent.streams import ResultStreams
from ticket_agent.hive.reference import (
    DEFAULT,
    STRICT_A,
    Fault,
    FaultKind,
    Faults,
    HiveProfile,
    ReferenceHive,
)
from ticket_agent.journal.transitions import State
from ticket_agent.protocol.namespace import Acked, AppendAnswer, HiveUnreachableError, Unknown
from ticket_agent.protocol.paths import TicketPaths
from ticket_agent.protocol.result import build_result
from ticket_agent.protocol.spec import parse_spec

if TYPE_CHECKING:
    from pathlib import Path

KEY = ("t1", "key-t1")
WITHOUT_CURRENT = replace(DEFAULT, name="without-current", current=False)
PROFILES = [DEFAULT, WITHOUT_CURRENT, STRICT_A]
PASSING = {
    "busy": "ERR ECHO reason=busy detail=busy path={path} error=busy",
    "denied": "ERR ECHO reason=policy detail=denied path={path} error=EPERM",
    "buffer-full": "ERR ECHO reason=quota detail=buffer-full path={path} error=buffer full",
    "limit": "ERR ECHO reason=quota detail=rate path={path} error=ELIMIT",
    "no-such-path": "ERR ECHO reason=policy detail=invalid-path path={path} error=invalid path",
    "grammar": "ERR PARSE reason=syntax detail=not today",
    "odd": "ERR ECHO reason=moonphase path={path}",
}
INVALID = "ERR ECHO reason=policy detail=invalid-payload path={path} error=invalid payload"


def is_result(line: str) -> bool:
    return '"state":"succeeded"' in line


def _refusing(text: str) -> Fault:
    return Fault(kind=FaultKind.ERR, verb="ECHO", prefix=STATUS, predicate=is_result, text=text)


def _submit(hive: ReferenceHive) -> None:
    hive.submit(raw_grant(hive, hive.spawn_worker("worker-gpu"), "t1", "lease-1"))


def _passes(bench: Bench, count: int = 5) -> None:
    for _ in range(count):
        bench.hurry()
        bench.passes(1)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
@pytest.mark.parametrize("text", PASSING.values(), ids=PASSING)
def test_refusals_that_may_pass_are_retried_with_the_same_bytes(
    tmp_path: Path, text: str, profile: HiveProfile
) -> None:
    clock = ManualClock()
    with running_hive(profile, clock=clock, faults=Faults(_refusing(text))) as (hive, server):
        _submit(hive)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            _passes(bench)
            record = bench.record("t1")
            assert record.state is State.PERSISTED
            assert "not published yet" in bench.waiting(record.key)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            _passes(bench)
            server.faults.clear()
            bench.settle()
        assert record.staged is not None
        assert hive.terminal_lines(KEY) == [record.staged.line]
        assert hive.effect_count("grant", "lease-1") == 1


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_an_invalid_payload_that_is_visible_all_the_same_is_published(
    tmp_path: Path, profile: HiveProfile
) -> None:
    clock = ManualClock()
    with running_hive(profile, clock=clock) as (hive, server):

        def applied_all_the_same(line: str) -> bool:
            if is_result(line):
                hive.echo(STATUS, line)
            return is_result(line)

        server.faults.add(
            Fault(kind=FaultKind.ERR, verb="ECHO", predicate=applied_all_the_same, text=INVALID)
        )
        _submit(hive)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            record = bench.record("t1")
        assert record.withdrawn is None
        assert record.staged is not None
        assert hive.terminal_lines(KEY) == [record.staged.line]
        assert server.faults.struck(FaultKind.ERR) == 1


def test_an_invalid_payload_is_no_end_while_root_knows_the_admission(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(clock=clock, faults=Faults(_refusing(INVALID))) as (hive, server):
        _submit(hive)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            _passes(bench)
            assert bench.record("t1").state is State.PERSISTED
            assert "root refuses the result" in bench.waiting(bench.record("t1").key)
            server.faults.clear()
            bench.settle()
        assert hive.admission_of("t1").outcome == "confirmed"


@pytest.mark.parametrize("profile", [WITHOUT_CURRENT, STRICT_A], ids=lambda profile: profile.name)
def test_an_invalid_payload_ends_it_where_root_cannot_be_asked(tmp_path: Path, profile: HiveProfile) -> None:
    clock = ManualClock()
    with running_hive(profile, clock=clock, faults=Faults(_refusing(INVALID))) as (hive, server):
        _submit(hive)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            record = bench.record("t1")
        assert record.withdrawn is not None
        assert "root refuses the result" in record.withdrawn
        assert record.result is not None
        assert record.result.outcome == "confirmed"
        assert hive.terminal_lines(KEY) == []


def test_a_retired_admission_ends_the_publication(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(clock=clock, faults=Faults(_refusing(PASSING["busy"]))) as (hive, server):
        _submit(hive)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            _passes(bench)
            hive._root.admissions._window.clear()
            server.faults.clear()
            bench.settle()
            record = bench.record("t1")
        assert record.withdrawn == "root no longer knows this admission"
        assert hive.effect_count("grant", "lease-1") == 1


@pytest.mark.parametrize(
    "kind",
    [FaultKind.DROP_AFTER, FaultKind.DROP_BEFORE, FaultKind.GARBAGE],
)
@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_a_lost_answer_is_read_back_before_anything_is_sent_again(
    tmp_path: Path, kind: FaultKind, profile: HiveProfile
) -> None:
    clock = ManualClock()
    lost = Fault(kind=kind, verb="ECHO", prefix=STATUS, predicate=is_result, nth=1)
    with running_hive(profile, clock=clock, faults=Faults(lost)) as (hive, server):
        sent: list[str] = []
        server.faults.on_applied(lambda path, line: sent.append(line) if is_result(line) else None)
        _submit(hive)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
        assert len(sent) == 1
        assert hive.terminal_lines(KEY) == sent


def test_a_result_that_fell_out_of_the_log_meanwhile_is_acknowledged_again(tmp_path: Path) -> None:
    """Root knows the digest; it answers OK and appends nothing."""
    clock = ManualClock()
    lost = Fault(kind=FaultKind.DROP_AFTER, verb="ECHO", prefix=STATUS, predicate=is_result, nth=1)
    with running_hive(clock=clock, faults=Faults(lost)) as (hive, server):

        def evict(path: str, line: str) -> None:
            if is_result(line):
                hive.slide(path, 10)

        server.faults.on_applied(evict)
        _submit(hive)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            assert bench.record("t1").withdrawn is None
        assert len(hive.terminal_lines(KEY)) == 1


# -- the streams themselves


class Streams:
    """A namespace of two logs in memory, whose session and answers the test decides."""

    def __init__(self) -> None:
        self.session = 1
        self.lines: dict[str, list[str]] = {"/host/tickets/status": [], "/host/tickets/deadletter": []}
        self.reads = 0
        self.appends: list[tuple[str, str]] = []
        self.answer: AppendAnswer = Acked()
        self.reconnects_before_append = 0

    def read(self, path: str) -> list[str]:
        self.reads += 1
        return list(self.lines[path])

    def append(self, path: str, line: str, *, session: int | None = None) -> AppendAnswer:
        self.session += self.reconnects_before_append
        self.reconnects_before_append = 0
        if session is not None and session != self.session:
            raise HiveUnreachableError("the session is over")
        self.appends.append((path, line))
        return self.answer

    def ls(self, path: str) -> list[str]:
        raise AssertionError("nothing here asks for this")

    def tail(self, path: str) -> list[str]:
        raise AssertionError("nothing here asks for this")

    def close(self) -> None:
        raise AssertionError("nothing here asks for this")


def _line(state: str = "succeeded", ticket: str = "t1") -> str:
    raw = {"schema": "host-ticket/v1", "id": ticket, "idempotency_key": "k", "action": "systemd.stop"}
    spec = parse_spec(json.dumps(raw).encode(), source="raw")
    return build_result(spec, state=state, message="m", max_line_bytes=2048).decode()


PATHS = TicketPaths("/host")


def test_streams_are_read_once_per_session() -> None:
    namespace = Streams()
    streams = ResultStreams(namespace, PATHS)
    for _ in range(3):
        streams.refresh()
    assert namespace.reads == 2
    namespace.session = 2
    streams.refresh()
    streams.refresh()
    assert namespace.reads == 4
    streams.refresh(force=True)
    assert namespace.reads == 6


def test_what_is_no_result_is_counted_and_skipped() -> None:
    namespace = Streams()
    lines = namespace.lines["/host/tickets/status"]
    lines += ["", "{", "null", _line("running"), _line(), '{"schema":"host-ticket-result/v3"}']
    namespace.lines["/host/tickets/deadletter"] += [_line("failed", "t2"), "junk"]
    streams = ResultStreams(namespace, PATHS)
    streams.refresh()
    streams.refresh(force=True)
    assert streams.malformed == 5
    assert [(path, result.state) for path, result in streams.terminal(("t1", "k"))] == [
        (PATHS.status, "succeeded")
    ]
    assert [result.state for _, result in streams.terminal(("t2", "k"))] == ["failed"]
    assert streams.terminal(("t3", "k")) == []


def test_a_visible_line_is_not_sent_again_however_it_is_written() -> None:
    namespace = Streams()
    namespace.lines[PATHS.status].append(json.dumps(json.loads(_line()), indent=None))
    publication = ResultStreams(namespace, PATHS).publish(PATHS.status, _line())
    assert publication.visible
    assert namespace.appends == []


def test_the_same_line_in_the_other_stream_does_not_count() -> None:
    namespace = Streams()
    namespace.lines[PATHS.deadletter].append(_line())
    assert ResultStreams(namespace, PATHS).publish(PATHS.status, _line()).visible
    assert len(namespace.appends) == 1


def test_a_lost_answer_makes_the_next_publication_read_first() -> None:
    namespace = Streams()
    streams = ResultStreams(namespace, PATHS)
    namespace.answer = Unknown("cut")
    assert not streams.publish(PATHS.status, _line()).visible
    namespace.lines[PATHS.status].append(_line())
    assert streams.publish(PATHS.status, _line()).why == "already visible"
    assert len(namespace.appends) == 1


def test_nothing_is_published_in_a_session_that_was_not_read_in() -> None:
    namespace = Streams()
    streams = ResultStreams(namespace, PATHS)
    streams.refresh()
    namespace.reconnects_before_append = 1
    with pytest.raises(HiveUnreachableError):
        streams.publish(PATHS.status, _line())
    assert namespace.appends == []
    assert streams.publish(PATHS.status, _line()).visible
    assert namespace.reads == 4
