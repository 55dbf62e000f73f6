from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from journal_support import KEY, RESULT, STAGED, Clock, MemoryFs, open_store, prepare, record_file, walk

from ticket_agent.journal.cursor import Cursor
from ticket_agent.journal.errors import StateDirError
from ticket_agent.journal.gaps import acknowledge_gap
from ticket_agent.journal.scan import scan_records
from ticket_agent.journal.space import Limits
from ticket_agent.journal.state_dir import open_readable
from ticket_agent.journal.transitions import State
from ticket_agent.journal.view import read_journal, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Limits(retain_ms=0, retain_records=2, retire_batch=1)


def populate(path: Path) -> None:
    with open_store(path, limits=LIMITS) as store:
        for sequence in (1, 2, 3, 4):
            walk(store, f"k{sequence}", sequence)
        store.retire(keep=())
        walk(store, KEY, 5, upto=State.EXECUTING)
        store.save_cursor(Cursor(consumed_sequence=5))
    acknowledge_gap(path, epoch=1, first=6, through=7, reason="lost", by="ops", clock=Clock())


def snapshot(path: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(file.relative_to(path)): (
            file.stat().st_mode,
            file.stat().st_mtime_ns,
            file.read_bytes() if file.is_file() else b"",
        )
        for file in [path, *path.rglob("*")]
    }


def test_everything_is_shown_and_nothing_is_touched(tmp_path: Path) -> None:
    populate(tmp_path)
    before = snapshot(tmp_path)
    view = read_journal(tmp_path)
    assert sorted(view.records) == [KEY, "k3", "k4"]
    assert view.records[KEY].state is State.EXECUTING
    assert view.records["k4"].result == RESULT
    assert view.quarantined == ()
    assert view.cursor == Cursor(consumed_sequence=5)
    assert view.cursor_problem is None
    assert [(ack.first, ack.through) for ack in view.acknowledgements] == [(6, 7)]
    assert view.segments == ("00000001.seg",)
    assert view.owner is None
    verdicts = verify(tmp_path)
    assert all(verdict.ok and not verdict.reason for verdict in verdicts)
    assert [verdict.file.split("/")[0] for verdict in verdicts] == [
        "cursor.json",
        "ops",
        "ops",
        "ops",
        "gaps",
        "archive",
    ]
    assert snapshot(tmp_path) == before


def test_it_works_beside_a_live_owner(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        walk(store, upto=State.EXECUTING)
        view = read_journal(tmp_path)
        assert view.records[KEY].state is State.EXECUTING
        assert view.owner is not None
        assert view.owner.pid == os.getpid()
        store.settle(KEY, RESULT, STAGED)
        assert read_journal(tmp_path).records[KEY].state is State.PERSISTED


def test_an_empty_or_half_made_directory_is_an_empty_journal(tmp_path: Path) -> None:
    view = read_journal(tmp_path)
    assert (dict(view.records), view.cursor, view.segments, view.acknowledgements) == ({}, Cursor(), (), ())
    assert verify(tmp_path) == ()
    assert list(tmp_path.iterdir()) == []


def test_verify_names_every_bad_file(tmp_path: Path) -> None:
    populate(tmp_path)
    bad = max((tmp_path / "ops").iterdir())
    bad.write_bytes(bad.read_bytes()[:-20])
    (tmp_path / "cursor.json").write_bytes(bytes(40))
    (tmp_path / "gaps" / "1-6-7.ack").write_bytes(b"")
    (tmp_path / "gaps" / "notes").write_bytes(b"x")
    (tmp_path / "archive" / "notes").write_bytes(b"x")
    (tmp_path / "ops" / ".x.rec.1.1.tmp").write_bytes(b"half")
    found = {verdict.file: verdict for verdict in verify(tmp_path)}
    wrong = {file: verdict.reason for file, verdict in found.items() if not verdict.ok}
    assert set(wrong) == {"cursor.json", f"ops/{bad.name}", "gaps/1-6-7.ack", "gaps/notes", "archive/notes"}
    assert "40 NUL bytes" in wrong["cursor.json"]
    assert "torn" in wrong[f"ops/{bad.name}"]
    assert found[f"ops/{bad.name}"].offset == bad.stat().st_size
    assert "empty" in wrong["gaps/1-6-7.ack"]
    assert "unfinished write" in found["ops/.x.rec.1.1.tmp"].reason
    view = read_journal(tmp_path)
    assert view.cursor_problem is not None
    assert [entry.name for entry in view.quarantined] == [bad.name]


def test_every_flipped_bit_of_a_file_on_disk_is_noticed(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        prepare(store)
    file = record_file(tmp_path)
    good = file.read_bytes()
    for at in range(0, len(good), 7):
        flipped = bytearray(good)
        flipped[at] ^= 1 << (at % 8)
        file.write_bytes(bytes(flipped))
        (verdict,) = verify(tmp_path)
        assert not verdict.ok


class ChangingFs(MemoryFs):
    """A directory where one file is retired or replaced between listing and reading."""

    script: Iterator[bytes | None]

    def read(self, dir_fd: int, name: str, limit: int) -> bytes:
        found = next(self.script)
        if found is None:
            raise FileNotFoundError(2, "No such file or directory", name)
        return found


@pytest.mark.parametrize("case", ["retired", "replaced"])
def test_files_that_change_while_they_are_read_are_no_findings(tmp_path: Path, case: str) -> None:
    with open_store(tmp_path) as store:
        prepare(store)
    name, data = record_file(tmp_path).name, record_file(tmp_path).read_bytes()
    fs = ChangingFs({name: data})
    fs.script = iter([None] if case == "retired" else [data[:100], data])
    scan = scan_records(fs, 0, changing=True)
    assert scan.quarantined == []
    assert list(scan.records) == ([] if case == "retired" else [KEY])


def test_a_file_that_stays_bad_is_a_finding_beside_a_live_owner_too(tmp_path: Path) -> None:
    fs = ChangingFs({"0" * 20 + "-" + "0" * 16 + ".rec": b""})
    fs.script = iter([b"", b""])
    assert len(scan_records(fs, 0, changing=True).quarantined) == 1


# The interpreter itself may lie where the other user cannot look, so the user changes when all is loaded.
READER = """
import json, os, sys
from pathlib import Path
import portalocker
from ticket_agent.journal.view import read_journal, verify
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
view = read_journal(Path(sys.argv[1]))
print(json.dumps([sorted(view.records), view.owner is None, all(v.ok for v in verify(Path(sys.argv[1])))]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_another_user_reads_a_copy_that_cannot_be_written() -> None:
    with tempfile.TemporaryDirectory() as base:
        Path(base).chmod(0o755)
        populate(Path(base) / "state")
        copy = Path(base) / "copy"
        shutil.copytree(Path(base) / "state", copy)
        for path in [copy, *copy.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        (copy / "agent.lock").chmod(0o000)
        done = subprocess.run(
            [sys.executable, "-c", READER, str(copy)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        assert json.loads(done.stdout) == [[KEY, "k3", "k4"], True, True]


@pytest.mark.parametrize("folder", ["ops", "gaps", "archive"])
@pytest.mark.parametrize("look", [read_journal, verify])
def test_a_directory_that_is_made_right_after_the_look_was_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Callable[[Path], object], folder: str
) -> None:
    """An agent that starts for the first time makes them one after the other."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)

    def too_early(path: Path) -> int:
        try:
            return open_readable(path)
        except StateDirError:
            if path.name == folder:
                path.mkdir(mode=0o700)
            raise

    without = look(state)
    monkeypatch.setattr("ticket_agent.journal.view.open_readable", too_early)
    assert look(state) == without
    assert (state / folder).is_dir()


@pytest.mark.parametrize("look", [read_journal, verify])
@pytest.mark.parametrize("kind", ["file", "link", "dangling"])
def test_what_is_no_directory_is_not_taken_for_an_absent_one(
    tmp_path: Path, look: Callable[[Path], object], kind: str
) -> None:
    state = tmp_path / "state"
    populate(state)
    (state / "gaps").rename(tmp_path / "moved")
    if kind == "file":
        (state / "gaps").write_bytes(b"x")
    else:
        (state / "gaps").symlink_to(tmp_path / ("moved" if kind == "link" else "nowhere"))
    with pytest.raises(StateDirError, match="gaps is a symlink or not a directory"):
        look(state)
