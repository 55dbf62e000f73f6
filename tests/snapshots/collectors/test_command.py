from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ticket_agent.protocol.collecting import CollectError, Deadline
from ticket_agent.protocol.snapshot import UnavailableReason
from ticket_agent.snapshots.collectors.command import (
    CommandFailedError,
    CommandMissingError,
    OutputTooLongError,
    run,
)

SHELL = "/bin/sh"
REMEDY = "install the package of it"


def within() -> Deadline:
    return Deadline.after(60.0, time.monotonic)


def shell(script: str, *, max_bytes: int = 65_536) -> bytes:
    return run([SHELL, "-c", script], deadline=within(), remedy=REMEDY, max_bytes=max_bytes)


def written_pids(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()]


def gone(pid: int) -> bool:
    """Wait for a process that was sent SIGKILL; whoever adopted it may not have reaped it yet."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(60_000))
    finally:
        os.close(descriptor)


def test_what_a_program_prints_is_returned() -> None:
    assert shell("printf 'one\\ntwo'") == b"one\ntwo"


LAUNCHES = """
import sys, threading, time
from ticket_agent.protocol.collecting import Deadline
from ticket_agent.snapshots.collectors.command import run

def collect():
    deadline = Deadline.after(99, time.monotonic)
    run(["/bin/sh", "-c", "echo $$ > pid; exec sleep 997"], deadline=deadline, remedy="")

threading.Thread(target=collect, daemon=True).start()
"""
STARTS_LATE = """
import atexit, subprocess, threading

ending, begin = threading.Event(), subprocess.Popen

def late(*arguments, **options):
    started = begin(*arguments, **options)
    ending.wait()
    return started

subprocess.Popen = late
import ticket_agent.snapshots.collectors.command
atexit.register(ending.set)
"""
"""What is registered last is called first: the program runs, but its thread knows it only while all ends."""


@pytest.mark.parametrize("before", ["", STARTS_LATE], ids=["runs", "is being started"])
def test_no_program_outlives_the_process(tmp_path: Path, before: str) -> None:
    """A collector's thread ends with its process, without a word."""
    script = before + LAUNCHES.replace("echo $$ > pid", f"echo $$ > {tmp_path}/pid; echo > {tmp_path}/fifo")
    os.mkfifo(tmp_path / "fifo")
    process = subprocess.Popen(
        [sys.executable, "-c", f"{script}\nsys.stdin.readline()"], stdin=subprocess.PIPE
    )
    with (tmp_path / "fifo").open() as fifo:
        fifo.read()
    process.communicate(b"end\n")
    assert process.returncode == 0
    (pid,) = written_pids(tmp_path / "pid")
    assert gone(pid)


def test_ignored_ends_of_children_are_explained() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(CollectError, match="ignores SIGCHLD"):
            shell("exec sleep 0.05")
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_the_command_line_hears_of_its_children_whoever_starts_it() -> None:
    command = "trap '' CHLD; exec \"$0\" -m ticket_agent snapshots discover network --json"
    done = subprocess.run(
        [SHELL, "-c", command, sys.executable], capture_output=True, text=True, check=False, cwd="/"
    )
    assert "CHLD" not in done.stdout
    assert "Errno 10" not in done.stdout


def test_nothing_printed_is_nothing() -> None:
    assert shell(":") == b""


def test_environment_input_errors_and_folder_are_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    output = shell("/usr/bin/env; echo to-nobody >&2; cat; pwd")
    lines = set(output.decode().splitlines()) - {"PWD=/", "_=/usr/bin/env", "SHLVL=0", "OLDPWD"}
    assert lines == {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "/"}


def test_a_program_has_a_group_of_its_own() -> None:
    code = "import os; print(os.getpid() == os.getpgrp())"
    assert run([sys.executable, "-c", code], deadline=within(), remedy=REMEDY) == b"True\n"


@pytest.mark.parametrize("size", [0, 1, 65_536, 200_000])
def test_output_up_to_the_limit_is_whole(size: int) -> None:
    assert shell(f"head -c {size} /dev/zero", max_bytes=max(size, 1)) == bytes(size)


def test_one_byte_more_is_too_long() -> None:
    with pytest.raises(OutputTooLongError, match="prints more than 100 bytes") as caught:
        shell("head -c 101 /dev/zero", max_bytes=100)
    assert caught.value.reason is UnavailableReason.SOURCE_FAILED


def test_endless_output_is_cut_off_and_its_writer_ended(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(OutputTooLongError):
        shell(f"echo $$ > {pids}; while :; do echo endless; done")
    assert all(gone(pid) for pid in written_pids(pids))


@pytest.mark.parametrize(
    ("script", "told"), [("exit 3", "ended with status 3"), ("kill -TERM $$", "was ended by signal 15")]
)
def test_a_failure_is_told_with_its_status(script: str, told: str) -> None:
    with pytest.raises(CommandFailedError, match=told) as caught:
        shell(f"echo output; {script}")
    assert caught.value.reason is UnavailableReason.SOURCE_FAILED


def test_a_missing_program_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(CommandMissingError, match="is not there; install the package of it") as caught:
        run([str(tmp_path / "none")], deadline=within(), remedy=REMEDY)
    assert caught.value.reason is UnavailableReason.SOURCE_FAILED


@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_a_file_that_is_no_program_cannot_be_run(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "program"
    path.write_bytes(b"\x7fELF nothing")
    path.chmod(mode)
    with pytest.raises(CommandMissingError, match="cannot be run"):
        run([str(path)], deadline=within(), remedy=REMEDY)


def test_a_relative_path_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="absolute"):
        run(["sh"], deadline=within(), remedy=REMEDY)


def test_nothing_starts_after_the_deadline(tmp_path: Path) -> None:
    with pytest.raises(CollectError) as caught:
        run(
            [SHELL, "-c", f"touch {tmp_path}/ran"],
            deadline=Deadline(5.0, lambda: 5.0),
            remedy=REMEDY,
        )
    assert caught.value.reason is UnavailableReason.TIMED_OUT
    assert not list(tmp_path.iterdir())


LATE = {
    "silent": "{ready}; sleep 600",
    "talks first": "echo early; {ready}; sleep 600",
    "closes its output and lives on": "exec >&-; {ready}; sleep 600",
    "its child keeps the output open": "sleep 600 & echo $! >> {pids}; {ready}; exit 0",
    "its child of another session keeps the output open": (
        "setsid sh -c '{ready}; exec sleep 600' & echo $! >> {pids}"
    ),
    "cannot be asked to end": "trap '' TERM INT HUP; {ready}; sleep 600; sleep 600",
}


@pytest.mark.parametrize("name", LATE)
def test_lateness_ends_with_the_deadline_and_nothing_of_the_group_is_left(name: str, tmp_path: Path) -> None:
    pids, ready = tmp_path / "pids", tmp_path / "ready"
    script = f"echo $$ > {pids}; " + LATE[name].format(pids=pids, ready=f"echo > {ready}")

    def clock() -> float:
        """Time passes when all is there that has to end, however long that takes here."""
        there = ready.exists() and len(written_pids(pids)) == script.count(str(pids))
        return 1.0 if there else 0.0

    with pytest.raises(CollectError) as caught:
        run([SHELL, "-c", script], deadline=Deadline(0.05, clock), remedy=REMEDY)
    assert caught.value.reason is UnavailableReason.TIMED_OUT
    leader, *others = written_pids(pids)
    assert gone(leader)
    assert not Path(f"/proc/{leader}").exists()
    if "another session" not in name:
        assert all(gone(pid) for pid in others)
    else:
        os.kill(others[0], 9)


def test_a_child_that_lets_go_of_the_output_does_not_outlive_the_call(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    assert shell(f"sleep 600 >/dev/null & echo $! > {pids}; echo done") == b"done\n"
    assert all(gone(pid) for pid in written_pids(pids))


def test_no_descriptor_is_left_open() -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    shell("echo warm")
    before = descriptors()
    for _ in range(5):
        shell("echo x")
        with pytest.raises(CommandFailedError):
            shell("exit 1")
    # A thread that an earlier test left may close its own meanwhile.
    assert descriptors() <= before
