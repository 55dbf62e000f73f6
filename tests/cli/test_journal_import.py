"""A host switches from the published agent: same operations, same fence, nothing performed twice."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from agent_support import agent_on
from cli_support import contents
from foreign_state import STATES, FormerLife, entry, journal, write_files, write_state
from hive_support import ManualClock, running_hive

from ticket_agent.exits import Exit
from ticket_agent.hive.reference import DEFAULT, STRICT_A
from ticket_agent.journal.view import read_journal

if TYPE_CHECKING:
    from pathlib import Path

    from cli_support import Answer, Operator

FORMATS = pytest.mark.parametrize("through", [None, 1], ids=["v2", "v3"])


def take(operator: Operator, source: Path, *more: str) -> Answer:
    return operator.run("journal", "import", "--from", source, *more)


def taken(operator: Operator, source: Path) -> None:
    answer = take(operator, source)
    assert answer.code == Exit.OK, answer.err


@FORMATS
@pytest.mark.parametrize("profile", [DEFAULT], ids=lambda profile: profile.name)
def test_every_state_goes_on_where_it_stood(
    tmp_path: Path, operator: Operator, profile: Any, through: int | None
) -> None:
    clock = ManualClock()
    with running_hive(profile, clock=clock) as (hive, server):
        former = FormerLife(hive)
        # Format 3 has forgotten the first one; the fence alone covers it.
        former.reach("dropped", "terminal", keep=through is None)
        specs = {state: former.reach(f"t-{index}", state) for index, state in enumerate(STATES)}
        new = former.admit("new")
        source = write_state(tmp_path / "former", former.entries, through=through)
        before, effects = contents(source), hive.effects.copy()
        taken(operator, source)
        view = read_journal(operator.state)
        assert {r.key: r.state.value for r in view.records.values()} == {
            made["key"]: made["state"] for made in former.entries
        }
        with agent_on(server, operator.state, clock=clock) as bench:
            bench.settle()
            assert bench.agent.intake.held is None
            assert bench.agent.intake.epoch == 2
            outcomes = {r.key: r.result.outcome for r in bench.store.records.values() if r.result}
        started = hive.effects - effects
        assert {effect.subject for effect in started} == {"lease-t-0", "lease-new"}
        assert max(hive.effects.values()) == 1
        assert outcomes[specs["executing"].journal_key] == "confirmed"
        for ticket in ("dropped", "t-0", "t-1", "t-2", "t-3", "t-4", "new"):
            assert len(hive.terminal_lines((ticket, f"key-{ticket}"))) == 1, ticket
        for ticket, (_, line) in former.lines.items():
            assert hive.terminal_lines((ticket, f"key-{ticket}")) == [line]
        assert outcomes[new.journal_key] == "confirmed"
        assert contents(source) == before
