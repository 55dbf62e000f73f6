"""Questions to a journal after a crash: which operations, what changed, what comes next and why."""

from __future__ import annotations

import json
import shutil
import signal
from typing import TYPE_CHECKING

import pytest
from agent_support import agent_on, crash
from cli_support import contents, now_ms
from hive_support import LEASE_CTL, ManualClock, raw_grant, running_hive
from journal_support import ORDER, open_store, prepare, steps, walk

from ticket_agent.cli.journal_list import Moment
from ticket_agent.exits import Exit
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli_support import Operator

    from ticket_agent.hive.reference import ConsoleServer


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        (["--from", "5"], lambda entry: entry["sequence"] >= 5),
        (["--through", "5"], lambda entry: entry["sequence"] <= 5),
        (["--from", "3", "--through", "5"], lambda entry: 3 <= entry["sequence"] <= 5),
        (["--action", "gpu.lease.renew"], lambda entry: entry["action"] == "gpu.lease.renew"),
        (["--subject", "GPU-0"], lambda entry: entry["subject"] == "GPU-0"),
        (["--worker", "worker-1"], lambda entry: entry["worker"] == "worker-1"),
        (["grant-", "renew-1"], lambda entry: entry["id"].startswith(("grant-", "renew-1"))),
        (["7:grant-1"], lambda entry: entry["id"] == "grant-1"),
        (["--since", "1d"], lambda entry: True),
        (["--until", "2020-01-01T00:00:00Z"], lambda entry: False),
        (
            ["--since", "2020-01-01", "--action", "gpu.lease.grant"],
            lambda e: e["action"] == "gpu.lease.grant",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_list_filters(operator: Operator, journal: Path, asked: list[str], taken: object) -> None:
    assert callable(taken)
    every = operator.run("journal", "list", "--json").objects
    found = operator.run("journal", "list", "--json", *asked)
    assert found.code == Exit.OK
    assert [entry["id"] for entry in found.objects] == [entry["id"] for entry in every if taken(entry)]


def test_a_filter_that_names_nothing_known_shows_nothing(operator: Operator, journal: Path) -> None:
    for asked in (["--worker", "nobody"], ["--subject", "GPU-9"], ["--action", "peft.export"], ["zzz"]):
        assert operator.run("journal", "list", *asked).out == "no operations\n"


@pytest.mark.parametrize("when", ["yesterday", "", "2h ago", "1e3", "-2h"])
def test_a_time_that_is_none_is_refused_in_one_line(operator: Operator, when: str) -> None:
    answer = operator.run("journal", "list", "--since", when)
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert "neither a time" in answer.line


def test_times_are_utc_unless_they_name_a_zone() -> None:
    assert Moment().convert("1970-01-01T00:00:01", None, None) == 1_000
    assert Moment().convert("1970-01-01T01:00:01+01:00", None, None) == 1_000
    before = now_ms() - 7_200_000
    assert before <= Moment().convert("2h", None, None) <= now_ms() - 7_200_000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_watch_tells_changes_until_it_is_stopped(operator: Operator, number: int) -> None:
    with open_store(operator.state) as store:
        prepare(store)
        with operator.spawn("journal", "list", "--watch", "--json") as watch:
            assert json.loads(watch.until(lambda text: '"operation"' in text))["state"] == "prepared"
            for state in (State.EXECUTING, State.PERSISTED):
                steps(store)[ORDER.index(state)]()
                assert json.loads(watch.until(lambda text: '"operation"' in text))["state"] == state
            assert watch.stop(number) == Exit.OK


def test_watch_names_what_no_longer_fits(operator: Operator) -> None:
    with open_store(operator.state) as store:
        walk(store, upto=State.PUBLISHED)
        with operator.spawn("journal", "list", "--watch", "--json", "--state", "result-published") as watch:
            key = json.loads(watch.until(lambda text: '"operation"' in text))["key"]
            store.finish(key)
            left = json.loads(watch.until(lambda text: '"operation-left"' in text))
            assert left["key"] == key
            assert watch.stop(signal.SIGINT) == Exit.OK


@pytest.fixture
def crashed(tmp_path: Path) -> Iterator[tuple[Path, ConsoleServer]]:
    """One grant whose effect the hive has, and whose agent died before it knew."""
    clock = ManualClock(now_ms())
    with running_hive(clock=clock) as (hive, server):
        hive.spawn_worker("worker-gpu")
        hive.submit(raw_grant(hive, "worker-1", "t1", "lease-1", ttl_s=60))
        copies = tmp_path / "at-dispatch"

        def snapshot(path: str, line: str) -> None:
            if path == LEASE_CTL and not copies.exists():
                shutil.copytree(tmp_path / "lived", copies)

        server.faults.on_applied(snapshot)
        with agent_on(server, tmp_path / "lived", clock=clock) as bench:
            bench.passes(1)
            bench.until(copies.exists)
            crash(bench)
        yield copies, server


def test_explain_offline_assumes_and_says_so(operator: Operator, crashed: tuple[Path, ConsoleServer]) -> None:
    state, _ = crashed
    before = contents(state)
    told = operator.run("journal", "explain", "t1", "--json", "--state-dir", state).object
    assert (told["state"], told["decision"], told["observed"]) == ("executing", "observe", None)
    assert {name: fact["known"] for name, fact in told["facts"].items()} == {
        "visible": "assumed",
        "admission": "assumed",
        "expired": "recorded",
    }
    text = operator.run("journal", "explain", "t1", "--state-dir", state)
    assert text.code == Exit.OK
    assert "(assumed)" in text.out
    assert "--against-hive" in text.out
    assert contents(state) == before


def test_explain_against_the_hive_observes_and_writes_nothing(
    operator: Operator, crashed: tuple[Path, ConsoleServer]
) -> None:
    state, server = crashed
    before = contents(state)
    asked = ["journal", "explain", "t1", "--against-hive", "--state-dir", str(state), *operator.at(server)]
    told = operator.run(*asked, "--json").object
    # The agent that lived on has published its result meanwhile, or it can be observed; both are known facts.
    assert told["decision"] in {"adopt", "observe"}
    assert told["observed"].startswith("Committed: ")
    assert {fact["known"] for fact in told["facts"].values()} <= {"read", "recorded", "assumed"}
    assert told["facts"]["visible"]["known"] == "read"
    assert contents(state) == before


def test_explain_against_a_hive_that_is_not_there(operator: Operator, journal: Path) -> None:
    answer = operator.run(
        "journal", "explain", "5", "--against-hive", "--tcp-port", "1", "--auth-token", "env:LAB_TOKEN"
    )
    assert (answer.code, answer.out) == (Exit.HIVE_UNREACHABLE, "")
    assert answer.line
