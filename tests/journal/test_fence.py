from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from journal_support import BOOT_ID, KEY, Clock, open_store, walk

from ticket_agent.journal import atomic, errors
from ticket_agent.journal.errors import FenceHeldError, JournalError, StateDirError
from ticket_agent.journal.fence import Fence, FenceOwner, fence_owner
from ticket_agent.journal.fs import RealFs
from ticket_agent.journal.view import read_journal

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]

OWNER = """
import sys
from pathlib import Path
from ticket_agent.journal.store import JournalStore
store = JournalStore.open(Path(sys.argv[1]), clock=lambda: 42, boot_id=sys.argv[2], agent_version="1")
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def owner_process(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", OWNER, str(path), BOOT_ID]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process
        finally:
            process.kill()


def owner_of(path: Path) -> FenceOwner | None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return fence_owner(fd)
    finally:
        os.close(fd)


def test_a_second_process_is_refused_at_once_and_told_the_owner(tmp_path: Path) -> None:
    with owner_process(tmp_path) as process:
        with pytest.raises(FenceHeldError, match=f"process {process.pid} ") as caught:
            open_store(tmp_path)
        assert (caught.value.pid, caught.value.boot_id) == (process.pid, BOOT_ID)
        assert owner_of(tmp_path) == FenceOwner(pid=process.pid, boot_id=BOOT_ID, started_unix_ms=42)
        view = read_journal(tmp_path)
        assert view.owner is not None
        assert view.owner.pid == process.pid
        # Asking took nothing away from the owner.
        with pytest.raises(FenceHeldError):
            open_store(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        # The kernel released it; what the file still says does not matter.
        assert b"pid=" in (tmp_path / "agent.lock").read_bytes()
        assert owner_of(tmp_path) is None
        with open_store(tmp_path) as store:
            walk(store)
            assert owner_of(tmp_path) == FenceOwner(
                pid=os.getpid(), boot_id=BOOT_ID, started_unix_ms=Clock()()
            )


def test_removing_the_lock_file_does_not_let_a_second_owner_in(tmp_path: Path) -> None:
    with open_store(tmp_path):
        (tmp_path / "agent.lock").unlink()
        assert owner_of(tmp_path) == FenceOwner()
        with pytest.raises(FenceHeldError, match="another process") as caught:
            open_store(tmp_path)
        assert caught.value.pid is None
    with open_store(tmp_path) as store:
        walk(store)


def test_a_lock_file_that_was_replaced_while_it_was_locked_is_not_trusted(tmp_path: Path) -> None:
    class ReplacedFs(RealFs):
        opened = 0

        def open_kept(self, dir_fd: int, name: str) -> int:
            fd = super().open_kept(dir_fd, name)
            self.opened += 1
            if self.opened == 1:
                os.unlink(name, dir_fd=dir_fd)
            return fd

    fs = ReplacedFs()
    root = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fence = Fence.acquire(fs, root, boot_id=BOOT_ID, now_unix_ms=7)
        assert fs.opened == 2
        assert (
            tmp_path / "agent.lock"
        ).read_text() == f"pid={os.getpid()} boot_id={BOOT_ID} started_unix_ms=7\n"
        fence.release()
        fence.release()
    finally:
        os.close(root)


def test_a_reader_that_looks_at_the_same_moment_is_not_taken_for_an_owner(tmp_path: Path) -> None:
    root = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    reader = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(reader, fcntl.LOCK_SH)
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            fcntl.flock(reader, fcntl.LOCK_UN)

        Fence.acquire(RealFs(), root, boot_id=BOOT_ID, now_unix_ms=1, pause=pause).release()
        assert len(pauses) == 1
    finally:
        os.close(reader)
        os.close(root)


@contextmanager
def looked_at(path: Path) -> Iterator[int]:
    """A reader that was stopped between taking the lock for its look and giving it back."""
    reader = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(reader, fcntl.LOCK_SH)
        yield reader
    finally:
        os.close(reader)


@pytest.mark.parametrize("name", [".", "agent.lock"])
@pytest.mark.parametrize("looks", [1, 3, 100])
def test_a_reader_that_is_stopped_in_its_look_is_waited_for(tmp_path: Path, name: str, looks: int) -> None:
    open_store(tmp_path).close()
    root = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with looked_at(tmp_path / name) as reader:
            pauses: list[float] = []

            def pause(seconds: float) -> None:
                pauses.append(seconds)
                if len(pauses) == looks:
                    fcntl.flock(reader, fcntl.LOCK_UN)

            Fence.acquire(RealFs(), root, boot_id=BOOT_ID, now_unix_ms=1, pause=pause).release()
            assert len(pauses) == looks
    finally:
        os.close(root)


@pytest.mark.parametrize("name", [".", "agent.lock"])
def test_no_start_waits_for_a_reader_for_ever(tmp_path: Path, name: str) -> None:
    open_store(tmp_path).close()
    pauses: list[float] = []
    root = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with looked_at(tmp_path / name), pytest.raises(FenceHeldError):
            Fence.acquire(RealFs(), root, boot_id=BOOT_ID, now_unix_ms=1, pause=pauses.append)
    finally:
        os.close(root)
    assert 1 < sum(pauses) < 10


def test_an_owner_is_not_waited_for(tmp_path: Path) -> None:
    pauses: list[float] = []
    root = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with open_store(tmp_path), pytest.raises(FenceHeldError):
            Fence.acquire(RealFs(), root, boot_id=BOOT_ID, now_unix_ms=1, pause=pauses.append)
    finally:
        os.close(root)
    assert sum(pauses) < 0.1


@pytest.mark.parametrize("kind", ["symlink", "dangling", "directory", "fifo"])
def test_what_is_not_a_regular_lock_file_is_refused(tmp_path: Path, kind: str) -> None:
    state, victim = tmp_path / "s", tmp_path / "victim"
    victim.write_bytes(b"precious")
    open_store(state).close()
    lock = state / "agent.lock"
    lock.unlink()
    if kind == "symlink":
        lock.symlink_to(victim)
    elif kind == "dangling":
        lock.symlink_to(tmp_path / "new")
    elif kind == "directory":
        lock.mkdir()
    else:
        os.mkfifo(lock)
    with pytest.raises(StateDirError, match=r"agent\.lock"):
        open_store(state)
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("content", [b"", b"\xff" * 600, b"pid=abc\n", b"pid=1 boot_id=x started_unix_ms=1"])
def test_the_content_of_the_lock_file_decides_nothing(tmp_path: Path, content: bytes) -> None:
    with open_store(tmp_path) as store:
        walk(store)
        (tmp_path / "agent.lock").write_bytes(content)
        assert owner_of(tmp_path) == FenceOwner()
        with pytest.raises(FenceHeldError, match="another process"):
            open_store(tmp_path)
    with open_store(tmp_path) as store:
        assert store.records[KEY].terminal
    assert (tmp_path / "agent.lock").read_bytes().startswith(b"pid=")


def test_every_error_of_the_journal_has_its_own_code() -> None:
    classes = [getattr(errors, name) for name in errors.__all__]
    assert all(issubclass(found, JournalError) for found in classes)
    codes = [found.code for found in classes]
    assert len(set(codes)) == len(codes)
    assert issubclass(atomic.ReplaceError, JournalError)
