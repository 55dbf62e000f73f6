"""Start a phase: its run directory is made, its supervisor is started, and it says whether the phase runs.

Making the run directory is what keeps a launch from happening twice. From then on every failure has one of
two answers: nothing was started and nothing will be, or look again.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import select
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from ticket_agent.peft.release.launch_errors import LaunchRefusedError, LaunchUnknownError
from ticket_agent.peft.release.phase_command import ALLOWED_VARIABLES, PhaseCommand
from ticket_agent.peft.release.process import running_tasks
from ticket_agent.peft.release.run_files import LOCK_FILE, STARTING_FILES
from ticket_agent.peft.release.running_phase import NotStarted, RunningPhase
from ticket_agent.peft.release.supervise_spec import MAX_SPEC_BYTES, SuperviseSpec

if TYPE_CHECKING:
    from ticket_agent.peft.release.confine import Confinement, Wrapped

__all__ = ["ALLOWED_VARIABLES", "ConfinedLauncher", "Launcher", "PhaseCommand", "python_paths"]

_PACKAGE_ROOT: Final = Path(__file__).resolve().parents[2]
_ANSWER_BYTES: Final = 64 * 1024
_START_TIMEOUT_S: Final = 15.0
"""A busy host takes 2 s. The agent waits here, and has to say that it lives every 30 s."""
_LAST_BREATH_S: Final = 5.0
"""How long a supervisor that has said no may take to be gone."""
_LOCK_TRIES: Final = 300
_LOCK_PAUSE_S: Final = 0.01
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_LOCK: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

# The checkout or site-packages comes last, so that nothing in it can stand in for the standard library.
_BOOTSTRAP: Final = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from ticket_agent.peft.release.supervise import main; sys.exit(main(sys.argv[2:]))"
)


class Launcher(Protocol):
    """Starts phases. Finding one again needs no launcher: see :class:`RunningPhase`."""

    @property
    def name(self) -> str:
        """What confines the phases."""

    def start(self, command: PhaseCommand) -> RunningPhase:
        """Start a phase; when this returns, its program is being executed and its identity is on disk.

        Raises:
            LaunchRefusedError: nothing was started and nothing will be.
            LaunchUnknownError: attach to the run directory and look.
        """


class ConfinedLauncher:
    """The one launcher there is, for any confinement."""

    def __init__(self, confinement: Confinement, *, start_timeout_s: float = _START_TIMEOUT_S) -> None:
        self._confinement = confinement
        self._start_timeout_s = start_timeout_s

    @property
    def name(self) -> str:
        """See :class:`Launcher`."""
        return self._confinement.name

    def start(self, command: PhaseCommand) -> RunningPhase:
        """See :class:`Launcher`."""
        _check_paths(command)
        marker = secrets.token_hex(16)
        wrapped = self._confinement.wrap(command, marker=marker, tasks=running_tasks(os.geteuid()))
        spec = SuperviseSpec(
            launch_id=command.launch_id,
            marker=marker,
            launcher=self._confinement.name,
            unit=wrapped.unit,
            argv=wrapped.argv,
            environment=wrapped.environment,
            cwd=wrapped.cwd,
            deadline_s=command.deadline_s,
            rlimits=wrapped.rlimits,
            no_new_privileges=wrapped.no_new_privileges,
            bounds=command.output,
            end_commands=wrapped.end_commands,
            niceness=command.niceness,
        ).encode()
        if len(spec) > MAX_SPEC_BYTES:
            raise LaunchRefusedError(f"the description of the launch exceeds {MAX_SPEC_BYTES} bytes")
        phase = RunningPhase(command.run_dir, launch_id=command.launch_id)
        with ExitStack() as stack:
            try:
                dir_fd, lock_fd = _make_run_dir(command.run_dir, stack, home=wrapped.home_in_run_dir)
                process = self._start_supervisor(wrapped, dir_fd, lock_fd)
            except OSError as error:
                _remove_run_dir(command.run_dir)
                raise LaunchRefusedError(f"starting {command.launch_id}: {error}") from error
            answer = self._ask(process, spec)
        self._judge(phase, answer)
        return phase

    def _start_supervisor(self, wrapped: Wrapped, dir_fd: int, lock_fd: int) -> subprocess.Popen[bytes]:
        # What this process was told by the environment, -I would make the supervisor forget.
        quiet = ("-B",) if sys.dont_write_bytecode else ()
        python = (sys.executable, "-I", "-S", *quiet, "-c", _BOOTSTRAP, str(_PACKAGE_ROOT))
        return subprocess.Popen(  # noqa: S603 - our own program
            [*wrapped.supervisor_prefix, *python, str(dir_fd), str(lock_fd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=wrapped.supervisor_environment,
            cwd="/",
            pass_fds=(dir_fd, lock_fd),
            start_new_session=True,
        )

    def _ask(self, process: subprocess.Popen[bytes], spec: bytes) -> bytes:
        """Give a supervisor its task and return what it answers; nothing when it says nothing in time."""
        deadline = time.monotonic() + self._start_timeout_s
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdout as answers:
            with suppress(OSError), process.stdin as stdin:
                stdin.write(spec)
            answer = _read_line(answers.fileno(), deadline)
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return answer

    def _judge(self, phase: RunningPhase, answer: bytes) -> None:
        """Return when the phase was started."""
        text = answer.decode(errors="backslashreplace").strip()
        try:
            said = json.loads(text.splitlines()[-1] if text else "")
        except ValueError:
            said = None
        match said:
            case {"started": True}:
                return
            case {"started": False, "error": str(reason)}:
                definite = True
            case _:
                reason = text.splitlines()[-1] if text else "its supervisor ended without a word"
                definite = False
        state = phase.wait(_LAST_BREATH_S) if definite else phase.poll()
        if isinstance(state, NotStarted):
            _remove_run_dir(phase.run_dir)
        if definite or isinstance(state, NotStarted):
            raise LaunchRefusedError(f"{self.name} did not start {phase.launch_id}: {reason}")
        raise LaunchUnknownError(
            f"the supervisor of {phase.launch_id} did not answer in {self._start_timeout_s:g} s; look again"
        )


def _read_line(fd: int, deadline: float) -> bytes:
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLHUP)
    data = b""
    while len(data) < _ANSWER_BYTES and not data.endswith(b"}\n"):
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            break
        if not (chunk := os.read(fd, 4096)):
            break
        data += chunk
    return data


def _make_run_dir(path: Path, stack: ExitStack, *, home: bool) -> tuple[int, int]:
    """Make the directory and take its lock; both descriptors are open as long as ``stack``."""
    parent = os.open(path.parent, _OPEN_DIRECTORY)
    stack.callback(os.close, parent)
    try:
        os.mkdir(path.name, 0o700, dir_fd=parent)
    except FileExistsError:
        raise LaunchRefusedError(
            f"{path} exists: this phase was launched before and is not launched again"
        ) from None
    dir_fd = os.open(path.name, _OPEN_DIRECTORY, dir_fd=parent)
    stack.callback(os.close, dir_fd)
    lock_fd = os.open(LOCK_FILE, _NEW_LOCK, 0o600, dir_fd=dir_fd)
    stack.callback(os.close, lock_fd)
    _take_lock(lock_fd)
    if home:
        os.mkdir("tmp", 0o700, dir_fd=dir_fd)
    os.fsync(dir_fd)
    os.fsync(parent)
    return dir_fd, lock_fd


def _take_lock(fd: int) -> None:
    """Take the lock of a directory that was just made; who looks at it may hold it for a moment, shared."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE_S)
        else:
            return
    held_s = _LOCK_TRIES * _LOCK_PAUSE_S
    raise BlockingIOError(errno.EWOULDBLOCK, f"another program has held the new lock for {held_s:.0f} s")


def _remove_run_dir(path: Path) -> None:
    """Undo a start of which nothing runs and nothing will, so that it may be tried again."""
    with suppress(OSError):
        for name in STARTING_FILES:
            (path / name).unlink(missing_ok=True)
        if (path / "tmp").exists():
            (path / "tmp").rmdir()
        path.rmdir()


def _check_paths(command: PhaseCommand) -> None:
    """Refuse what is missing and what is reached through a link, which would confine something else."""
    for path in (*command.read_only, *command.writable, *command.devices, command.working_dir):
        try:
            same = path.resolve(strict=True) == path
        except OSError as error:
            raise LaunchRefusedError(
                f"{path} cannot be given to a phase: {error.strerror or error}"
            ) from error
        if not same:
            raise LaunchRefusedError(f"{path} cannot be given to a phase: a link is in it")
    for path in command.writable:
        if not path.is_dir():
            raise LaunchRefusedError(f"{path} cannot be written to by a phase: it is no directory")


def python_paths() -> tuple[Path, ...]:
    """What a phase must see to run this interpreter and this package; directories, outermost only."""
    wanted = {Path(text).resolve() for text in (sys.prefix, sys.base_prefix, *_package_folders())}
    return tuple(
        path
        for path in sorted(wanted)
        if not any(path != other and path.is_relative_to(other) for other in wanted)
    )


def _package_folders() -> list[str]:
    package = Path(sys.modules["ticket_agent"].__file__ or "").parent
    linked = [package / name for name in ("gpu", "journal", "peft")]
    return [str(package), *(str(path) for path in linked if path.is_symlink())]
