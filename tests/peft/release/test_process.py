"""Identities of processes: they name one process for ever, and only that one gets a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ticket_agent.peft.release.launch_errors import RunFileError
from ticket_agent.peft.release.process import (
    ProcessIdentity,
    descendants,
    marked,
    open_process,
    running_tasks,
    send_signal,
    wait_gone,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def identity_of(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    found = ProcessIdentity.of(process.pid)
    assert found is not None
    return found


def test_an_identity_survives_its_json(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper)
    assert ProcessIdentity.from_json(dict(identity.to_json())) == identity
    assert identity.is_running()


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"pid": 1, "start_ticks": 2},
        {"pid": "1", "start_ticks": 2, "boot_id": "x"},
        {"pid": 1, "start_ticks": 2, "boot_id": 3},
        {"pid": 1, "start_ticks": 2, "boot_id": "x", "more": 1},
    ],
)
def test_other_json_is_refused(value: object) -> None:
    with pytest.raises(RunFileError):
        ProcessIdentity.from_json(value)


def test_a_signal_reaches_the_named_process(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper)
    pidfd = open_process(identity)
    assert pidfd is not None
    assert not wait_gone(pidfd, 0)
    assert send_signal(identity, signal.SIGTERM)
    assert wait_gone(pidfd, 20)
    os.close(pidfd)
    # A zombie keeps the number and is as good as gone.
    assert not identity.is_running()
    assert open_process(identity) is None
    sleeper.wait()
    assert not send_signal(identity, signal.SIGTERM)


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another"}])
def test_a_process_with_the_same_number_is_left_alone(
    sleeper: subprocess.Popen[bytes], change: dict[str, object]
) -> None:
    other = replace(identity_of(sleeper), **change)  # type: ignore[arg-type]
    assert not other.is_running()
    assert open_process(other) is None
    assert not send_signal(other, signal.SIGKILL)
    assert sleeper.poll() is None


def test_a_name_with_brackets_and_blanks_does_not_confuse(sleeper: subprocess.Popen[bytes]) -> None:
    code = (
        "from ctypes import *\nCDLL(None).prctl(15, b') Z 1 (a b', 0, 0, 0)\n"
        "print(flush=True)\nimport signal; signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert identity_of(process).is_running()
        process.kill()


def test_descendants_and_marks() -> None:
    code = (
        "import os, signal, sys\nr, w = os.pipe()\n"
        "if os.fork() == 0:\n    os.setsid()\n    os.fork()\n    os.write(w, b'x'); signal.pause()\n"
        "n = 0\nwhile n < 2: n += len(os.read(r, 9))\nprint(flush=True); signal.pause()"
    )
    # Of this process alone: the same test may run beside this one, and all processes are looked at.
    mark = f"a value {os.getpid()}"
    environment = {"MARK": mark}
    command = [sys.executable, "-I", "-S", "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()
        below = descendants(process.pid)
        assert len(below) == 2
        assert {found.pid for found in marked("MARK", mark)} == {
            process.pid,
            *(found.pid for found in below),
        }
        assert marked("MARK", mark[:-1]) == marked("MAR", mark) == []
        assert set(below) <= set(descendants(os.getpid()))
        assert running_tasks(os.geteuid()) >= 4
        killed = [(identity, open_process(identity)) for identity in (*below, identity_of(process))]
        for identity, _ in killed:
            assert send_signal(identity, signal.SIGKILL)
    # Whoever gets a signal dies when it is its turn.
    for _, pidfd in killed:
        assert pidfd is not None
        assert wait_gone(pidfd, 20)
        os.close(pidfd)
    assert marked("MARK", mark) == []
