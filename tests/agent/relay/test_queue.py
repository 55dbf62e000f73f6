"""Bounds of the queue, peers that are dead or unknown, and what of that can be seen."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest
from hive_support import SPEC, STATUS, running_hive
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector
from relay_support import LOCAL, arrived, journal_key, peers, perform, relaying, run_until, ticket

from ticket_agent.agent.relay.book import RelayBounds
from ticket_agent.agent.relay.exposition import relay_families
from ticket_agent.hive.console.client import ConsoleConfig, ConsoleNamespace
from ticket_agent.hive.reference import DEFAULT, Fault, FaultKind
from ticket_agent.protocol.federation import relayed
from ticket_agent.protocol.spec import parse_spec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent_support import Bench
    from prometheus_client.core import Metric
    from relay_support import Peers

    from ticket_agent.protocol.namespace import Namespace

SIZE = len(relayed(parse_spec(ticket().encode(), source="raw"), local_hive=LOCAL).line) + 1


def deaf(other: Peers) -> Fault:
    """A peer that refuses everything for a while."""
    fault = Fault(kind=FaultKind.ERR, verb="ECHO", prefix=SPEC)
    other.servers["hive-b"].faults.add(fault)
    return fault


@pytest.mark.parametrize(
    ("bounds", "fits"),
    [
        (RelayBounds(queue_max_entries=2), 2),
        (RelayBounds(queue_max_bytes=3 * SIZE), 3),
        (RelayBounds(queue_max_bytes=3 * SIZE - 1), 2),
        (RelayBounds(wal_max_entries=1), 1),
        (RelayBounds(wal_max_bytes=2 * SIZE), 2),
        (RelayBounds(), 5),
    ],
    ids=["entries", "bytes", "a byte less", "open entries", "open bytes", "room for all"],
)
def test_a_full_queue_takes_nothing_new_and_drops_nothing(
    tmp_path: Path, bounds: RelayBounds, fits: int
) -> None:
    names = [f"t{number}" for number in range(5)]
    with running_hive() as (hive, server), peers() as other:
        deaf(other)
        for name in names:
            hive.echo(SPEC, ticket(name))
        with relaying(server, tmp_path / "state", other.plan(bounds=bounds)) as bench:
            bench.passes(3)
            assert [record.key for record in bench.store.open_records()] == [
                journal_key(name) for name in names[:fits]
            ]
            told = bench.agent.relay.document(bench.agent.operations.values())
            assert told["held_in_log"] == 5 - fits
            assert told["queue_depth"] == fits
            assert told["queue_bytes"] == fits * SIZE
            assert told["oldest_pending_unix_ms"] == bench.clock()
            assert len(bench.events("relay-backpressure")) == (fits < 5)
            # Nothing new in any log: the queue is refilled as room comes, in order, each ticket once.
            other.servers["hive-b"].faults.clear()
            run_until(bench, lambda: perform(other.hives["hive-b"]) < 0 or len(hive.cat(STATUS)) == 5)
            assert not bench.store.open_records()
        assert [spec.id for spec in arrived(other.hives["hive-b"])][1:] == names
        assert bench.agent.relay.book.counters.missed == 0


def test_a_dead_peer_s_tickets_never_fill_the_queue_of_another_one(tmp_path: Path) -> None:
    with running_hive() as (hive, server), peers("hive-b", "hive-c") as other:
        deaf(other)
        for number in range(10):
            hive.echo(SPEC, ticket(f"b{number}"))
        for number in range(3):
            hive.echo(SPEC, ticket(f"c{number}", target="hive-c"))
        plan = other.plan(bounds=RelayBounds(queue_max_entries=8))
        with relaying(server, tmp_path / "state", plan) as bench:
            run_until(bench, lambda: len(other.taken["hive-c"]) == 3)
            told = bench.agent.relay.document(bench.agent.operations.values())
            # Two of the eight are kept for the other peer.
            assert told["peers"]["hive-b"]["pending"] == 6
            assert told["held_in_log"] == 4
            other.servers["hive-b"].faults.clear()
            run_until(bench, lambda: len(other.taken["hive-b"]) == 10)
        assert [json.loads(line)["id"] for line in other.taken["hive-b"]] == [f"b{n}" for n in range(10)]


def test_what_the_hive_drops_before_there_was_room_is_told(tmp_path: Path) -> None:
    with running_hive() as (hive, server), peers() as other:
        deaf(other)
        hive.echo(SPEC, ticket("t1"))
        hive.echo(SPEC, ticket("t2"))
        bounds = RelayBounds(queue_max_entries=1)
        with relaying(server, tmp_path / "state", other.plan(bounds=bounds)) as bench:
            bench.passes(2)
            for number in range(DEFAULT.log_frames):
                hive.echo(SPEC, ticket(f"other-{number}", target="hive-b", source="hive-z"))
            run_until(bench, lambda: bench.events("relay-missed"))
            (event,) = bench.events("relay-missed")
            assert (event["id"], event["level"]) == ("t2", "error")
            assert bench.agent.relay.book.counters.missed == 1
            assert journal_key("t1") in bench.store.records


def test_a_burst_does_not_push_tickets_out_of_a_peer_s_log_before_they_are_taken_up(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(40)]
    with running_hive() as (hive, server), peers() as other:
        peer = other.hives["hive-b"]
        with relaying(server, tmp_path / "state", other.plan()) as bench:
            for name in names:
                hive.echo(SPEC, ticket(name))
                bench.passes(1)
            run_until(
                bench, lambda: any("nobody at hive-b" in op.waiting for op in bench.agent.operations.values())
            )
            assert bench.agent.relay.book.depth[0] > 0
            sent = [json.loads(line)["id"] for line in other.taken["hive-b"]]
            assert [spec.id for spec in arrived(peer)][1:] == sent

            # The agent there comes late: it still finds every ticket.
            def done() -> bool:
                perform(peer)
                return len(other.taken["hive-b"]) == len(names) and not bench.store.open_records()

            run_until(bench, done)
        assert [json.loads(line)["id"] for line in other.taken["hive-b"]] == names
        assert all(len(hive.terminal_lines((name, f"key-{name}"))) == 1 for name in names)


def test_an_unknown_peer_is_told_and_served_once_it_is_configured(tmp_path: Path) -> None:
    with running_hive() as (hive, server), peers("hive-b", "hive-c") as other:
        hive.echo(SPEC, ticket("t1", target="hive-c"))
        hive.echo(SPEC, ticket("t2"))
        with relaying(server, tmp_path / "state", other.plan(names=("hive-b",))) as bench:
            run_until(bench, lambda: bench.events("relay-delivered"))
            told = bench.agent.relay.document(bench.agent.operations.values())
            assert told["unknown_peers"] == {"hive-c": 1}
            assert len(bench.events("relay-unknown-peer")) == 1
        with relaying(server, tmp_path / "state", other.plan()) as bench:
            run_until(bench, lambda: len(arrived(other.hives["hive-c"])) == 2)
        assert len(other.taken["hive-b"]) == 1


def test_a_peer_that_was_taken_out_of_the_configuration_keeps_its_tickets(tmp_path: Path) -> None:
    with running_hive() as (hive, server), peers("hive-b", "hive-c") as other:
        other.servers["hive-c"].faults.add(Fault(kind=FaultKind.ERR, verb="ECHO", prefix=SPEC))
        hive.echo(SPEC, ticket("t1", target="hive-c"))
        with relaying(server, tmp_path / "state", other.plan()) as bench:
            run_until(bench, bench.store.open_records)
        with relaying(server, tmp_path / "state", other.plan(names=("hive-b",))) as bench:
            bench.passes(3)
            assert "hive-c" in bench.waiting(journal_key("t1", "hive-c"))
        other.servers["hive-c"].faults.clear()
        with relaying(server, tmp_path / "state", other.plan()) as bench:
            run_until(bench, lambda: len(arrived(other.hives["hive-c"])) == 2)


def test_an_agent_that_does_not_relay_skips_them_as_ever(tmp_path: Path) -> None:
    with running_hive() as (hive, server):
        hive.echo(SPEC, ticket())
        with relaying(server, tmp_path / "state", None) as bench:
            bench.passes(2)
            assert not bench.store.records
            assert bench.agent.intake.counters.other_hive == 1
            assert not bench.agent.relay.document([])["enabled"]


@pytest.mark.parametrize(
    ("changes", "skipped"),
    [({"source": "hive-c"}, 1), ({"action": "systemd.stop"}, 1), ({}, 0)],
    ids=["relayed before", "not listed", "ours"],
)
def test_what_is_not_ours_to_relay_gets_no_record(
    tmp_path: Path, changes: dict[str, str], skipped: int
) -> None:
    with running_hive() as (hive, server), peers() as other:
        hive.echo(SPEC, ticket("t1", **changes))
        with relaying(server, tmp_path / "state", other.plan()) as bench:
            bench.passes(2)
            assert bench.agent.relay.book.counters.not_relayed == skipped
            assert len(bench.store.records) == 1 - skipped


def test_a_line_is_relayed_once_however_often_it_is_shown(tmp_path: Path) -> None:
    with running_hive() as (hive, server), peers() as other:
        for _ in range(3):
            hive.echo(SPEC, ticket())
            hive.echo(SPEC, ticket(args={"unit": "other.service"}))
        with relaying(server, tmp_path / "state", other.plan()) as bench:
            run_until(bench, lambda: bench.events("relay-delivered"))
            perform(other.hives["hive-b"])
            run_until(bench, lambda: not bench.store.open_records())
            assert len(bench.events("idempotency-conflict")) == 1
        assert len(other.taken["hive-b"]) == 1


class _Deadline(Collector):
    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def collect(self) -> Iterator[Metric]:
        figures = self.bench.agent.relay.figures(self.bench.agent.operations.values())
        yield from relay_families(figures, self.bench.clock())


def test_a_dead_peer_delays_neither_another_one_nor_this_hive(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        running_hive() as (hive, server),
        peers("hive-b", "hive-c") as other,
    ):

        def connect(name: str) -> Namespace:
            if name == "hive-c":
                return other.connect(name)
            # It takes the connection and never says anything.
            port = mute.getsockname()[1]
            return ConsoleNamespace(
                ConsoleConfig(port=port, token="t" * 8, use_lock=False, auth_s=600.0), sleep=lambda _: None
            )

        for number in range(3):
            hive.echo(SPEC, ticket(f"b{number}"))
            hive.echo(SPEC, ticket(f"c{number}", target="hive-c"))
        with relaying(server, tmp_path / "state", other.plan(connect=connect)) as bench:
            dead = bench.agent.relay.peers["hive-b"]
            run_until(bench, lambda: len(bench.events("relay-delivered")) == 3 and dead.link.busy)
            # The other peer was served altogether while the dead one was being waited for, and still is.
            assert [spec.id for spec in arrived(other.hives["hive-c"])][1:] == ["c0", "c1", "c2"]
            assert (dead.started_looks, dead.breaker.failures) == (1, 0)
            mute.close()
            run_until(bench, lambda: dead.breaker.failures >= 3)
            told = bench.agent.relay.document(bench.agent.operations.values())
            assert told["peers"]["hive-b"]["circuit"] in {"open", "half-open"}
            assert told["peers"]["hive-c"]["circuit"] == "closed"
            assert told["peers"]["hive-b"]["pending"] == 3
            assert told["peers"]["hive-c"]["awaiting"] == 3
            assert len(bench.events("relay-peer-unavailable")) <= 2
            registry = CollectorRegistry()
            registry.register(_Deadline(bench))
            text = generate_latest(registry).decode()
            assert 'ticket_agent_relay_pending{peer="hive-b"} 3.0' in text
            assert 'ticket_agent_relay_awaiting_result{peer="hive-c"} 3.0' in text
            assert 'ticket_agent_relay_circuit{peer="hive-c",state="closed"} 1.0' in text
            assert 'ticket_agent_relay_events_total{event="queued"} 6.0' in text


def test_a_peer_that_comes_back_gets_what_waited(tmp_path: Path) -> None:
    with running_hive() as (hive, server), peers() as other:
        peer = other.servers["hive-b"]
        up: list[bool] = []

        def connect(name: str) -> Namespace:
            port = peer.port if up else 1
            return ConsoleNamespace(ConsoleConfig(port=port, token="lab-token-4711", use_lock=False))

        class Switching:
            """Reaches nobody until the peer is up."""

            def __init__(self) -> None:
                self.session = 0
                self._found: Namespace | None = None

            def __getattr__(self, name: str) -> object:
                if up and self._found is None:
                    self._found = connect("hive-b")
                inner = self._found or connect("hive-b")

                def call(*args: object, **options: object) -> object:
                    try:
                        return getattr(inner, name)(*args, **options)
                    finally:
                        self.session = inner.session

                return call

        hive.echo(SPEC, ticket())
        plan = other.plan(connect=lambda name: Switching())  # type: ignore[arg-type,return-value]
        with relaying(server, tmp_path / "state", plan) as bench:
            run_until(bench, lambda: bench.agent.relay.peers["hive-b"].breaker.failures >= 2)
            assert len(bench.store.open_records()) == 1
            up.append(True)
            run_until(bench, lambda: bench.events("relay-delivered"))
            assert bench.events("relay-peer-answers")
        assert len(other.taken["hive-b"]) == 1
