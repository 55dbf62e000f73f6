"""A phase that was started, by this process or by one that is long gone: to look at, to stop, to read."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from ticket_agent.peft.errors import PeftIoError
from ticket_agent.peft.names import shown
from ticket_agent.peft.release.confine import end_unit_commands
from ticket_agent.peft.release.launch_errors import PhaseMismatchError, PhaseStopError
from ticket_agent.peft.release.phase_command import MARKER_VARIABLE
from ticket_agent.peft.release.phase_log import PhaseLog, read_log
from ticket_agent.peft.release.process import marked, open_process, send_signal, wait_gone
from ticket_agent.peft.release.run_files import LOCK_FILE, ExitRecord, RunRecord, read_exit, read_running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ticket_agent.peft.release.process import ProcessIdentity

__all__ = ["Finished", "Lost", "NotStarted", "PhaseState", "Running", "RunningPhase"]

_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_LOCK: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_STOP_S: Final = 1.0
_PAUSE_S: Final = 0.005
_POLITE_SHARE: Final = 0.4
"""Of the time there is, what the supervisor gets to end everything itself before it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """It runs, or is just being started; ``record`` is None in the moment before its identity is written."""

    record: RunRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """It ended and nothing of it is left."""

    record: ExitRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """It was started and nobody saw how it ended: only its own observation can tell what it achieved.

    Something of it may still run. :meth:`RunningPhase.stop` ends that.
    """

    record: RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class NotStarted:
    """Not one instruction of it ever ran, and none will."""


PhaseState: TypeAlias = Running | Finished | Lost | NotStarted


class RunningPhase:
    """The handle of a launch. Making one touches nothing; any number of them may exist at the same time.

    Attributes:
        run_dir: the run directory.
        launch_id: the launch that it must belong to.
    """

    def __init__(self, run_dir: Path, *, launch_id: str, expected: ProcessIdentity | None = None) -> None:
        """Attach.

        Args:
            run_dir: as it was in the command.
            launch_id: as it was in the command.
            expected: identity of the supervisor as the caller noted it down, when it did.
        """
        self.run_dir: Final = run_dir
        self.launch_id: Final = launch_id
        self._expected = expected

    def poll(self) -> PhaseState:
        """Look; never waits.

        Raises:
            PhaseMismatchError: the directory belongs to another launch.
            RunFileError: a file in it is damaged.
            PeftIoError: the system failed.
        """
        with self._opened() as dir_fd:
            return NotStarted() if dir_fd is None else self._state(dir_fd)

    def identity(self) -> ProcessIdentity | None:
        """The supervisor, to note down; None while or when there is none. Raises as :meth:`poll`."""
        with self._opened() as dir_fd:
            record = None if dir_fd is None else self._record(dir_fd)
        return None if record is None else record.supervisor

    def log(self) -> PhaseLog:
        """What was kept of the output until now.

        Raises:
            PeftIoError: the system failed.
        """
        with self._opened() as dir_fd:
            return PhaseLog(pieces=()) if dir_fd is None else read_log(dir_fd)

    def wait(self, timeout_s: float) -> PhaseState:
        """Wait for its end, at most so many seconds; otherwise as :meth:`poll`. Not for the agent's loop."""
        deadline = time.monotonic() + timeout_s
        while isinstance(state := self.poll(), Running) and (left := deadline - time.monotonic()) > 0:
            pidfd = None if state.record is None else open_process(state.record.supervisor)
            if pidfd is None:
                time.sleep(_PAUSE_S)
                continue
            try:
                wait_gone(pidfd, left)
            finally:
                os.close(pidfd)
        return state

    def stop(self, *, timeout_s: float = _STOP_S) -> PhaseState:
        """End it and everything that it started, at once and for certain. Idempotent.

        Args:
            timeout_s: how long this may take at most, in seconds.

        Returns:
            Finished, Lost (and nothing of it runs any more), or NotStarted.

        Raises:
            PhaseStopError: something may still run; call again.
            PhaseMismatchError, RunFileError, PeftIoError: as :meth:`poll`.
        """
        deadline = time.monotonic() + timeout_s
        while isinstance(state := self.poll(), Running):
            if time.monotonic() >= deadline:
                raise PhaseStopError(f"phase {self.launch_id} did not end in {timeout_s:g} s; stop it again")
            if state.record is None:
                time.sleep(_PAUSE_S)
            else:
                _end_supervisor(state.record, deadline)
        if isinstance(state, Lost):
            self._end_leftovers(state.record, deadline)
        return state

    def _end_leftovers(self, record: RunRecord, deadline: float) -> None:
        """End what a dead supervisor left: the kernel was told to, but what had detached itself stays."""
        _end_unit(record, deadline)
        while True:
            left = marked(MARKER_VARIABLE, record.marker)
            if record.child.is_running():
                left.append(record.child)
            if not left:
                return
            for identity in left:
                send_signal(identity, signal.SIGKILL)
            if time.monotonic() >= deadline:
                raise PhaseStopError(
                    f"{len(left)} processes of phase {self.launch_id} are still there, the first is "
                    f"{left[0].pid}; stop it again"
                )
            time.sleep(_PAUSE_S)

    def _state(self, dir_fd: int) -> PhaseState:
        if (ended := read_exit(dir_fd)) is not None:
            return self._finished(ended)
        held = _is_held(dir_fd)
        record = self._record(dir_fd)
        if held:
            return Running(record=record)
        # Between the first look and the lock it may have ended properly.
        if (ended := read_exit(dir_fd)) is not None:
            return self._finished(ended)
        return NotStarted() if record is None else Lost(record=record)

    def _finished(self, ended: ExitRecord) -> PhaseState:
        self._check_launch(ended.launch_id)
        return Finished(record=ended)

    def _record(self, dir_fd: int) -> RunRecord | None:
        record = read_running(dir_fd)
        if record is not None:
            self._check_launch(record.launch_id)
            if self._expected is not None and record.supervisor != self._expected:
                raise PhaseMismatchError(
                    f"{self.run_dir} names supervisor {record.supervisor.pid}, not {self._expected.pid}, "
                    f"which was noted down for {self.launch_id}"
                )
        return record

    def _check_launch(self, found: str) -> None:
        if found != self.launch_id:
            raise PhaseMismatchError(f"{self.run_dir} belongs to launch {shown(found)}, not {self.launch_id}")

    @contextmanager
    def _opened(self) -> Iterator[int | None]:
        try:
            dir_fd = os.open(self.run_dir, _OPEN_DIRECTORY)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            raise PeftIoError(f"opening {self.run_dir}", error) from error
        try:
            yield dir_fd
        except OSError as error:
            raise PeftIoError(f"reading {self.run_dir}", error) from error
        finally:
            os.close(dir_fd)


def _is_held(dir_fd: int) -> bool:
    """The supervisor lives. A shared lock, so that two who look do not see each other."""
    try:
        fd = os.open(LOCK_FILE, _OPEN_LOCK, dir_fd=dir_fd)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _end_supervisor(record: RunRecord, deadline: float) -> None:
    """Ask the supervisor to end everything; kill it, and its child with it, when it does not."""
    pidfd = open_process(record.supervisor)
    if pidfd is None:
        time.sleep(_PAUSE_S)  # about to be gone: its lock is released in this moment
        return
    try:
        for number, share in ((signal.SIGTERM, _POLITE_SHARE), (signal.SIGKILL, 1.0)):
            try:
                signal.pidfd_send_signal(pidfd, number)
            except ProcessLookupError:
                return
            if wait_gone(pidfd, (deadline - time.monotonic()) * share):
                return
    except PermissionError as error:
        raise PhaseStopError(f"the supervisor of {record.launch_id} runs under another account") from error
    finally:
        os.close(pidfd)


def _end_unit(record: RunRecord, deadline: float) -> None:
    if record.unit is None:
        return
    control = shutil.which("systemctl")
    scope = record.launcher.removeprefix("systemd-")
    if control is None or scope not in ("user", "system"):
        raise PhaseStopError(f"unit {record.unit} may still run and systemctl is not there to stop it")
    for command in end_unit_commands(control, scope, record.unit):
        try:
            done = subprocess.run(  # noqa: S603 - our own command
                command, capture_output=True, timeout=max(0.1, deadline - time.monotonic()), check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PhaseStopError(f"stopping unit {record.unit}: {error}") from error
        if done.returncode not in (0, 5):
            raise PhaseStopError(
                f"unit {record.unit} was not stopped: {done.stderr.decode(errors='replace')}"
            )
