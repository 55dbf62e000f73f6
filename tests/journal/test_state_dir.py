from __future__ import annotations

import os
from pathlib import Path

import pytest
from journal_support import RecordingFs, open_store, walk

from ticket_agent.journal.errors import JournalIoError, StateDirError
from ticket_agent.journal.gaps import acknowledge_gap
from ticket_agent.journal.view import read_journal, verify

FOLDERS = ["ops", "archive", "gaps"]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")


def test_created_directories_are_synced_into_their_parents(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    fs = RecordingFs()
    open_store(base / "a" / "b" / "state", fs=fs).close()
    synced = [op.folder for op in fs.log if op.name == "fsync_dir"]
    # The parent of what existed before comes first, in case an earlier start died right after creating it.
    assert synced == [tmp_path.name, "base", "a", "b", "state"]
    fs.log.clear()
    open_store(base / "a" / "b" / "state", fs=fs).close()
    assert [op.folder for op in fs.log if op.name == "fsync_dir"] == ["a", "b", "state"]


def test_a_relative_path_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_store(Path("x/state")) as store:
        walk(store)
    assert (tmp_path / "x" / "state" / "ops").is_dir()


def test_a_symlink_above_the_state_directory_is_the_operators_choice(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    open_store(tmp_path / "link" / "state").close()
    assert (tmp_path / "real" / "state" / "ops").is_dir()


@pytest.mark.parametrize("folder", ["", *FOLDERS])
@pytest.mark.parametrize("kind", ["symlink", "dangling", "file"])
def test_what_is_no_directory_of_ours_is_refused(tmp_path: Path, folder: str, kind: str) -> None:
    state = tmp_path / "state"
    open_store(state).close()
    place = state / folder if folder else state
    place.rename(tmp_path / "moved")
    if kind == "symlink":
        place.symlink_to(tmp_path / "moved")
    elif kind == "dangling":
        place.symlink_to(tmp_path / "nowhere")
    else:
        place.write_bytes(b"")
    with pytest.raises(StateDirError, match="symlink or not a directory"):
        open_store(state)
    with pytest.raises(StateDirError):
        verify(state)
    if folder in ("", "gaps"):
        with pytest.raises(StateDirError):
            acknowledge_gap(state, epoch=1, first=1, through=1, reason="x", by="x", clock=lambda: 1)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("folder", ["", *FOLDERS])
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o722])
def test_a_directory_that_others_can_write_is_refused(tmp_path: Path, folder: str, mode: int) -> None:
    open_store(tmp_path / "s").close()
    (tmp_path / "s" / folder).chmod(mode)
    with pytest.raises(StateDirError, match="chmod go-w"):
        open_store(tmp_path / "s")
    (tmp_path / "s" / folder).chmod(0o755)
    open_store(tmp_path / "s").close()


@needs_root
@pytest.mark.parametrize("folder", ["", *FOLDERS])
def test_a_directory_of_somebody_else_is_refused(tmp_path: Path, folder: str) -> None:
    open_store(tmp_path / "s").close()
    os.chown(tmp_path / "s" / folder, 65_534, 65_534)
    with pytest.raises(StateDirError, match="belongs to user 65534"):
        open_store(tmp_path / "s")
    # Reading needs no ownership.
    assert read_journal(tmp_path / "s").records == {}


def test_reading_what_is_absent_says_so_and_creates_nothing(tmp_path: Path) -> None:
    for look in (read_journal, verify):
        with pytest.raises(StateDirError, match="does not exist"):
            look(tmp_path / "absent")
    with pytest.raises(StateDirError, match="does not exist"):
        acknowledge_gap(tmp_path / "absent", epoch=1, first=1, through=1, reason="x", by="x", clock=lambda: 1)
    assert list(tmp_path.iterdir()) == []


def test_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises((StateDirError, JournalIoError)):
        open_store(tmp_path / "file" / "state")
