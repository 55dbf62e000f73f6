"""A ticket for another hive goes there once, and its result comes back once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hive_support import DEADLETTER, SPEC, STATUS, running_hive
from relay_support import LOCAL, arrived, journal_key, peers, perform, relaying, run_until, ticket

from ticket_agent.hive.reference import DEFAULT, STRICT_A, HiveProfile
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("profile", [DEFAULT, STRICT_A], ids=lambda profile: profile.name)
@pytest.mark.parametrize(
    ("state", "stream", "outcome"),
    [
        ("succeeded", STATUS, "confirmed"),
        ("failed", DEADLETTER, "rejected"),
        ("expired", DEADLETTER, "stale"),
    ],
)
def test_a_ticket_goes_out_and_its_result_comes_back(
    tmp_path: Path, profile: HiveProfile, state: str, stream: str, outcome: str
) -> None:
    with running_hive(profile) as (hive, server), peers(profile=profile) as other:
        peer = other.hives["hive-b"]
        hive.echo(SPEC, ticket())
        with relaying(server, tmp_path / "state", other.plan()) as bench:
            run_until(bench, lambda: len(arrived(peer)) == 2)
            record = bench.store.records[journal_key()]
            assert record.state is State.EXECUTING
            run_until(bench, lambda: bench.events("relay-delivered"))
            assert not bench.store.records[journal_key()].outcome_unknown
            perform(peer, state, "as the peer says")
            run_until(bench, lambda: not bench.store.open_records())
            record = bench.store.records[journal_key()]
        sent = arrived(peer)[-1]
        assert (sent.source_hive, sent.target_hive, sent.relay_hop) == (LOCAL, "hive-b", 1)
        assert sent.relay_correlation_id == "t1:key-t1:hive-a:hive-b"
        assert record.result is not None
        assert (record.result.outcome, record.result.message) == (outcome, "as the peer says")
        (line,) = hive.cat(stream)
        told = json.loads(line)
        assert (told["id"], told["state"], told["message"]) == ("t1", state, "as the peer says")
        assert len(hive.terminal_lines(("t1", "key-t1"))) == 1
