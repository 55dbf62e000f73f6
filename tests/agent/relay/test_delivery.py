"""Delivery when something goes wrong: what arrived is not sent again, what is unknown is said."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hive_support import DEADLETTER, SPEC, STATUS, ManualClock, kick_out, running_hive
from relay_support import arrived, journal_key, peers, perform, relaying, run_until, ticket

from ticket_agent.agent.relay.peer import Stage
from ticket_agent.hive.reference import DEFAULT, Fault, FaultKind
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from pathlib import Path

    from agent_support import Bench

    from ticket_agent.hive.reference import ReferenceHive

KEY = ("t1", "key-t1")
BUSY = "ERR {verb} reason=busy detail=busy path={path} error=busy"
DENIED = "ERR {verb} reason=policy detail=denied path={path} error=EPERM"
FULL = "ERR {verb} reason=quota detail=buffer-full path={path} error=buffer full"
INVALID = "ERR {verb} reason=policy detail=invalid-payload path={path} error=invalid payload"


def sends(bench: Bench) -> int:
    found = bench.agent.relay.peers["hive-b"].deliveries.get(journal_key())
    return found.attempts if found is not None else 0


def is_refused(bench: Bench) -> bool:
    """Whether the peer's last word about the ticket is a refusal that has arrived."""
    found = bench.agent.relay.peers["hive-b"].deliveries.get(journal_key())
    return found is not None and found.refusal is not None and found.stage is Stage.FREE


@pytest.mark.parametrize(
    ("kind", "text", "attempts"),
    [
        (FaultKind.DROP_BEFORE, None, 2),
        (FaultKind.DROP_AFTER, None, 1),
        (FaultKind.GARBAGE, None, 1),
        (FaultKind.SILENT, None, 1),
        (FaultKind.SWALLOW, None, 2),
        (FaultKind.DELAY, None, 1),
        (FaultKind.ERR, BUSY, 2),
        (FaultKind.ERR, DENIED, 2),
        (FaultKind.ERR, FULL, 2),
    ],
    ids=lambda value: str(value)[:24],
)
def test_it_arrives_once_whatever_becomes_of_the_first_answer(
    tmp_path: Path, kind: FaultKind, text: str | None, attempts: int
) -> None:
    with running_hive() as (hive, server), peers(answer_s=0.6) as other:
        peer = other.hives["hive-b"]
        other.servers["hive-b"].faults.add(Fault(kind=kind, verb="ECHO", prefix=SPEC, nth=1, text=text))
        hive.echo(SPEC, ticket())
        with relaying(server, tmp_path / "state", other.plan()) as bench:
            run_until(bench, lambda: bench.events("relay-delivered"))
            # A session that ended before the line left counts as an attempt as well.
            assert sends(bench) >= attempts
            perform(peer)
            run_until(bench, lambda: not bench.store.open_records())
        assert len(other.taken["hive-b"]) == 1
        assert [spec.id for spec in arrived(peer)] == ["somebody-elses", "t1"]
        assert len(hive.terminal_lines(KEY)) == 1


def test_a_definite_refusal_ends_it_as_failed(tmp_path: Path) -> None:
    with running_hive() as (hive, server), peers() as other:
        fault = Fault(kind=FaultKind.ERR, verb="ECHO", prefix=SPEC, text=INVALID)
        other.servers["hive-b"].faults.add(fault)
        hive.echo(SPEC, ticket())
        with relaying(server, tmp_path / "state", other.plan()) as bench:
            run_until(bench, lambda: bench.store.records and not bench.store.open_records())
            record = bench.store.records[journal_key()]
        assert record.result is not None
        assert record.result.outcome == "rejected"
        assert "invalid-payload" in record.result.message
        assert other.taken["hive-b"] == []
        (line,) = hive.cat(DEADLETTER)
        assert json.loads(line)["state"] == "failed"


def test_on_an_empty_peer_a_lost_line_stays_uncertain_and_is_not_sent_again(tmp_path: Path) -> None:
    """The peer could have taken it and rebooted; only its result, or an operator, ends that."""
    with running_hive() as (hive, server), peers(used=False) as other:
        fault = Fault(kind=FaultKind.DROP_BEFORE, verb="ECHO", prefix=SPEC, nth=1)
        other.servers["hive-b"].faults.add(fault)
        hive.echo(SPEC, ticket())
        hive.echo(SPEC, ticket("t2"))
        with relaying(server, tmp_path / "state", other.plan()) as bench:
            run_until(bench, lambda: [spec.id for spec in arrived(other.hives["hive-b"])] == ["t2"])
            record = bench.store.records[journal_key()]
            assert record.outcome_unknown
            assert record.uncertain is not None
            assert "restart cannot be excluded" in record.uncertain.detail
            # Somebody brings it there by hand: its result still comes back.
            going = str(record.plan.intent["line"]) if record.plan is not None else ""
            other.hives["hive-b"].echo(SPEC, going)
            perform(other.hives["hive-b"])
            run_until(bench, lambda: not bench.store.open_records())
        assert len(hive.terminal_lines(KEY)) == 1


def test_a_peer_that_restarts_with_a_ticket_leaves_its_outcome_unknown(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server), peers() as other:
        peer = other.hives["hive-b"]
        hive.echo(SPEC, ticket(expires_unix_ms=clock.now_ms + 60_000))
        with relaying(server, tmp_path / "state", other.plan(), clock=clock) as bench:
            run_until(bench, lambda: bench.events("relay-delivered"))
            peer.reboot()
            other.servers["hive-b"].kick()
            run_until(bench, lambda: bench.store.records[journal_key()].outcome_unknown)
            assert len(other.taken["hive-b"]) == 1
            clock.advance(60_000)
            run_until(bench, lambda: not bench.store.open_records())
            record = bench.store.records[journal_key()]
        assert record.result is not None
        assert record.result.outcome == "stale"
        assert "not repeated" in record.result.message
        assert len(other.taken["hive-b"]) == 1


def test_a_peer_that_restarts_before_it_took_anything_gets_it_afterwards(tmp_path: Path) -> None:
    """What it had shown before is gone, but the ticket certainly never left: nothing is uncertain."""
    with running_hive() as (hive, server), peers() as other:
        peer = other.hives["hive-b"]
        busy = Fault(kind=FaultKind.ERR, verb="ECHO", prefix=SPEC, text=BUSY)
        other.servers["hive-b"].faults.add(busy)
        hive.echo(SPEC, ticket())
        with relaying(server, tmp_path / "state", other.plan()) as bench:
            # Its refusal is here, and without another pass nothing is sent: what is on its way when a peer
            # goes may have been taken.
            run_until(bench, lambda: is_refused(bench))
            peer.reboot()
            kick_out(other.servers["hive-b"])
            other.servers["hive-b"].faults.clear()
            run_until(bench, lambda: bench.events("relay-delivered"))
            looks = bench.agent.relay.peers["hive-b"].started_looks
            run_until(bench, lambda: bench.agent.relay.peers["hive-b"].started_looks > looks + 1)
            assert not bench.store.records[journal_key()].outcome_unknown
            perform(peer)
            run_until(bench, lambda: not bench.store.open_records())
        assert len(other.taken["hive-b"]) == 1
        assert len(hive.terminal_lines(KEY)) == 1


def test_what_expires_before_any_contact_ends_without_one(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server), peers() as other:
        hive.echo(SPEC, ticket(expires_unix_ms=clock.now_ms + 1))
        other.servers["hive-b"].stop()
        with relaying(server, tmp_path / "state", other.plan(), clock=clock) as bench:
            bench.passes(1)
            clock.advance(1)
            run_until(bench, lambda: not bench.store.open_records())
            record = bench.store.records[journal_key()]
        assert record.plan is None
        assert record.result is not None
        assert record.result.outcome == "stale"
        assert len(hive.cat(DEADLETTER)) == 1


def test_tickets_arrive_in_order_and_a_waiting_result_holds_nobody_up(tmp_path: Path) -> None:
    with running_hive() as (hive, server), peers() as other:
        names = [f"t{number}" for number in range(6)]
        for name in names:
            hive.echo(SPEC, ticket(name))
        fault = Fault(kind=FaultKind.DROP_BEFORE, verb="ECHO", prefix=SPEC, every=3)
        other.servers["hive-b"].faults.add(fault)
        with relaying(server, tmp_path / "state", other.plan()) as bench:
            run_until(bench, lambda: len(arrived(other.hives["hive-b"])) == 7)
            assert [spec.id for spec in arrived(other.hives["hive-b"])][1:] == names
            assert len(bench.store.open_records()) == 6
            perform(other.hives["hive-b"])
            run_until(bench, lambda: not bench.store.open_records())
        assert len(hive.cat(STATUS)) == 6


def test_what_the_peer_shows_already_is_not_sent(tmp_path: Path) -> None:
    with running_hive() as (hive, server), peers() as other:
        hive.echo(SPEC, ticket())
        with relaying(server, tmp_path / "one", other.plan()) as bench:
            run_until(bench, lambda: bench.events("relay-delivered"))
        # Another journal, as after a disk was lost.
        with relaying(server, tmp_path / "two", other.plan()) as bench:
            run_until(bench, lambda: bench.events("relay-delivered"))
            perform(other.hives["hive-b"])
            run_until(bench, lambda: not bench.store.open_records())
        assert len(other.taken["hive-b"]) == 1
        assert len(hive.terminal_lines(KEY)) == 1


def test_a_terminal_result_that_this_hive_shows_is_enough(tmp_path: Path) -> None:
    with running_hive() as (hive, server), peers() as other:
        hive.echo(SPEC, ticket())
        perform(hive, message="by whoever")
        with relaying(server, tmp_path / "state", other.plan()) as bench:
            run_until(bench, lambda: bench.store.records and not bench.store.open_records())
            record = bench.store.records[journal_key()]
        assert record.result is not None
        assert record.result.message == "by whoever"
        assert other.taken["hive-b"] == []
        assert len(hive.terminal_lines(KEY)) == 1


def test_one_pair_for_two_hives_is_two_tickets_with_two_results(tmp_path: Path) -> None:
    with running_hive() as (hive, server), peers("hive-b", "hive-c") as other:
        hive.echo(SPEC, ticket())
        hive.echo(SPEC, ticket(target="hive-c"))
        with relaying(server, tmp_path / "state", other.plan()) as bench:
            run_until(bench, lambda: len(bench.events("relay-delivered")) == 2)
            perform(other.hives["hive-b"], message="b")
            run_until(bench, lambda: len(bench.store.open_records()) == 1)
            server.kick()
            run_until(bench, lambda: bench.namespace.session > 1)
            for _ in range(5):
                bench.hurry()
                bench.passes(1)
            assert bench.store.records[journal_key(target="hive-c")].state is State.EXECUTING
            perform(other.hives["hive-c"], "failed", message="c")
            run_until(bench, lambda: not bench.store.open_records())
        told = [json.loads(line) for line in [*hive.cat(STATUS), *hive.cat(DEADLETTER)]]
        assert {(one["target_hive"], one["state"], one["message"]) for one in told} == {
            ("hive-b", "succeeded", "b"),
            ("hive-c", "failed", "c"),
        }


def test_pending_tickets_outlive_a_reboot_of_this_hive(tmp_path: Path) -> None:
    with running_hive() as (hive, server), peers() as other:
        hive.echo(SPEC, ticket())
        with relaying(server, tmp_path / "state", other.plan()) as bench:
            run_until(bench, lambda: bench.events("relay-delivered"))
            hive.reboot()
            server.kick()
            hive.echo(SPEC, ticket("t2"))
            run_until(bench, lambda: len(arrived(other.hives["hive-b"])) == 3)
            perform(other.hives["hive-b"])
            run_until(bench, lambda: not bench.store.open_records())
        assert {json.loads(line)["id"] for line in hive.cat(STATUS)} == {"t1", "t2"}


def test_a_gateway_may_still_hold_what_was_not_answered(tmp_path: Path) -> None:
    """Where a new session proves nothing, absence counts only once the line cannot come any more."""
    with running_hive() as (hive, server), peers() as other:
        fault = Fault(kind=FaultKind.DROP_BEFORE, verb="ECHO", prefix=SPEC, nth=1)
        other.servers["hive-b"].faults.add(fault)
        hive.echo(SPEC, ticket())
        settle_s, later_s = 3600.0, [0.0]

        def monotonic() -> float:
            return time.monotonic() + later_s[0]

        plan = other.plan(settle_s=settle_s)
        with relaying(server, tmp_path / "state", plan, monotonic=monotonic) as bench:
            waits = "may still hold it"
            run_until(bench, lambda: waits in bench.waiting(journal_key()))
            for _ in range(20):
                bench.hurry()
                bench.passes(1)
            assert not bench.events("relay-delivered")
            assert other.taken["hive-b"] == []
            later_s[0] = settle_s
            run_until(bench, lambda: bench.events("relay-delivered"))
        assert len(other.taken["hive-b"]) == 1


def storm(peer: ReferenceHive) -> None:
    """More results than the peer's log keeps, the first of them ours."""
    perform(peer)
    for number in range(12):
        peer.echo(SPEC, ticket(f"storm-{number}", target=None, source=None))
        perform(peer)


def test_results_that_a_peer_dropped_unseen_are_told(tmp_path: Path) -> None:
    small = replace(DEFAULT, log_frames=4)
    with running_hive() as (hive, server), peers(profile=small) as other:
        hive.echo(SPEC, ticket())
        peer = other.hives["hive-b"]
        with relaying(server, tmp_path / "state", other.plan()) as bench:
            run_until(bench, lambda: bench.events("relay-delivered"))
            seen = bench.agent.relay.peers["hive-b"]
            # Between two looks: none is under way, and none begins without another pass.
            run_until(bench, lambda: seen.started_looks > 1 and not seen.link.busy)
            storm(peer)
            run_until(bench, lambda: bench.events("relay-results-missed"))
