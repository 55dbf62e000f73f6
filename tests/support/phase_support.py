"""Phases for tests: small programs that tell what they are doing through a FIFO, in each confinement."""

from __future__ import annotations

import itertools
import os
import select
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ticket_agent.peft.release.confine import Bubblewrap, Confinement, SystemdRun, Unconfined
from ticket_agent.peft.release.launcher import ConfinedLauncher, PhaseCommand, python_paths

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.peft.release.running_phase import RunningPhase

WAIT_S = 60.0


def _bubblewrap() -> Bubblewrap | None:
    program = shutil.which("bwrap")
    return None if program is None else Bubblewrap.of_host(program)


def _why_no_bubblewrap() -> str | None:
    program = shutil.which("bwrap")
    if program is None:
        return "bwrap is not installed"
    trial = [program, "--unshare-all", "--ro-bind", "/", "/", "--size", "4096", "--tmpfs", "/tmp", "true"]
    done = subprocess.run(trial, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"bwrap does not work here: {done.stderr.strip()}"


_WHY_NOT = _why_no_bubblewrap()
needs_bubblewrap = pytest.mark.skipif(_WHY_NOT is not None, reason=str(_WHY_NOT))


def _systemd() -> SystemdRun | None:
    """When a user manager runs for us; see ``systemd_manager`` for one where there is none."""
    if not Path(os.environ.get("XDG_RUNTIME_DIR", "/nonexistent"), "systemd/private").exists():
        return None
    return SystemdRun.of_host("/usr/bin/systemd-run", "/usr/bin/systemctl", "user", os.environ)


BUBBLEWRAP: Confinement | None = _bubblewrap()
SYSTEMD: Confinement | None = _systemd()
CONFINEMENTS = [
    pytest.param(Unconfined(), id="unconfined"),
    pytest.param(BUBBLEWRAP, id="bubblewrap", marks=needs_bubblewrap),
]
if SYSTEMD is not None:
    CONFINEMENTS.append(pytest.param(SYSTEMD, id="systemd"))

TELL = (
    "import os, signal, sys\nfifo = os.open('told', os.O_WRONLY)\ntell = lambda text: os.write(fifo, text)\n"
)
"""Every writer holds the FIFO open for as long as it lives: its end proves that nobody is left."""

STAY = TELL + "tell(b'P')\nsignal.pause()\n"

TREE = (
    TELL
    + """
def detached(environment):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        code = "import os, signal, sys; os.write(int(sys.argv[1]), b'D'); signal.pause()"
        os.set_inheritable(fifo, True)
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code, str(fifo)], environment)
detached(dict(os.environ))
detached(dict(os.environ))
tell(b'P')
"""
)
"""A phase with two descendants that left its session and its process group."""


LAUNCHES = itertools.count()
"""A manager may know a unit for a moment longer than anything of it runs, so no two launches share a name."""


@dataclass
class Stage:
    """Folders of one phase and the FIFO through which it tells what it does."""

    folder: Path
    confinement: Confinement

    def __post_init__(self) -> None:
        self.work = self.folder / "work"
        self.work.mkdir()
        os.mkfifo(self.work / "told")
        self._told = os.open(self.work / "told", os.O_RDONLY | os.O_NONBLOCK)
        self.launcher = ConfinedLauncher(self.confinement)
        self.phases: list[RunningPhase] = []

    def command(self, code: str, *arguments: str, **changes: Any) -> PhaseCommand:
        """A Python program in the folder ``work``, which it can write to."""
        number = next(LAUNCHES)
        values: dict[str, Any] = {
            "launch_id": f"op-{os.getpid()}-{number}.validate",
            "argv": (sys.executable, "-I", "-S", "-c", code, *arguments),
            "run_dir": self.folder / f"run-{number}",
            "working_dir": self.work,
            "read_only": python_paths(),
            "writable": (self.work,),
            "deadline_s": WAIT_S,
        }
        return PhaseCommand(**{**values, **changes})

    def start(self, code: str, *arguments: str, **changes: Any) -> RunningPhase:
        phase = self.launcher.start(self.command(code, *arguments, **changes))
        self.phases.append(phase)
        return phase

    def hear(self, count: int) -> bytes:
        """The next ``count`` bytes that are told, sorted."""
        heard = b""
        poll = select.poll()
        poll.register(self._told, select.POLLIN)
        deadline = time.monotonic() + WAIT_S
        while len(heard) < count:
            left = deadline - time.monotonic()
            assert left > 0, f"heard only {heard!r}"
            poll.poll(left * 1000)
            with suppress(BlockingIOError):
                heard += os.read(self._told, count - len(heard))
            time.sleep(0.001)  # after the last writer of an earlier phase, waiting returns at once
        return bytes(sorted(heard))

    def nobody_left(self) -> bool:
        """No process has the FIFO open: of everything that told something, nothing lives."""
        poll = select.poll()
        poll.register(self._told, select.POLLIN)
        return any(event & select.POLLHUP for _, event in poll.poll(0))

    def wait_nobody_left(self) -> None:
        poll = select.poll()
        poll.register(self._told, 0)
        assert poll.poll(WAIT_S * 1000), "somebody is still there"

    def close(self) -> None:
        for phase in self.phases:
            phase.stop(timeout_s=WAIT_S)
        os.close(self._told)


@contextmanager
def staged(folder: Path, confinement: Confinement) -> Iterator[Stage]:
    stage = Stage(folder=folder, confinement=confinement)
    try:
        yield stage
    finally:
        stage.close()
