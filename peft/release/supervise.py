"""The supervisor: one small process per phase that outlives the agent and knows how the phase ended.

It starts the phase, keeps draining its output, enforces its deadline and stops it on SIGTERM. It writes
``exit.json`` when nothing of the phase is left, grandchildren that detached themselves included, and ends.
When it is killed itself, the kernel kills the phase. It imports the standard library and its neighbours.

Standard input gives the specification; standard output takes one line of answer, ``{"started": true}`` or
``{"started": false, "error": "..."}``. Arguments: descriptors of the run directory and of its held lock.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import selectors
import signal
import sys
import time
from contextlib import suppress
from typing import Final

from ticket_agent.peft.release.output_ring import OutputRing
from ticket_agent.peft.release.prctl import adopt_orphans
from ticket_agent.peft.release.process import ProcessIdentity, descendants, send_signal
from ticket_agent.peft.release.run_files import (
    MAX_TEXT,
    EndReason,
    ExitRecord,
    RunRecord,
    now_ms,
    reserve_exit,
    write_exit,
    write_running,
)
from ticket_agent.peft.release.spawning import GatedChild
from ticket_agent.peft.release.supervise_spec import MAX_SPEC_BYTES, SuperviseSpec

__all__ = ["main"]

_CHUNK: Final = 64 * 1024
_MAX_PIPE_BYTES: Final = 1 << 20
_TICK_S: Final = 1.0
"""Longest sleep: a clock that stands still while the host is suspended must not stretch the deadline."""
_ENDING_PAUSE_S: Final = 0.002
_END_COMMAND_S: Final = 10.0
_NO_SUCH_UNIT: Final = 5
_EXIT_RETRY_S: Final = 1.0


class _Supervisor:
    def __init__(self, spec: SuperviseSpec, dir_fd: int) -> None:
        self._spec = spec
        self._dir_fd = dir_fd
        self._ring = OutputRing(dir_fd, spec.bounds)
        self._output, self._output_w = os.pipe()
        os.set_blocking(self._output, False)
        self._wake, self._wake_w = os.pipe()
        os.set_blocking(self._wake_w, False)
        self._stop_asked = False
        self._status: int | None = None
        self._child_pid = 0
        self._started_unix_ms = now_ms()
        self._deadline = math.inf if spec.deadline_s is None else _boottime() + spec.deadline_s

    def start(self) -> str | None:
        """Start the phase; None, or why its program could not be executed."""
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        reserve_exit(self._dir_fd)
        child = GatedChild(self._spec, self._output_w)
        self._child_pid = child.pid
        os.close(self._output_w)
        supervisor, identity = ProcessIdentity.of(os.getpid()), ProcessIdentity.of(child.pid)
        assert supervisor is not None
        assert identity is not None
        write_running(
            self._dir_fd,
            RunRecord(
                launch_id=self._spec.launch_id,
                marker=self._spec.marker,
                launcher=self._spec.launcher,
                unit=self._spec.unit,
                supervisor=supervisor,
                child=identity,
                started_unix_ms=self._started_unix_ms,
            ),
        )
        return child.release()

    def run(self) -> None:
        """Watch until the end, and write it down."""
        reason = self._watch()
        self._end_everything()
        self._drain()
        self._ring.close()
        status = 0 if self._status is None else self._status
        self._finish(
            reason,
            code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            number=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        )

    def not_started(self, error: str) -> None:
        """Write down that the program could not be executed."""
        self._end_everything()
        self._finish(EndReason.NOT_STARTED, error=error[:MAX_TEXT])

    def _on_stop(self, *_: object) -> None:
        self._stop_asked = True

    def _watch(self) -> EndReason:
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while True:
                self._reap()
                if self._status is not None:
                    return EndReason.EXITED
                if self._stop_asked:
                    return EndReason.STOPPED
                left = self._deadline - _boottime()
                if left <= 0:
                    return EndReason.DEADLINE
                for key, _ in selector.select(min(left, _TICK_S)):
                    if key.fd == self._wake:
                        os.read(self._wake, _CHUNK)
                    elif not self._read_some():
                        selector.unregister(self._output)

    def _read_some(self) -> bool:
        """Take one chunk of output; False at its end."""
        try:
            data = os.read(self._output, _CHUNK)
        except BlockingIOError:
            return True
        self._ring.write(data)
        return bool(data)

    def _drain(self) -> None:
        """Take what the pipe can hold, and no more: a service that is not below us may still write."""
        taken = 0
        with suppress(BlockingIOError):
            while taken < _MAX_PIPE_BYTES and (data := os.read(self._output, _CHUNK)):
                self._ring.write(data)
                taken += len(data)

    def _reap(self) -> bool:
        """Collect what ended; False when there is nothing below us any more."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._child_pid:
                self._status = status

    def _end_everything(self) -> None:
        """Kill until nothing is left. Whatever detaches itself comes to us as an orphan."""
        while self._reap():
            for identity in descendants(os.getpid()):
                send_signal(identity, signal.SIGKILL)
            # Its writers must be able to die; a full pipe does not hold a killed process, a full disk may.
            self._drain()
            time.sleep(_ENDING_PAUSE_S)
        for command in self._spec.end_commands:
            while not _succeeds(command, self._spec.environment):
                time.sleep(_EXIT_RETRY_S)

    def _finish(
        self,
        reason: EndReason,
        *,
        code: int | None = None,
        number: int | None = None,
        error: str | None = None,
    ) -> None:
        record = ExitRecord(
            launch_id=self._spec.launch_id,
            reason=reason,
            code=code if error is None else None,
            signal=number,
            started_unix_ms=self._started_unix_ms,
            ended_unix_ms=now_ms(),
            output_bytes=self._ring.total,
            output_lost_bytes=self._ring.lost,
            error=error,
        )
        write_exit(self._dir_fd, record)


def _succeeds(command: tuple[str, ...], environment: dict[str, str]) -> bool:
    import subprocess  # noqa: PLC0415 - start-up time

    try:
        done = subprocess.run(  # noqa: S603 - built by our launcher
            command, env=environment, capture_output=True, timeout=_END_COMMAND_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode in (0, _NO_SUCH_UNIT)


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _answer(error: str | None) -> None:
    answer = {"started": True} if error is None else {"started": False, "error": error[:MAX_TEXT]}
    with suppress(OSError):  # the agent may be gone; what is on disk counts
        os.write(1, json.dumps(answer).encode() + b"\n")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def main(arguments: list[str]) -> int:
    """Run one phase to its end."""
    dir_fd, lock_fd = (int(text) for text in arguments)
    for fd in (dir_fd, lock_fd):
        os.set_inheritable(fd, False)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o077)
    with os.fdopen(0, "rb", closefd=False) as stdin:
        data = stdin.read(MAX_SPEC_BYTES + 1)
    # The agent waits for this first process, so that the one that stays is nobody's child to forget.
    if os.fork():
        os._exit(0)
    try:
        spec = SuperviseSpec.decode(data)
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held already, by the same open file
        adopt_orphans()
        supervisor = _Supervisor(spec, dir_fd)
        error = supervisor.start()
    except Exception as failure:  # noqa: BLE001 - told to the one who can say it
        # The gate is closed: the child ends with us and has not executed anything.
        _answer(f"{type(failure).__name__}: {failure}")
        return 1
    if error is None:
        _answer(None)
        supervisor.run()
    else:
        supervisor.not_started(error)
        _answer(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
