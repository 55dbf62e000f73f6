from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ticket_agent.hive.console.lock import ConsoleLock, lock_enabled, lock_path
from ticket_agent.protocol.namespace import HiveBusyError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# What other tools do: flock(2) on the same path, their pid in it.
FOREIGN_OWNER = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("busy", flush=True)
    sys.exit(3)
os.ftruncate(descriptor, 0)
os.write(descriptor, b"pid=%d\\n" % os.getpid())
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def foreign_owner(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen(
        [sys.executable, "-c", FOREIGN_OWNER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.stdin.close()


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("127.0.0.1", "cohesix-console-127.0.0.1-31337.lock"),
        ("Hive-1.example", "cohesix-console-Hive-1.example-31337.lock"),
        ("::1", "cohesix-console-__1-31337.lock"),
        ("../h\u00e9", "cohesix-console-.._h_-31337.lock"),
    ],
)
def test_the_name_of_the_lock(tmp_path: Path, host: str, name: str) -> None:
    assert lock_path(host, 31337, directory=tmp_path) == tmp_path / name
    assert lock_path(host, 31337).name == name


@pytest.mark.parametrize(
    ("env", "enabled"),
    [
        ({}, True),
        ({"COHSH_CONSOLE_LOCK": "1"}, True),
        ({"COHSH_CONSOLE_LOCK": ""}, True),
        ({"COHSH_CONSOLE_LOCK": "0"}, False),
        ({"COHSH_CONSOLE_LOCK": "false"}, False),
        ({"COHSH_CONSOLE_LOCK": "Off"}, False),
        ({"COHSH_CONSOLE_LOCK": "no"}, False),
    ],
)
def test_the_environment_may_disable_it(env: dict[str, str], enabled: bool) -> None:
    assert lock_enabled(env) is enabled


def test_an_owner_leaves_its_pid(tmp_path: Path) -> None:
    path = tmp_path / "console.lock"
    path.write_text("pid=99999999 and a long stale note\n")
    lock = ConsoleLock(path)
    held = [lock.held]
    for change in (lock.acquire, lock.acquire, lock.release, lock.release):
        change()
        held.append(lock.held)
    assert held == [False, True, True, False, False]
    assert path.read_text() == f"pid={os.getpid()}\n"


def test_a_foreign_owner_is_named_and_its_note_survives(tmp_path: Path) -> None:
    path = tmp_path / "console.lock"
    with foreign_owner(path) as (process, word):
        assert word == "held"
        lock = ConsoleLock(path)
        with pytest.raises(
            HiveBusyError, match=rf"console busy: lock held at {path} \(owner pid={process.pid}\)"
        ):
            lock.acquire()
        assert not lock.held
        assert path.read_text() == f"pid={process.pid}\n"


def test_a_foreign_contender_is_refused_until_release(tmp_path: Path) -> None:
    path = tmp_path / "console.lock"
    lock = ConsoleLock(path)
    lock.acquire()
    with foreign_owner(path) as (_, word):
        assert word == "busy"
    lock.release()
    with foreign_owner(path) as (_, word):
        assert word == "held"


@pytest.mark.parametrize("note", [b"", b"\xff\xfe", b"owner=1\n", b"pid=\n"])
def test_an_unreadable_note_is_an_unknown_owner(tmp_path: Path, note: bytes) -> None:
    path = tmp_path / "console.lock"
    with foreign_owner(path):
        path.write_bytes(note)
        with pytest.raises(HiveBusyError, match="owner pid=unknown"):
            ConsoleLock(path).acquire()


def test_a_contender_that_truncates_first_takes_the_note_and_not_the_lock(tmp_path: Path) -> None:
    """Newer tools empty the file when they open it, before they ask for the lock."""
    path = tmp_path / "console.lock"
    ours, third = ConsoleLock(path), ConsoleLock(path)
    ours.acquire()
    with path.open("w") as contender, pytest.raises(BlockingIOError):
        fcntl.flock(contender, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert path.read_bytes() == b""
    with pytest.raises(HiveBusyError, match="owner pid=unknown"):
        third.acquire()
    ours.release()
    third.acquire()
    assert path.read_bytes() == b"pid=%d\n" % os.getpid()
    third.release()


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = tmp_path / "console.lock"
    path.symlink_to(victim)
    with pytest.raises(HiveBusyError, match="symbolic link"):
        ConsoleLock(path).acquire()
    assert victim.read_text() == "precious"


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.lock"
    os.mkfifo(fifo)
    for path, words in (
        (fifo, "not a regular file"),
        (tmp_path, "directory"),
        (tmp_path / "x" / "y", "No such file"),
    ):
        with pytest.raises(HiveBusyError, match=words):
            ConsoleLock(path).acquire()


def test_two_locks_in_one_process_exclude_each_other(tmp_path: Path) -> None:
    first, second = ConsoleLock(tmp_path / "l"), ConsoleLock(tmp_path / "l")
    first.acquire()
    with pytest.raises(HiveBusyError, match=f"owner pid={os.getpid()}"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()
