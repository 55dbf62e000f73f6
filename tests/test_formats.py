"""Files of earlier agents are read; files of later ones are named, left alone and not acted on."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from agent_support import agent_on
from click.testing import CliRunner
from hive_support import ManualClock, raw_grant, running_hive

from ticket_agent.cli.root import cli
from ticket_agent.exits import Exit
from ticket_agent.journal.cursor import decode_cursor, encode_cursor
from ticket_agent.journal.errors import RecordError, TakeoverError
from ticket_agent.journal.record import decode_record, encode_record
from ticket_agent.journal.starts import parse_starts
from ticket_agent.journal.store import JournalStore
from ticket_agent.journal.takeover import decode_takeover, encode_takeover
from ticket_agent.journal.transitions import State
from ticket_agent.journal.view import read_archive, read_journal
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.layout import Begun, OperationFiles
from ticket_agent.peft.release.phase_journal import PhaseJournal
from ticket_agent.peft.release.phase_machine import Standing
from ticket_agent.peft.release.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT = Path(__file__).parent / "formats"
AT_MS = 1_796_000_000_000
"""Later than everything in the files."""

ENDED = {"t1": State.TERMINAL, "t2": State.TERMINAL, "t3": State.TERMINAL}
TAKEN = {
    "t-41": State.TERMINAL,
    "t-42": State.TERMINAL,
    "t-44": State.EXECUTING,
    "t-45": State.TERMINAL,
    "t-46": State.PERSISTED,
    "t-47": State.PUBLISHED,
    "t-48": State.PREPARED,
}
STATES: dict[str, dict[str, State]] = {
    "first/persisted": {**ENDED, "t4": State.PERSISTED},
    "first/executing": {**ENDED, "t4": State.TERMINAL, "t5": State.EXECUTING},
    "named-starts/persisted": {**ENDED, "t4": State.PERSISTED},
    "named-starts/executing": {**ENDED, "t4": State.TERMINAL, "t5": State.EXECUTING},
    "archived": {"t4": State.TERMINAL, "t5": State.EXECUTING},
    "taken-over-first": TAKEN,
    "taken-over": TAKEN,
}
EVERY = pytest.mark.parametrize("name", STATES)


def _copy(name: str, tmp_path: Path) -> Path:
    place = tmp_path / "state"
    shutil.copytree(KEPT / name, place)
    for path in (place, *place.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return place


def _bytes(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def _told(place: Path) -> dict[str, State]:
    records = read_journal(place).records.values()
    return {json.loads(record.request)["id"]: record.state for record in records}


def _run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    return done.exit_code, done.output


def test_every_kept_directory_is_looked_at() -> None:
    found = {
        str(path.parent.relative_to(KEPT)) for path in KEPT.rglob("ops") if path.parent.name != "journal"
    }
    assert found == set(STATES)
    assert {path.name for path in KEPT.iterdir()} - {"README.md", "release"} == {
        n.split("/")[0] for n in STATES
    }


@EVERY
def test_it_reads_as_it_was_left(name: str, tmp_path: Path) -> None:
    place = _copy(name, tmp_path)
    before = _bytes(place)
    view = read_journal(place)
    assert (view.quarantined, view.cursor_problem, view.takeover_problem) == ((), None, None)
    assert _told(place) == STATES[name]
    code, out = _run("journal", "verify", "--state-dir", place)
    assert (code, "FAIL" in out) == (Exit.OK, False), out
    for command in (["journal", "list"], ["journal", "replay"], ["status"]):
        assert _run(*command, "--state-dir", place)[0] in {Exit.OK, Exit.UNCERTAIN, Exit.DEGRADED}
    assert _bytes(place) == before


@EVERY
def test_each_file_comes_back_from_its_value(name: str) -> None:
    place = KEPT / name
    coded: list[tuple[str, Callable[[bytes], Any], Callable[[Any], bytes]]] = [
        ("ops/*.rec", decode_record, encode_record),
        ("cursor.json", decode_cursor, encode_cursor),
        ("takeover.json", decode_takeover, encode_takeover),
    ]
    looked_at = 0
    for pattern, decode, encode in coded:
        for path in place.glob(pattern):
            value = decode(path.read_bytes())
            assert decode(encode(value)) == value
            looked_at += 1
    assert looked_at >= 2


def test_the_first_lock_names_one_start_and_later_ones_name_several() -> None:
    first = parse_starts((KEPT / "first/executing/agent.lock").read_bytes())
    later = parse_starts((KEPT / "named-starts/executing/agent.lock").read_bytes())
    assert (len(first), len(later)) == (1, 2)


def test_a_segment_and_an_acknowledgement_are_read() -> None:
    (segment,) = read_archive(KEPT / "archived")
    assert (len(segment.records), segment.problems) == (3, ())


@EVERY
def test_an_agent_goes_on_from_it_and_performs_nothing_again(name: str, tmp_path: Path) -> None:
    """The hive is another life: what was open ends unperformed, what had ended stays as it was."""
    place = _copy(name, tmp_path)
    ended = {
        path.name: path.read_bytes()
        for path in (place / "ops").iterdir()
        if decode_record(path.read_bytes()).state is State.TERMINAL
    }
    clock = ManualClock(AT_MS)
    with running_hive(clock=clock) as (hive, server), agent_on(server, place, clock=clock) as bench:
        for _ in range(6):
            bench.hurry()
            bench.passes(1)
        assert not hive.effects
        for file, data in ended.items():
            assert (place / "ops" / file).read_bytes() == data
        if name.startswith("taken"):
            return
        assert not bench.store.open_records()
        hive.submit(raw_grant(hive, hive.spawn_worker("worker-gpu"), "new", "lease-new", ttl_s=60))
        bench.until(lambda: hive.admission_of("new").outcome == "confirmed")
        assert Counter(effect.subject for effect in hive.effects) == {"lease-new": 1}
    assert _run("journal", "verify", "--state-dir", place)[0] == Exit.OK


def test_a_release_that_began_is_read(tmp_path: Path) -> None:
    root = _copy("release", tmp_path)
    begun = Begun.parse((root / "begun.json").read_bytes())
    assert (begun.operation_id, begun.launcher.name) == ("release-one", "bubblewrap")
    journal = PhaseJournal.open(root, clock=lambda: AT_MS, boot_id="boot", agent_version="test")
    try:
        files = OperationFiles(root=root, operation_id="release-one")
        assert journal.standing(files, Phase.SCAN) is Standing.NOT_STARTED
        assert journal.standing(files, Phase.STAGE) is Standing.OPEN
        assert journal.standing(files, Phase.LOAD) is None
    finally:
        journal.close()


# -- files of a later agent ---------------------------------------------------------------------------------

NEWER = re.compile(r"written in format v2, and this program reads v1 only; use a newer program")


def _newer(path: Path) -> None:
    data = path.read_bytes()
    assert data.startswith(b"ticket-agent-")
    path.write_bytes(data.replace(b"/v1 ", b"/v2 ", 1))


def _one_line(text: str) -> str:
    (line,) = [line for line in text.splitlines() if NEWER.search(line)]
    return line


@pytest.mark.parametrize("pattern", ["ops/*1-*.rec", "ops/*4-*.rec", "cursor.json"])
def test_a_newer_file_is_named_and_left_alone(pattern: str, tmp_path: Path) -> None:
    place = _copy("named-starts/persisted", tmp_path)
    (path,) = place.glob(pattern)
    _newer(path)
    data = path.read_bytes()
    code, out = _run("journal", "verify", "--state-dir", place)
    assert code != Exit.OK
    assert path.name in _one_line(out)
    assert _run("status", "--state-dir", place)[0] == Exit.DEGRADED
    clock = ManualClock(AT_MS)
    with running_hive(clock=clock) as (hive, server), agent_on(server, place, clock=clock) as bench:
        for _ in range(4):
            bench.hurry()
            bench.passes(1)
        assert bench.store.quarantined or bench.store.cursor_problem
        assert not hive.effects
    assert path.read_bytes() == data


def test_a_newer_takeover_keeps_the_agent_out(tmp_path: Path) -> None:
    place = _copy("taken-over", tmp_path)
    _newer(place / "takeover.json")
    before = _bytes(place)
    with pytest.raises(TakeoverError, match=NEWER.pattern):
        JournalStore.open(place, clock=lambda: AT_MS, boot_id="boot", agent_version="test")
    kept = _bytes(place)
    assert {name: kept[name] for name in before if name != "agent.lock"} == {
        name: data for name, data in before.items() if name != "agent.lock"
    }


@pytest.mark.parametrize("file", ["archive/00000001.seg", "gaps/1-7-9.ack"])
def test_newer_files_beside_the_records_are_named(file: str, tmp_path: Path) -> None:
    place = _copy("archived", tmp_path)
    _newer(place / file)
    before = _bytes(place)
    code, out = _run("journal", "verify", "--state-dir", place)
    assert code != Exit.OK
    assert file in _one_line(out)
    assert _bytes(place) == before


def test_a_newer_release_is_refused(tmp_path: Path) -> None:
    data = (KEPT / "release/begun.json").read_bytes()
    with pytest.raises(DocumentError, match="schema"):
        Begun.parse(data.replace(b"release-begun/v1", b"release-begun/v2"))
    record = next((KEPT / "release/journal/ops").iterdir())
    with pytest.raises(RecordError, match=NEWER.pattern):
        decode_record(record.read_bytes().replace(b"/v1 ", b"/v2 ", 1))
