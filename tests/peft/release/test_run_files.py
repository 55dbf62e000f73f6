"""Files of a run directory: what is written is read back, and nothing else is."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peft_support import synced_directories

from ticket_agent.peft.release.launch_errors import RunFileError
from ticket_agent.peft.release.process import ProcessIdentity
from ticket_agent.peft.release.run_files import (
    EXIT_FILE,
    MAX_RUN_FILE_BYTES,
    RUNNING_FILE,
    EndReason,
    ExitRecord,
    RunRecord,
    read_exit,
    read_running,
    reserve_exit,
    write_exit,
    write_running,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDED = ExitRecord(
    launch_id="op.train",
    reason=EndReason.EXITED,
    code=0,
    signal=None,
    started_unix_ms=1,
    ended_unix_ms=2,
    output_bytes=3,
    output_lost_bytes=0,
)
BODY: dict[str, Any] = {"schema": "ticket-agent-phase-exit/v1", **asdict(ENDED)}
LONG = [
    json.dumps(BODY).encode() + b" " * MAX_RUN_FILE_BYTES,
    b"[" * 4000,
    b"9" * 4000,
    b'{"schema":"x"}',
    b"{}",
]
PROCESS = ProcessIdentity(pid=7, start_ticks=8, boot_id="b")
STARTED = RunRecord(
    launch_id="op.train",
    marker="m",
    launcher="bubblewrap",
    unit=None,
    supervisor=PROCESS,
    child=PROCESS,
    started_unix_ms=5,
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("reason", EndReason)
@pytest.mark.parametrize("end", [{"code": 0}, {"code": None, "signal": 9}, {"error": "x" * 400}])
def test_an_end_is_read_back(folder: int, reason: EndReason, end: dict[str, Any]) -> None:
    record = ExitRecord(**{**asdict(ENDED), "reason": reason, **end})
    assert read_exit(folder) is None
    reserve_exit(folder)
    assert read_exit(folder) is None
    write_exit(folder, record)
    assert read_exit(folder) == record
    assert record.succeeded is (reason is EndReason.EXITED and record.code == 0)


def test_a_start_is_read_back_and_not_written_twice(folder: int, tmp_path: Path) -> None:
    assert read_running(folder) is None
    write_running(folder, STARTED)
    assert read_running(folder) == STARTED
    assert [path.name for path in tmp_path.iterdir()] == [RUNNING_FILE]
    assert (tmp_path / RUNNING_FILE).stat().st_mode & 0o777 == 0o600


def test_space_for_the_end_is_taken_at_the_start(folder: int, tmp_path: Path) -> None:
    reserve_exit(folder)
    (reserved,) = tmp_path.iterdir()
    assert reserved.stat().st_blocks * 512 >= MAX_RUN_FILE_BYTES
    inode = reserved.stat().st_ino
    write_exit(folder, ENDED)
    assert [(path.name, path.stat().st_ino) for path in tmp_path.iterdir()] == [(EXIT_FILE, inode)]
    # Without a reservation there is no end: a supervisor always makes one.
    with pytest.raises(FileNotFoundError):
        write_exit(folder, ENDED)


def test_every_file_is_synced_and_then_its_directory(
    folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = synced_directories(monkeypatch)
    write_running(folder, STARTED)
    reserve_exit(folder)
    write_exit(folder, ENDED)
    files, folders = synced[::2], synced[1::2]
    assert [Path(name).name for name in files] == [".running.partial", ".exit.reserved", ".exit.reserved"]
    assert folders == [str(tmp_path)] * 3


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "ticket-agent-phase-exit/v2"},
        {"schema": None},
        {"launch_id": 1},
        {"reason": "finished"},
        {"reason": None},
        {"code": "0"},
        {"code": True},
        {"code": 0.0},
        {"signal": []},
        {"started_unix_ms": None},
        {"output_bytes": "3"},
        {"error": 5},
        {"more": 1},
    ],
)
def test_an_altered_end_is_refused(folder: int, tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / EXIT_FILE).write_text(json.dumps({**BODY, **change}))
    with pytest.raises(RunFileError):
        read_exit(folder)


@pytest.mark.parametrize("name", BODY)
def test_an_end_without_a_member_is_refused(folder: int, tmp_path: Path, name: str) -> None:
    (tmp_path / EXIT_FILE).write_text(json.dumps({key: BODY[key] for key in BODY if key != name}))
    with pytest.raises(RunFileError):
        read_exit(folder)


@given(st.binary(max_size=200) | st.sampled_from(LONG))
def test_any_bytes_are_refused(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        for file in (EXIT_FILE, RUNNING_FILE):
            (Path(name) / file).write_bytes(data)
        fd = os.open(name, os.O_RDONLY)
        try:
            for read in (read_exit, read_running):
                with pytest.raises(RunFileError):
                    read(fd)
        finally:
            os.close(fd)


def test_a_link_is_not_followed(folder: int, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(json.dumps(BODY))
    (tmp_path / EXIT_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        read_exit(folder)
