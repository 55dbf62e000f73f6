"""A host switches from the published agent: same operations, same fence, nothing performed twice."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from typing import TYPE_CHECKING

import pytest
from agent_support import agent_on
from cli_support import contents
from foreign_state import STATES, FormerLife, take_in, write_files, write_state
from hive_support import ManualClock, running_hive
from journal_support import FailingFs
from vector_files import load

from ticket_agent.agent.foreign_journal import ForeignStateError
from ticket_agent.exits import Exit
from ticket_agent.journal.atomic import ReplaceError
from ticket_agent.journal.view import read_journal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cli_support import Answer, Operator

FORMATS = pytest.mark.parametrize("through", [None, 1], ids=["v2", "v3"])


def take(operator: Operator, source: Path, *more: str) -> Answer:
    return operator.run("journal", "import", "--from", source, *more)


def taken(operator: Operator, source: Path) -> None:
    answer = take(operator, source)
    assert answer.code == Exit.OK, answer.err


@FORMATS
def test_every_state_goes_on_where_it_stood(tmp_path: Path, operator: Operator, through: int | None) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
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


def left_behind(path: Path) -> Path:
    """A directory of the former agent: one open ticket, one ended, a fence."""
    vector = next(entry for entry in load("former_agent.json") if entry["name"].startswith("format 3, every"))
    return write_files(path, vector["files"] | {"agent.lock": "pid=4711\n"})


def test_it_tells_what_it_took(tmp_path: Path, operator: Operator) -> None:
    source = left_behind(tmp_path / "former")
    answer = take(operator, source)
    assert answer.code == Exit.OK
    lines = answer.out.splitlines()
    assert lines[0] == f"from       host-ticket-agent at {source} (execution-journal.json, cursor.json)"
    assert "fence      nothing at or below admission 42 runs again" in lines
    assert lines[-1] == "7 operations taken over; do not start the former agent again"
    executing = next(line for line in lines if "t-44" in line)
    assert "executing" in executing
    assert executing.endswith("observed, never performed again")
    assert operator.run("journal", "verify").code == Exit.OK
    status = operator.run("status")
    assert status.code == Exit.UNCERTAIN
    assert f"taken over from: host-ticket-agent at {source}" in status.out


def test_json_and_a_dry_run_that_writes_nothing(tmp_path: Path, operator: Operator) -> None:
    source = left_behind(tmp_path / "former")
    before = contents(tmp_path)
    dry = take(operator, source, "--dry-run", "--json")
    assert dry.code == Exit.OK
    assert "nothing was written" in take(operator, source, "--dry-run").out
    assert {name: found for name, found in contents(tmp_path).items() if "pycache" not in name} == before
    wet = take(operator, source, "--json")
    *operations, total = wet.objects
    assert [entry["kind"] for entry in operations] == ["takeover-operation"] * 7
    assert total["kind"] == "takeover"
    assert (total["operations"], total["formats"], total["ended_through"], total["seen"]) == (
        7,
        [3],
        [42],
        48,
    )
    assert total["states"] == {
        "terminal": 3,
        "executing": 1,
        "provider-result-persisted": 1,
        "result-published": 1,
        "prepared": 1,
    }
    times = {"changed_unix_ms": 0, "dry_run": True}
    assert [entry | times for entry in wet.objects] == [entry | times for entry in dry.objects]


def _corrupt(path: Path) -> None:
    text = (path / "execution-journal.json").read_text()
    (path / "execution-journal.json").write_text(text.replace('"state": "prepared"', '"state": "ready"'))


def _linked(path: Path) -> None:
    (path / "execution-journal.json").rename(path / "real.json")
    (path / "execution-journal.json").symlink_to("real.json")


def _large(path: Path) -> None:
    (path / "execution-journal.json").write_text(" " * 1_048_577)


def _lanes(path: Path, *names: str, lanes: int | None = None, keep: bool = False) -> None:
    text = (path / "execution-journal.json").read_text()
    if not keep:
        (path / "execution-journal.json").unlink()
    for name in names:
        (path / f"execution-journal.lane-{name}.json").write_text(text)
    if lanes is not None:
        topology = {"schema": "host-ticket-execution-lanes/v1", "lanes": lanes}
        (path / "execution-journal.topology.json").write_text(json.dumps(topology))


SPOILED: list[tuple[str, Callable[[Path], object], str]] = [
    ("corrupt", _corrupt, "execution-journal.json: member entries.4:t-48:k-48.state is not one of"),
    ("linked", _linked, "execution-journal.json cannot be read: it is a symlink"),
    ("too large", _large, "at most 1048576 are read"),
    ("folder", lambda path: _folder(path / "cursor.json"), "cursor.json cannot be read: not a regular file"),
    (
        "no journal",
        lambda path: (path / "execution-journal.json").unlink(),
        "there is no execution-journal.json",
    ),
    (
        "bad cursor",
        lambda path: (path / "cursor.json").write_text("{"),
        "cursor.json: the cursor is not valid",
    ),
    (
        "compat",
        lambda path: (path / "execution-journal.compat.json").write_text("{}"),
        "execution-journal.compat.json holds version-1 operations",
    ),
    ("lock is a link", lambda path: _relink(path / "agent.lock"), "agent.lock cannot be opened"),
    ("lanes and none", lambda path: _lanes(path, "00-of-01", keep=True), "and journals of lanes"),
    (
        "lanes of two counts",
        lambda path: _lanes(path, "00-of-02", "00-of-03"),
        "must be one in 1..=64, not 2, 3",
    ),
    ("lanes against topology", lambda path: _lanes(path, "00-of-02", lanes=3), "not 2, 3"),
    ("lanes without journals", lambda path: _lanes(path, lanes=3), "there is no execution-journal.json"),
    ("lanes said, none there", lambda path: _lanes(path, lanes=3, keep=True), "says 3 lanes"),
    (
        "lanes that cannot be numbered",
        lambda path: _lanes(path, "01-of-03"),
        "whether lanes count from 0 or from 1",
    ),
    ("lanes out of range", lambda path: _lanes(path, "00-of-02", "07-of-02"), "whether lanes count"),
    (
        "lanes with the same",
        lambda path: _lanes(path, "00-of-02", "01-of-02"),
        "stands in the journals of two lanes",
    ),
]


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _relink(path: Path) -> None:
    path.rename(path.with_name("real.lock"))
    path.symlink_to("real.lock")


@pytest.mark.parametrize(("spoil", "says"), [row[1:] for row in SPOILED], ids=[row[0] for row in SPOILED])
def test_a_state_that_is_not_understood_is_refused_whole(
    tmp_path: Path, spoil: Callable[[Path], object], says: str
) -> None:
    source = left_behind(tmp_path / "former")
    spoil(source)
    before = contents(source)
    with pytest.raises(ForeignStateError, match=re.escape(says)):
        take_in(source, tmp_path / "state")
    assert not (tmp_path / "state").exists()
    assert contents(source) == before


def test_a_refusal_is_one_line_and_exit_code_1(tmp_path: Path, operator: Operator) -> None:
    source = left_behind(tmp_path / "former")
    _corrupt(source)
    answer = take(operator, source)
    assert answer.code == Exit.FAILURE
    assert answer.line.startswith(
        f"ticket-agent: cannot take over {source}: execution-journal.json: member entries."
    )
    assert not operator.state.exists()
    missing = take(operator, tmp_path / "nowhere")
    assert (missing.code, missing.line) == (
        Exit.FAILURE,
        f"ticket-agent: cannot read {tmp_path / 'nowhere'}: No such file or directory",
    )


def test_a_former_agent_that_still_runs_is_not_disturbed(tmp_path: Path, operator: Operator) -> None:
    source = left_behind(tmp_path / "former")
    fd = os.open(source / "agent.lock", os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        for more in ([], ["--dry-run"]):
            answer = take(operator, source, *more)
            assert answer.code == Exit.OTHER_OWNER
            assert "process 4711 still holds agent.lock there; stop the former agent first" in answer.line
    finally:
        os.close(fd)
    assert not operator.state.exists()
    taken(operator, source)


def test_only_into_a_new_directory_and_never_into_the_same(tmp_path: Path, operator: Operator) -> None:
    source = left_behind(tmp_path / "former")
    before = contents(source)
    same = take(operator, source, "--state-dir", str(source))
    assert same.code == Exit.USAGE
    assert contents(source) == before
    taken(operator, source)
    done = contents(operator.state)
    for more in ([], ["--dry-run"]):
        again = take(operator, source, *more)
        assert again.code == Exit.FAILURE
        assert "took over from" in again.line
    assert contents(operator.state) == done


def test_what_is_left_out_is_said(tmp_path: Path, operator: Operator) -> None:
    source = left_behind(tmp_path / "former")
    (source / "agent.lock").unlink()
    (source / "cursor.json").unlink()
    (pending,) = [one for one in load("former_relay.json") if one["name"] == "first form"]
    (source / "relay-wal.json").write_text(json.dumps(pending["document"]))
    notes = [line for line in take(operator, source).out.splitlines() if line.startswith("note")]
    assert len(notes) == 3
    assert [
        name for name in ("agent.lock", "cursor", "relay-wal.json") if any(name in note for note in notes)
    ] == [
        "agent.lock",
        "cursor",
        "relay-wal.json",
    ]


def test_an_unfinished_takeover_keeps_every_agent_out_and_the_same_command_completes_it(
    tmp_path: Path, operator: Operator
) -> None:
    source = left_behind(tmp_path / "former")
    with pytest.raises(ReplaceError):
        take_in(source, operator.state, fs=FailingFs(at=3, error=errno.EIO, names={"rename_new"}))
    status = operator.run("status")
    assert status.code == Exit.DEGRADED
    assert "was not finished; run `ticket-agent journal import` again" in status.out
    started = operator.run("once", "--tcp-port", "1", "--auth-token", "env:LAB_TOKEN")
    assert started.code == Exit.FAILURE
    assert "was not finished" in started.line
    taken(operator, source)
    assert operator.run("journal", "verify").code == Exit.OK
    assert operator.run("status").code == Exit.UNCERTAIN
