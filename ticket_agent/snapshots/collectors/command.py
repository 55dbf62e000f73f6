"""Running one fixed program for a collector: what it prints, within a size and by a deadline.

The program runs in a process group of its own with an empty environment. Whatever of the group is left when
the call ends is killed, and the program itself is reaped. What a program started and moved to another group
outlives the call, but cannot hold it up.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import subprocess
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ticket_agent.protocol.collecting import CollectError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ticket_agent.protocol.collecting import Deadline

__all__ = ["DEFAULT_OUTPUT_BYTES", "CommandFailedError", "CommandMissingError", "OutputTooLongError", "run"]

DEFAULT_OUTPUT_BYTES = 65_536

_ENVIRON = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_PIECE_BYTES = 65_536
_FIRST_NAP_S = 0.0005
_LONGEST_NAP_S = 0.02
_REAP_S = 1.0
"""How long a killed program is waited for. One that hangs in the kernel is reaped when it ends."""


class _Entry:
    """A program from before its start until its end."""

    __slots__ = ("begun", "process")

    def __init__(self) -> None:
        self.begun = threading.Event()
        """Whether it runs, or could not be started."""
        self.process: subprocess.Popen[bytes] | None = None


_RUNNING: set[_Entry] = set()
"""Collectors run in threads that end with the process, without a word; their programs must not outlive it."""
_OVER = threading.Event()
"""The process is ending, and starts nothing any more."""


class CommandMissingError(CollectError):
    """The program is not installed, or may not be run."""


class CommandFailedError(CollectError):
    """The program ended with another status than 0."""


class OutputTooLongError(CollectError):
    """The program printed more than it may."""


def run(
    arguments: Sequence[str], *, deadline: Deadline, remedy: str, max_bytes: int = DEFAULT_OUTPUT_BYTES
) -> bytes:
    """Run a program to its end and return what it printed.

    Args:
        arguments: the absolute path of the program, then its arguments.
        deadline: covers its output and its end.
        remedy: what makes the program be there, for example ``install the package iproute2``.
        max_bytes: most bytes it may print.

    Raises:
        CommandMissingError: it cannot be started.
        CommandFailedError: it ended with another status than 0, or by a signal.
        OutputTooLongError: it printed more.
        CollectError: ``timed_out``, it kept its output open, or lived, until the deadline.
        ValueError: the path is not absolute.
    """
    if not os.path.isabs(arguments[0]):  # noqa: PTH117 - nothing else of a path is needed
        raise ValueError(f"{arguments[0]} must be an absolute path")
    deadline.left_s()
    entry = _Entry()
    _RUNNING.add(entry)
    try:
        process = _started(entry, arguments, remedy)
        output = _read(process, arguments, deadline, max_bytes)
        _await_end(process, deadline)
    finally:
        _end(entry)
    if process.returncode != 0:
        raise CommandFailedError(f"{_told(arguments)} {_ending(process.returncode)}; run it to see why")
    return output


def _started(entry: _Entry, arguments: Sequence[str], remedy: str) -> subprocess.Popen[bytes]:
    # Looked at after the entry was made: whoever ends the process sees the entry, or nothing starts.
    if _OVER.is_set():
        raise CollectError("this process is ending")
    try:
        entry.process = subprocess.Popen(  # noqa: S603 - callers pass fixed programs
            list(arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_ENVIRON,
            cwd="/",
            process_group=0,
            bufsize=0,
        )
    except FileNotFoundError:
        raise CommandMissingError(f"{arguments[0]} is not there; {remedy}") from None
    except OSError as error:
        raise CommandMissingError(f"{arguments[0]} cannot be run ({error.strerror}); {remedy}") from None
    finally:
        entry.begun.set()
    return entry.process


def _read(
    process: subprocess.Popen[bytes], arguments: Sequence[str], deadline: Deadline, max_bytes: int
) -> bytes:
    assert process.stdout is not None
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    output = bytearray()
    while True:
        if not poll.poll(max(1, int(deadline.left_s() * 1000))):
            continue
        piece = os.read(process.stdout.fileno(), _PIECE_BYTES)
        if not piece:
            return bytes(output)
        output += piece
        if len(output) > max_bytes:
            raise OutputTooLongError(f"{_told(arguments)} prints more than {max_bytes} bytes")


def _await_end(process: subprocess.Popen[bytes], deadline: Deadline) -> None:
    """Wait for the program to end without reaping it, so that its group can still be killed by number."""
    nap_s = _FIRST_NAP_S
    try:
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            time.sleep(min(nap_s, deadline.left_s()))
            nap_s = min(2 * nap_s, _LONGEST_NAP_S)
    except ChildProcessError:
        raise CollectError(
            "nobody can tell how a program ended, because this process ignores SIGCHLD; start it without"
            " `trap '' CHLD`"
        ) from None


def _end(entry: _Entry) -> None:
    _RUNNING.discard(entry)
    process = entry.process
    if process is None:
        return
    # The group's number is the program's own, and taken until the program is reaped.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdout is not None:
        process.stdout.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_S)


@atexit.register
def _end_all() -> None:
    _OVER.set()
    for entry in list(_RUNNING):
        # A program that is just being started may run before its thread knows it.
        entry.begun.wait(_REAP_S)
        if entry.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(entry.process.pid, signal.SIGKILL)


def _ending(status: int) -> str:
    return f"ended with status {status}" if status > 0 else f"was ended by signal {-status}"


def _told(arguments: Sequence[str]) -> str:
    return f"`{' '.join(arguments)}`"
