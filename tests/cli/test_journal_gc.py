"""`journal gc`: what moves to the archive and what stays, said on a copy and done under the fence."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from agent_support import agent_on
from cli_support import break_record, contents, now_ms
from hive_support import ManualClock, running_hive
from journal_support import PLAN, RESULT, STAGED, Clock, open_store, prepare

from ticket_agent.agent.keys import V1_FAMILY, V2_FAMILY
from ticket_agent.exits import Exit
from ticket_agent.hive.reference import DEFAULT
from ticket_agent.journal.view import read_archive, read_journal

if TYPE_CHECKING:
    from pathlib import Path

    from cli_support import Answer, Operator

    from ticket_agent.journal.store import JournalStore

DAY_MS = 86_400_000


def _ended(store: JournalStore, key: str, sequence: int, *, family: str = V2_FAMILY, epoch: int = 1) -> None:
    prepare(store, key, sequence, epoch=epoch, family=family)
    store.dispatch(key, PLAN)
    store.settle(key, RESULT, STAGED)
    store.publish(key)
    store.finish(key)


@pytest.fixture
def journal(operator: Operator) -> Path:
    """One record for each reason to stay, and two that may leave, under a limit of two records and a day."""
    clock = Clock(now_ms() - 30 * DAY_MS)
    with open_store(operator.state, clock=clock) as store:
        _ended(store, "leaves-1", 1)
        _ended(store, "leaves-2", 2)
        _ended(store, "caller", 1, family=V1_FAMILY, epoch=2)
        clock.now = now_ms()
        _ended(store, "young", 3)
        clock.now = now_ms() - 30 * DAY_MS
        prepare(store, "open", 4, family=V2_FAMILY)
        _ended(store, "behind-open", 5)
        _ended(store, "newest", 6)
        for sequence in (1, 2, 3):
            _ended(store, f"other-{sequence}", sequence, family="other", epoch=2)
    (operator.home / "agent.toml").write_text("[retention]\nkeep_days = 1\nkeep_records = 2\n")
    return operator.state


REASONS = {
    "leaves-1": None,
    "leaves-2": None,
    "caller": "visible",
    "young": "age",
    "behind-open": "fence",
    "newest": "newest",
    "other-1": None,
    "other-2": "count",
    "other-3": "count",
}


def _gc(operator: Operator, *more: str) -> Answer:
    return operator.run("journal", "gc", "--config", "agent.toml", *more)


def test_the_dry_run_says_of_each_record_whether_it_stays_and_why(operator: Operator, journal: Path) -> None:
    before = contents(journal)
    with open_store(operator.home / "elsewhere"):
        text, told = _gc(operator, "--dry-run"), _gc(operator, "--dry-run", "--json")
    assert (text.code, told.code) == (Exit.OK, Exit.OK)
    *records, whole = told.objects
    assert {entry["key"]: entry["reason"] for entry in records} == REASONS
    assert all(entry["stays"] == (entry["reason"] is not None) and entry["why"] for entry in records)
    assert whole["may_leave"] == 3
    assert whole["stay"] == Counter(reason for reason in REASONS.values() if reason is not None)
    assert whole["moved"] is None
    header, *rows, summary = text.out.splitlines()
    assert header.split() == ["SEQ", "EPOCH", "TICKET", "ENDED", "STAYS", "WHY"]
    assert len(rows) == len(REASONS)
    assert summary.startswith(
        "3 may leave, 6 stay (1 by age, 2 by count, 1 by fence, 1 by newest, 1 by visible)"
    )
    assert contents(journal) == before


def test_it_moves_exactly_what_the_dry_run_named(operator: Operator, journal: Path) -> None:
    answer = _gc(operator)
    assert answer.code == Exit.OK
    assert answer.out.startswith("3 moved to the archive; 6 stay (")
    left = {key for key, reason in REASONS.items() if reason is None}
    assert set(read_journal(journal).records) == {"open", *REASONS} - left
    assert {record.key for segment in read_archive(journal) for record in segment.records} == left
    again = _gc(operator, "--json").object
    assert (again["moved"], again["may_leave"], again["stay"]["visible"]) == (0, 0, 1)
    assert operator.run("journal", "verify").code == Exit.OK


def test_another_owner_is_named_and_a_dry_run_needs_no_fence(operator: Operator, journal: Path) -> None:
    with open_store(journal):
        assert _gc(operator, "--dry-run").code == Exit.OK
        answer = _gc(operator)
    assert (answer.code, answer.out) == (Exit.OTHER_OWNER, "")


def test_a_degraded_journal_has_its_code(operator: Operator, journal: Path) -> None:
    break_record(journal, 5)
    assert _gc(operator, "--dry-run").code == Exit.DEGRADED
    assert _gc(operator).code == Exit.DEGRADED
    assert list((journal / "ops").glob(f"{5:020d}-*.rec"))


def test_no_directory_is_made_for_a_mistyped_name(operator: Operator) -> None:
    for more in ([], ["--dry-run"]):
        answer = operator.run("journal", "gc", *more)
        assert (answer.code, answer.out) == (Exit.FAILURE, "")
        assert "holds no journal" in answer.line
    assert not operator.state.exists()


def test_a_ticket_that_the_hive_still_shows_stays_and_is_not_taken_twice(operator: Operator) -> None:
    """Version 1 is known by its record alone: without it, a line still shown would be a new ticket."""
    clock = ManualClock(now_ms() - 30 * DAY_MS)
    with running_hive(replace(DEFAULT, accept_v1_lease_actions=True), clock=clock) as (hive, server):
        for ticket in ("c1", "c2", "c3"):
            known = {"schema": "host-ticket/v1", "id": ticket, "idempotency_key": f"key-{ticket}"}
            hive.submit(json.dumps(known | {"action": "gpu.lease.grant", "args": {"gpu_id": "GPU-0"}}))
        with agent_on(server, operator.state, clock=clock) as bench:
            bench.settle()
        effects = hive.effects
        hive.slide("spec", 1)
        (operator.home / "agent.toml").write_text("[retention]\nkeep_days = 1\nkeep_records = 0\n")
        at = operator.at(server)
        offline = {
            entry["key"]: entry.get("reason") for entry in _gc(operator, "--dry-run", "--json").objects[:-1]
        }
        assert set(offline.values()) == {"visible"}
        moved = _gc(operator, "--against-hive", "--json", *at)
        assert (moved.code, moved.object["moved"], moved.object["stay"]) == (Exit.OK, 1, {"visible": 2})
        with agent_on(server, operator.state, clock=clock) as bench:
            bench.passes(3)
            assert not bench.store.open_records()
        assert hive.effects == effects


def test_a_hive_that_does_not_answer_moves_nothing(operator: Operator, journal: Path) -> None:
    before = contents(journal / "ops")
    answer = _gc(operator, "--against-hive", "--tcp-port", "1", "--auth-token", "env:LAB_TOKEN")
    assert (answer.code, answer.out) == (Exit.HIVE_UNREACHABLE, "")
    assert contents(journal / "ops") == before
