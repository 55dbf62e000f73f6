"""Reading a journal: with the daemon dead, on a copy, without write access, broken, and when it is none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli_support import ESCAPE, break_record, contents
from journal_support import KEY, RESULT, STAGED, Clock, open_store, prepare, walk

from ticket_agent.exits import Exit
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from cli_support import Answer, Operator

STATES = ["prepared", "executing", "provider-result-persisted", "result-published", "terminal"]
READERS = (
    ["status"],
    ["status", "--json"],
    ["journal", "list"],
    ["journal", "list", "--json"],
    ["journal", "show", "5"],
    ["journal", "show", "5", "--json"],
    ["journal", "verify"],
    ["journal", "verify", "--json"],
    ["doctor", "--offline"],
    ["doctor", "--offline", "--json"],
)
TEXT_READERS = [command for command in READERS if "--json" not in command]


def _ids(answer: Answer) -> list[str]:
    return [entry["id"] for entry in answer.objects]


def test_list_shows_every_operation_in_order(operator: Operator, journal: Path) -> None:
    text, listed = operator.run("journal", "list"), operator.run("journal", "list", "--json")
    assert (text.code, listed.code) == (Exit.OK, Exit.OK)
    assert [entry["sequence"] for entry in listed.objects] == list(range(1, 13))
    assert {entry["kind"] for entry in listed.objects} == {"operation"}
    header, *rows = text.out.splitlines()
    assert header.split() == ["SEQ", "EPOCH", "TICKET", "ACTION", "SUBJECT", "STATE", "OUTCOME", "CHANGED"]
    assert [row.split()[2] for row in rows] == _ids(listed)
    assert all("terminal" in row and "confirmed" in row for row in rows)


def test_list_filters(operator: Operator, journal: Path) -> None:
    assert operator.run("journal", "list", "--state", "terminal", "--json").out.count("\n") == 12
    assert operator.run("journal", "list", "--state", "prepared").out == "no operations\n"
    assert operator.run("journal", "list", "--uncertain", "--json").out == ""


def test_show_tells_the_whole_story(operator: Operator, journal: Path) -> None:
    shown = operator.run("journal", "show", "5", "--json").object
    assert [entry["state"] for entry in shown["history"]] == STATES
    assert shown["plan"]["intent"]["path"] == "/queen/lease/ctl"
    assert json.loads(shown["request"])["id"] == shown["id"]
    assert json.loads(shown["staged"]["line"])["state"] == "succeeded"
    text = operator.run("journal", "show", "5").out
    assert f"operation  {shown['key']}   (ops/{shown['file']})" in text
    assert shown["staged"]["line"] in text
    timeline = [line.split()[1] for line in text.splitlines() if line.startswith("  20")]
    assert timeline == STATES


def test_show_tells_what_was_observed_after_the_kill(operator: Operator, journal: Path) -> None:
    renewed = [operator.run("journal", "show", f"renew-{number}", "--json").object for number in range(4)]
    observed = [shown for shown in renewed if shown["result"]["reconciled"]]
    assert len(observed) == 1
    text = operator.run("journal", "show", observed[0]["id"]).out
    assert "outcome    confirmed (observed)" in text


@pytest.mark.parametrize(
    "wanted", ["2", "grant-1", "grant-1"[:7], "7:grant-1:demo-grant-1", "7:grant-1"], ids=str
)
def test_show_takes_sequences_ids_keys_and_their_beginnings(
    operator: Operator, journal: Path, wanted: str
) -> None:
    assert operator.run("journal", "show", wanted, "--json").object["id"] == "grant-1"


def test_an_exact_name_wins_over_the_beginning_of_another(operator: Operator) -> None:
    with open_store(operator.state) as store:
        for sequence, key in enumerate(["4:t-12:a", "4:t-12:ab", "5:t-123:a"], start=1):
            prepare(store, key=key, sequence=sequence)
    assert operator.run("journal", "show", "4:t-12:a", "--json").object["sequence"] == 1


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("renew", "fits 4 operations (7:renew-0:demo-renew-0, 7:renew-1:"),
        ("", "fits 12 operations"),
        ("nonsense", "no operation `nonsense`"),
        ("13", "no operation `13`"),
        ("9" * 5000, "no operation"),
        (b"\xff\x1b[31m", "no operation `\\udcff\\x1b[31m`"),
    ],
)
def test_show_names_the_candidates_or_where_to_look(
    operator: Operator, journal: Path, wanted: str | bytes, words: str
) -> None:
    answer = operator.run("journal", "show", wanted)
    assert (answer.code, answer.out) == (Exit.FAILURE, "")
    assert words in answer.line


def test_ambiguous_candidates_are_cut_only_when_some_are_left_out(operator: Operator, journal: Path) -> None:
    assert "..." not in operator.run("journal", "show", "grant").line
    every = operator.run("journal", "show", "").line
    assert "..." in every
    assert every.count("demo-") == 5


def test_verify_passes_every_file_of_a_good_journal(operator: Operator, journal: Path) -> None:
    answer, listed = operator.run("journal", "verify"), operator.run("journal", "verify", "--json")
    assert (answer.code, listed.code) == (Exit.OK, Exit.OK)
    lines = answer.out.splitlines()
    assert lines[-1] == "13 files, 0 failed"
    assert all(line.startswith("PASS  ") for line in lines[:-1])
    assert {entry["file"] for entry in listed.objects} >= {"cursor.json"}
    assert all(entry["ok"] for entry in listed.objects)


def test_verify_fails_a_broken_record_with_its_offset(operator: Operator, journal: Path) -> None:
    path, _ = break_record(journal, 3)
    answer, listed = operator.run("journal", "verify"), operator.run("journal", "verify", "--json")
    assert (answer.code, listed.code) == (Exit.DEGRADED, Exit.DEGRADED)
    (line,) = [text for text in answer.out.splitlines() if text.startswith("FAIL")]
    assert line.startswith(f"FAIL  ops/{path.name} at byte ")
    (failed,) = [entry for entry in listed.objects if not entry["ok"]]
    assert failed["file"] == f"ops/{path.name}"
    assert failed["offset"] > 0
    assert failed["reason"] in line
    assert answer.out.splitlines()[-1] == "13 files, 1 failed"


def test_a_broken_record_degrades_status_list_and_doctor(operator: Operator, journal: Path) -> None:
    path, _ = break_record(journal, 3)
    status, told = operator.run("status"), operator.run("status", "--json")
    assert (status.code, told.code, told.object["exit"]) == (Exit.DEGRADED,) * 3
    assert f"quarantined: ops/{path.name}: " in status.out
    assert [entry["file"] for entry in told.object["quarantined"]] == [path.name]
    listed = operator.run("journal", "list", "--json")
    assert listed.code == Exit.DEGRADED
    assert [entry["kind"] for entry in listed.objects].count("operation") == 11
    assert listed.objects[-1]["file"] == path.name
    doctor = operator.run("doctor", "--offline")
    assert doctor.code == Exit.DEGRADED
    assert "1 unreadable record(s)" in doctor.out


def test_a_broken_cursor_degrades_and_is_named(operator: Operator, journal: Path) -> None:
    (journal / "cursor.json").write_bytes(b"\xff\x00nonsense")
    for command in (["status"], ["journal", "verify"], ["doctor", "--offline"]):
        answer = operator.run(*command)
        assert answer.code == Exit.DEGRADED
        assert "cursor.json" in answer.out


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_reading_changes_nothing(operator: Operator, journal: Path, command: list[str]) -> None:
    before = contents(journal)
    assert operator.run(*command).code == Exit.OK
    assert contents(journal) == before


@pytest.mark.parametrize("command", TEXT_READERS, ids=" ".join)
def test_a_read_only_copy_reads_like_the_original(
    operator: Operator, journal: Path, command: list[str]
) -> None:
    copy = operator.home / "copy"
    shutil.copytree(journal, copy)
    (copy / "agent.lock").unlink()
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        answer = operator.run(*command, "--state-dir", copy)
        assert answer.code == Exit.OK
        assert "1" in answer.out
    finally:
        for path in [copy, *copy.rglob("*")]:
            path.chmod(0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize("command", TEXT_READERS[:4], ids=" ".join)
@pytest.mark.parametrize("kind", ["absent", "file", "symlink", "empty", "name", "long"])
def test_what_is_no_journal_is_refused_in_one_line(
    operator: Operator, journal: Path, command: list[str], kind: str
) -> None:
    path: Path | bytes = operator.home / kind
    assert isinstance(path, Path)
    match kind:
        case "file":
            path.write_bytes(b"")
        case "symlink":
            path.symlink_to(journal)
        case "empty":
            path.mkdir()
        case "name":
            path = os.fsencode(path) + b"\xff\n\x1b[31m"
        case "long":
            path = path / ("a" * 300)
    answer = operator.run(*command, "--state-dir", path)
    assert answer.code in {Exit.FAILURE, Exit.USAGE}
    assert answer.out == ""
    assert answer.line.isprintable()


UNCERTAIN = "2:t2:k2"


@pytest.fixture
def uncertain(operator: Operator) -> str:
    """Key of an operation whose outcome is unknown; beside it stands one that was not started yet."""
    clock = Clock()
    with open_store(operator.state, clock=clock) as store:
        walk(store, upto=State.PREPARED)
        walk(store, key=UNCERTAIN, sequence=2, upto=State.EXECUTING)
        clock.now += 1_000
        store.note_uncertain(UNCERTAIN, "the answer was lost")
    return UNCERTAIN


def test_uncertain_operations_have_a_code_and_a_reason(operator: Operator, uncertain: str) -> None:
    told = operator.run("status", "--json")
    assert (told.code, told.object["exit"]) == (Exit.UNCERTAIN, Exit.UNCERTAIN)
    assert told.object["states"] == {"prepared": 1, "executing": 1}
    assert [(entry["key"], entry["detail"]) for entry in told.object["uncertain"]] == [
        (uncertain, "the answer was lost")
    ]
    rows = [line.split() for line in operator.run("status").out.splitlines()]
    assert [row[1:3] for row in rows if row[0].isdigit()] == [[KEY, "prepared"], [uncertain, "uncertain"]]


def test_list_finds_the_uncertain_ones(operator: Operator, uncertain: str) -> None:
    listed = operator.run("journal", "list", "--uncertain", "--json")
    assert listed.code == Exit.OK
    assert [(entry["key"], entry["uncertain"]) for entry in listed.objects] == [(uncertain, True)]


def test_the_uncertain_window_is_open_until_it_is_decided(operator: Operator, uncertain: str) -> None:
    def window() -> str:
        lines = operator.run("journal", "show", uncertain).out.splitlines()
        return next(line for line in lines if line.startswith("uncertain "))

    assert window() == "uncertain  2023-11-14T22:13:21.000Z .. now: the answer was lost"
    clock = Clock(1_700_000_005_000)
    with open_store(operator.state, clock=clock) as store:
        store.settle(uncertain, RESULT, STAGED)
        clock.now += 60_000
        store.publish(uncertain)
        store.finish(uncertain)
    assert window() == (
        "uncertain  2023-11-14T22:13:21.000Z .. 2023-11-14T22:13:25.000Z: the answer was lost"
    )
    assert operator.run("status").code == Exit.OK


def test_a_clock_beyond_every_calendar_is_shown_as_its_number(operator: Operator) -> None:
    with open_store(operator.state, clock=Clock(2**63 - 1)) as store:
        walk(store)
    for command in (["journal", "list"], ["status"], ["journal", "show", KEY]):
        assert operator.run(*command).code == Exit.OK
    assert f"unix {2**63 - 1} ms" in operator.run("journal", "show", KEY).out


def test_names_that_would_command_a_terminal_are_shown_escaped(operator: Operator, journal: Path) -> None:
    (journal / "ops" / "a\nb\x1b[2J").write_bytes(b"")
    for command in (["status"], ["journal", "list"], ["journal", "verify"]):
        answer = operator.run(*command)
        assert answer.code == Exit.DEGRADED
        assert "a\\nb\\x1b[2J" in answer.out
        assert ESCAPE not in answer.out


@pytest.mark.parametrize(
    "left",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"schema":"ticket-agent-status/v1"}',
        b'{"schema":"ticket-agent-status/v1","unix_ms":1e999,"hive":3,"waiting":[1],"skipped":7}',
        b'{"schema":"another/v9","unix_ms":1,"hive":"connected","waiting":{},"unparsable":{},"skipped":{}}',
    ],
    ids=lambda left: left[:20].decode("ascii", "replace"),
)
def test_a_status_file_that_cannot_be_understood_is_ignored(
    operator: Operator, journal: Path, left: bytes
) -> None:
    (journal / "agent-status.json").write_bytes(left)
    told = operator.run("status", "--json")
    assert (told.code, told.object["daemon"]) == (Exit.OK, None)
    assert "hive:" not in operator.run("status").out


def test_a_directory_in_place_of_the_status_file_is_ignored(operator: Operator, journal: Path) -> None:
    (journal / "agent-status.json").unlink()
    (journal / "agent-status.json").mkdir()
    assert operator.run("status").code == Exit.OK


def test_status_says_that_a_dead_agents_word_is_old(operator: Operator, journal: Path) -> None:
    answer = operator.run("status")
    assert answer.out.startswith("agent: not running\nhive: connected (the agent said so last, ")


def test_the_default_directory_is_the_service_managers_then_the_users(
    operator: Operator, journal: Path
) -> None:
    told = operator.run("journal", "list", env={"STATE_DIRECTORY": f"{journal}:/elsewhere"})
    assert told.code == Exit.OK
    users = operator.home / "xdg" / "ticket-agent"
    shutil.copytree(journal, users)
    env = {"STATE_DIRECTORY": "", "XDG_STATE_HOME": str(users.parent)}
    assert operator.run("journal", "list", env=env).out.count("\n") == 13
    elsewhere = operator.home / ".local" / "state"
    answer = operator.run("journal", "list", env={"STATE_DIRECTORY": "", "XDG_STATE_HOME": ""})
    assert answer.code == Exit.FAILURE
    assert str(elsewhere / "ticket-agent") in answer.line


def test_list_and_show_start_without_the_daemons_libraries(operator: Operator, journal: Path) -> None:
    for command in (["journal", "list"], ["journal", "show", "5"], ["journal", "verify"], ["status"]):
        assert not _imported(operator, command) & {"pydantic", "portalocker", "pynvml", "huggingface_hub"}


def _imported(operator: Operator, command: list[str]) -> set[str]:
    code = (
        f"import sys; sys.argv = ['ticket-agent', *{command}]\n"
        "from ticket_agent.cli import main\n"
        "try:\n    main()\n"
        "finally:\n    print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=operator.env, capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())
