"""Real phases, with and without confinement: how they end, whoever is killed, and that nothing stays."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from peft_support import needs_mounts, no_descriptor_leaks, no_file_larger_than
from phase_support import CONFINEMENTS, STAY, TELL, TREE, WAIT_S, Stage, staged

from ticket_agent.peft.release import launcher
from ticket_agent.peft.release.launch_errors import (
    LaunchRefusedError,
    LaunchUnknownError,
    PhaseMismatchError,
    PhaseStopError,
    RunFileError,
)
from ticket_agent.peft.release.launcher import ConfinedLauncher
from ticket_agent.peft.release.offline_flags import OFFLINE
from ticket_agent.peft.release.output_ring import OutputBounds
from ticket_agent.peft.release.phase_command import PhaseLimits
from ticket_agent.peft.release.process import ProcessIdentity, send_signal, wait_gone
from ticket_agent.peft.release.run_files import (
    EXIT_FILE,
    LOCK_FILE,
    RUNNING_FILE,
    EndReason,
    RunRecord,
    read_exit,
)
from ticket_agent.peft.release.running_phase import Finished, Lost, NotStarted, Running, RunningPhase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.peft.release.confine import Confinement, Wrapped
    from ticket_agent.peft.release.phase_command import PhaseCommand
    from ticket_agent.peft.release.run_files import ExitRecord
    from ticket_agent.peft.release.running_phase import PhaseState

DEADLINE_S = 5.0
"""Of a phase whose three processes have to be there before it is over."""
LARGE = OutputBounds(head_bytes=1000, piece_bytes=4000)


@pytest.fixture(params=CONFINEMENTS)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path.resolve(), request.param) as made:
        yield made


def ended(phase: RunningPhase) -> ExitRecord:
    state = phase.wait(WAIT_S)
    assert isinstance(state, Finished)
    return state.record


def running(phase: RunningPhase) -> RunRecord:
    state = phase.poll()
    assert isinstance(state, Running)
    assert state.record is not None
    return state.record


def stopped(phase: RunningPhase) -> PhaseState:
    """Stop it in the time that callers have; again, as it says, where that is too short for a busy host."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            return phase.stop()
        except PhaseStopError:
            assert time.monotonic() < end


def again(phase: RunningPhase) -> RunningPhase:
    """The handle that another process would make."""
    return RunningPhase(phase.run_dir, launch_id=phase.launch_id)


@pytest.mark.parametrize("code", [0, 77])
def test_the_exit_code_is_kept(stage: Stage, code: int) -> None:
    phase = stage.start(f"import sys; print('hello'); sys.exit({code})")
    record = ended(phase)
    assert (record.reason, record.code, record.signal) == (EndReason.EXITED, code, None)
    assert record.succeeded is (code == 0)
    assert phase.log().lines() == ["hello"]
    assert record.output_bytes == 6
    assert record.started_unix_ms <= record.ended_unix_ms
    # Nothing changes it any more.
    assert phase.stop(timeout_s=WAIT_S) == again(phase).poll() == Finished(record=record)


def test_a_phase_that_kills_itself(stage: Stage) -> None:
    record = ended(stage.start("import os; os.kill(os.getpid(), 9)"))
    died = {"unconfined": (None, 9), "bubblewrap": (128 + 9, None)}.get(stage.confinement.name, (255, None))
    assert (record.reason, record.code, record.signal) == (EndReason.EXITED, *died)


def test_starting_and_looking_leave_no_descriptor(stage: Stage) -> None:
    with no_descriptor_leaks():
        phase = stage.start("pass")
        ended(phase)
        phase.log()
        phase.stop(timeout_s=WAIT_S)


def test_stopping_ends_the_whole_tree_at_once(stage: Stage) -> None:
    phase = stage.start(TREE + "signal.pause()\n")
    assert stage.hear(3) == b"DDP"
    state = phase.stop(timeout_s=WAIT_S)
    # Else it would be lost: a supervisor that takes its time is killed.
    assert isinstance(state, Finished)
    assert state.record.reason is EndReason.STOPPED
    assert stage.nobody_left()
    assert phase.stop(timeout_s=WAIT_S) == state


def test_what_a_phase_leaves_behind_ends_with_it(stage: Stage) -> None:
    record = ended(stage.start(TREE + "os._exit(4)\n"))
    assert (record.reason, record.code) == (EndReason.EXITED, 4)
    assert stage.nobody_left()


def test_a_phase_that_ignores_every_signal_is_stopped(stage: Stage) -> None:
    code = "for n in set(signal.Signals) - {9, 19}: signal.signal(n, signal.SIG_IGN)\n"
    phase = stage.start(TELL + code + "tell(b'P')\nwhile True: signal.pause()\n")
    stage.hear(1)
    assert isinstance(phase.stop(timeout_s=WAIT_S), Finished)
    assert stage.nobody_left()


def test_a_fork_storm_is_stopped(stage: Stage) -> None:
    doubling = "for _ in range(6):\n    if os.fork() == 0:\n        os.setsid()\n"
    phase = stage.start(TELL + "tell(b'P')\n" + doubling + "signal.pause()\n")
    stage.hear(1)
    assert isinstance(phase.stop(timeout_s=WAIT_S), Finished)
    assert stage.nobody_left()


def test_the_deadline_ends_the_tree(stage: Stage) -> None:
    phase = stage.start(TREE + "signal.pause()\n", deadline_s=DEADLINE_S)
    assert stage.hear(3) == b"DDP"
    assert ended(phase).reason is EndReason.DEADLINE
    assert stage.nobody_left()


AGENT = """
import os, pickle, sys
from ticket_agent.peft.release.launcher import ConfinedLauncher
confinement, command = pickle.loads(sys.stdin.buffer.read())
ConfinedLauncher(confinement).start(command)
print("started", flush=True)
import signal; signal.pause()
"""


def _killed_agent(stage: Stage, command: PhaseCommand) -> None:
    """Let another process start the phase, and kill it with everything in its process group."""
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    with agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdin.write(pickle.dumps((stage.confinement, command)))
        agent.stdin.close()
        assert agent.stdout.readline() == b"started\n"
        os.killpg(agent.pid, signal.SIGKILL)


def test_a_phase_outlives_the_agent_and_is_found_again(stage: Stage) -> None:
    command = stage.command(TELL + "tell(b'P')\nos.write(1, b'last words')\nopen('go').read()\nos._exit(6)\n")
    os.mkfifo(stage.work / "go")
    _killed_agent(stage, command)
    assert stage.hear(1) == b"P"
    phase = RunningPhase(command.run_dir, launch_id=command.launch_id)
    noted = phase.identity()
    assert running(phase).supervisor == noted
    (stage.work / "go").write_bytes(b"")
    record = ended(RunningPhase(command.run_dir, launch_id=command.launch_id, expected=noted))
    assert (record.reason, record.code) == (EndReason.EXITED, 6)
    assert phase.log().lines() == ["last words"]


def test_without_a_deadline_it_runs_until_it_is_stopped(stage: Stage) -> None:
    phase = stage.start(STAY, deadline_s=None)
    assert stage.hear(1) == b"P"
    assert isinstance(phase.poll(), Running)
    assert isinstance(phase.stop(timeout_s=WAIT_S), Finished)
    stage.wait_nobody_left()


def test_the_deadline_holds_without_the_agent(stage: Stage) -> None:
    command = stage.command(TREE + "signal.pause()\n", deadline_s=DEADLINE_S)
    _killed_agent(stage, command)
    assert stage.hear(3) == b"DDP"
    record = ended(RunningPhase(command.run_dir, launch_id=command.launch_id))
    assert record.reason is EndReason.DEADLINE
    assert stage.nobody_left()


def test_another_process_stops_it(stage: Stage) -> None:
    command = stage.command(TREE + "signal.pause()\n")
    _killed_agent(stage, command)
    assert stage.hear(3) == b"DDP"
    phase = RunningPhase(command.run_dir, launch_id=command.launch_id)
    assert isinstance(phase.stop(timeout_s=WAIT_S), Finished)
    assert stage.nobody_left()


def test_the_killed_phase_is_told(stage: Stage) -> None:
    phase = stage.start(STAY)
    stage.hear(1)
    assert send_signal(running(phase).child, signal.SIGKILL)
    record = ended(phase)
    assert (record.reason, record.code, record.signal) == (EndReason.EXITED, None, 9)
    assert stage.nobody_left()


def test_with_a_killed_supervisor_the_outcome_is_lost_and_the_phase_dies(stage: Stage) -> None:
    phase = stage.start(TREE + "signal.pause()\n")
    assert stage.hear(3) == b"DDP"
    record = running(phase)
    assert send_signal(record.supervisor, signal.SIGKILL)
    assert phase.wait(WAIT_S) == Lost(record=record)
    assert phase.stop(timeout_s=WAIT_S) == Lost(record=record)
    stage.wait_nobody_left()
    assert phase.stop(timeout_s=WAIT_S) == again(phase).poll() == Lost(record=record)


def test_a_supervisor_that_does_not_react_is_killed_within_the_second(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[tuple[float, bool]] = []

    def waiting(pidfd: int, timeout_s: float) -> bool:
        waits.append((timeout_s, wait_gone(pidfd, timeout_s)))
        return waits[-1][1]

    monkeypatch.setattr("ticket_agent.peft.release.running_phase.wait_gone", waiting)
    phase = stage.start(TREE + "signal.pause()\n")
    assert stage.hear(3) == b"DDP"
    record = running(phase)
    assert send_signal(record.supervisor, signal.SIGSTOP)
    assert stopped(phase) == Lost(record=record)
    # It is asked, then killed; both together are given no more than a second.
    (asked_s, reacted), (killed_s, _) = waits[:2]
    assert not reacted
    assert killed_s <= 1 - asked_s
    stage.wait_nobody_left()


def test_a_phase_is_launched_once(stage: Stage) -> None:
    command = stage.command("print('once')")
    phase = stage.launcher.start(command)
    for _ in range(2):
        with pytest.raises(LaunchRefusedError, match="launched before and is not launched again"):
            stage.launcher.start(command)
    ended(phase)
    with pytest.raises(LaunchRefusedError, match="launched before"):
        stage.launcher.start(command)
    assert phase.log().lines() == ["once"]


def test_an_output_flood_neither_blocks_nor_fills_the_disk(stage: Stage) -> None:
    code = "import os\nfor n in range(60): os.write(1, b'%07d\\n' % n * 8192)\nos.write(2, b'the end\\n')"
    phase = stage.start(code, output=LARGE)
    record = ended(phase)
    assert record.succeeded
    assert record.output_bytes == 60 * 65536 + 8
    assert record.output_lost_bytes == 0
    kept = [path.stat().st_size for path in phase.run_dir.glob("output-*")]
    assert sum(kept) <= LARGE.total_bytes
    log = phase.log()
    assert log.pieces[0].data == b"0000000\n" * 125
    assert log.pieces[-1].data.endswith(b"0000059\nthe end\n")
    assert log.left_out == record.output_bytes - sum(kept)


def test_a_flood_can_be_stopped_and_read_meanwhile(stage: Stage) -> None:
    phase = stage.start(TELL + "tell(b'P')\nwhile True: os.write(1, b'x' * 65536)\n", output=LARGE)
    stage.hear(1)
    while phase.log().left_out < 10 * LARGE.total_bytes:
        assert isinstance(phase.poll(), Running)
    assert isinstance(phase.stop(timeout_s=WAIT_S), Finished)


def test_any_bytes_can_be_written(stage: Stage) -> None:
    data = bytes(range(256)) + "é€\x1b[31m".encode() + b"\xc3"
    phase = stage.start(f"import os; os.write(1, {data!r})")
    assert ended(phase).succeeded
    assert phase.log().pieces[0].data == data
    text = "\n".join(phase.log().lines())
    assert text.replace("\n", "").isprintable()
    assert "\\x80" in text
    assert "\\x1b[31m\\xc3" in text


def test_nothing_of_our_environment_reaches_the_phase(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "HF_TOKEN", "PYTHONPATH", "LD_LIBRARY_PATH", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "leak")
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    phase = stage.start(code, environment={"OMP_NUM_THREADS": "2"})
    assert ended(phase).succeeded
    found = json.loads(phase.log().pieces[0].data)
    assert "leak" not in found.values()
    assert found["OMP_NUM_THREADS"] == "2"
    assert {name: found[name] for name in OFFLINE} == OFFLINE
    marker = running_marker(phase)
    assert found["TICKET_AGENT_PHASE"] == marker
    known = {
        "PATH",
        "LANG",
        "PYTHONUNBUFFERED",
        "HOME",
        "TMPDIR",
        "HF_HOME",
        "XDG_CACHE_HOME",
        "PYTHONNOUSERSITE",
    }
    known |= {"PYTHONDONTWRITEBYTECODE", "TOKENIZERS_PARALLELISM", "CUBLAS_WORKSPACE_CONFIG"}
    known |= {"OMP_NUM_THREADS", "TICKET_AGENT_PHASE", "PWD", "LC_CTYPE", *OFFLINE}
    assert found.keys() <= known


def running_marker(phase: RunningPhase) -> str:
    marker = json.loads((phase.run_dir / RUNNING_FILE).read_bytes())["marker"]
    assert isinstance(marker, str)
    return marker


def test_the_phase_gets_no_descriptor_and_no_input(stage: Stage) -> None:
    code = "import os; print(sorted(os.listdir('/proc/self/fd')), repr(os.read(0, 1)), os.umask(0))"
    phase = stage.start(code)
    ended(phase)
    # The fourth is the listing's own.
    assert phase.log().lines() == ["['0', '1', '2', '3'] b'' 63"]


def test_limits_hold(stage: Stage) -> None:
    limits = PhaseLimits(file_bytes=4096, address_space_bytes=1 << 30)
    code = (
        "import errno, resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "with open('large', 'wb', buffering=0) as file:\n"
        "    print(file.write(bytes(5000)))\n"
        "    try: file.write(b'x')\n"
        "    except OSError as error: print(errno.errorcode[error.errno])\n"
        "try: bytearray(2 << 30)\n"
        "except MemoryError: print('memory')\n"
        "print(resource.getrlimit(resource.RLIMIT_CORE))\n"
    )
    phase = stage.start(code, limits=limits)
    ended(phase)
    assert phase.log().lines() == ["4096", "EFBIG", "memory", "(0, 0)"]


def test_no_program_of_the_phase_gains_privileges(stage: Stage) -> None:
    phase = stage.start("print([l for l in open('/proc/self/status') if 'NoNewPrivs' in l])")
    ended(phase)
    assert phase.log().lines() == ["['NoNewPrivs:\\t1\\n']"]


@pytest.mark.parametrize("program", ["/nonexistent/program", "/etc/passwd"])
def test_a_program_that_cannot_be_executed(stage: Stage, program: str) -> None:
    command = stage.command("", argv=(program,))
    phase = RunningPhase(command.run_dir, launch_id=command.launch_id)
    if stage.confinement.name == "unconfined":
        with pytest.raises(LaunchRefusedError, match=program):
            stage.launcher.start(command)
        record = ended(phase)
        assert record.reason is EndReason.NOT_STARTED
        assert record.error is not None
        assert program in record.error
    else:
        # The confining program was started, and it says what it could not do.
        record = ended(stage.launcher.start(command))
        assert record.reason is EndReason.EXITED
        assert record.code in {1, 126, 127}
        assert program in phase.log().lines()[-1]


@pytest.mark.parametrize("where", ["missing", "link/inside", "work/file"])
def test_paths_that_are_not_what_they_seem(stage: Stage, where: str) -> None:
    (stage.folder / "link").symlink_to(stage.work)
    (stage.work / "inside").mkdir()
    (stage.work / "file").write_bytes(b"x")
    command = stage.command("", writable=(stage.folder / where,))
    with pytest.raises(LaunchRefusedError, match="cannot be"):
        stage.launcher.start(command)
    assert not command.run_dir.exists()


class _Breaking:
    """A confinement whose supervisor does something else than to supervise."""

    name = "breaking"

    def __init__(self, inner: Confinement, *prefix: str) -> None:
        self.inner = inner
        self.prefix = prefix

    def wrap(self, command: PhaseCommand, *, marker: str, tasks: int) -> Wrapped:
        return replace(self.inner.wrap(command, marker=marker, tasks=tasks), supervisor_prefix=self.prefix)


def test_a_supervisor_that_dies_before_it_starts_anything_is_a_definite_no(stage: Stage) -> None:
    launcher = ConfinedLauncher(_Breaking(stage.confinement, "/bin/sh", "-c", "echo broken >&2; exit 1"))
    command = stage.command("print('never')")
    with pytest.raises(LaunchRefusedError, match="broken"):
        launcher.start(command)
    phase = RunningPhase(command.run_dir, launch_id=command.launch_id)
    assert phase.poll() == phase.stop(timeout_s=WAIT_S) == NotStarted()
    assert ended(stage.launcher.start(command)).succeeded


def test_a_disk_without_room_for_the_outcome_is_a_definite_no(stage: Stage) -> None:
    command = stage.command("print('once')")
    with no_file_larger_than(100), pytest.raises(LaunchRefusedError, match="File too large"):
        stage.launcher.start(command)
    assert not command.run_dir.exists()
    assert ended(stage.launcher.start(command)).succeeded


def test_a_supervisor_without_an_answer_leaves_the_question_open(stage: Stage) -> None:
    """It still holds the lock, so that nobody can take the phase for not started."""
    os.mkfifo(stage.folder / "end")
    waits = f"exec >/dev/null 2>&1; cat {stage.folder}/end"
    launcher = ConfinedLauncher(_Breaking(stage.confinement, "/bin/sh", "-c", f"({waits}) & exit 0"))
    command = stage.command("print('never')")
    with pytest.raises(LaunchUnknownError, match="look again"):
        launcher.start(command)
    phase = RunningPhase(command.run_dir, launch_id=command.launch_id)
    assert phase.poll() == Running(record=None)
    with pytest.raises(PhaseStopError, match="stop it again"):
        phase.stop(timeout_s=0.05)
    (stage.folder / "end").write_bytes(b"")
    assert phase.wait(WAIT_S) == NotStarted()


def test_a_handle_of_what_never_was(stage: Stage) -> None:
    phase = RunningPhase(stage.folder / "run-7", launch_id="op")
    assert phase.poll() == phase.stop(timeout_s=WAIT_S) == NotStarted()
    assert phase.identity() is None
    assert phase.log().lines() == []


def test_a_run_directory_of_another_launch_is_refused(stage: Stage) -> None:
    phase = stage.start(STAY)
    stage.hear(1)
    other = RunningPhase(phase.run_dir, launch_id="another")
    strange = ProcessIdentity(pid=1, start_ticks=1, boot_id="x")
    expecting = RunningPhase(phase.run_dir, launch_id=phase.launch_id, expected=strange)
    for wrong in (other, expecting):
        with pytest.raises(PhaseMismatchError):
            wrong.poll()
        with pytest.raises(PhaseMismatchError):
            wrong.stop()
    assert isinstance(phase.poll(), Running)
    phase.stop(timeout_s=WAIT_S)
    with pytest.raises(PhaseMismatchError):
        other.poll()


def test_who_looks_at_a_phase_that_is_being_launched_does_not_keep_it_from_starting(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks whether the lock is held takes it shared, for a moment or for as long as it is stopped."""
    lookers: list[int] = []

    def opened(*arguments: Any, **options: Any) -> int:
        fd = os_open(*arguments, **options)
        if arguments[0] == LOCK_FILE and not lookers:
            lookers.append(os_open(f"/proc/self/fd/{fd}", os.O_RDONLY))
            fcntl.flock(lookers[0], fcntl.LOCK_SH)
            threading.Timer(0.1, os.close, lookers).start()
        return fd

    os_open = os.open
    monkeypatch.setattr(os, "open", opened)
    assert ended(stage.start("pass")).succeeded
    assert lookers


def test_a_lock_that_is_never_given_back_is_named(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_LOCK_TRIES", 2)
    os_open = os.open
    holders: list[int] = []

    def opened(*arguments: Any, **options: Any) -> int:
        fd = os_open(*arguments, **options)
        if arguments[0] == LOCK_FILE and not holders:
            holders.append(os_open(f"/proc/self/fd/{fd}", os.O_RDONLY))
            fcntl.flock(holders[0], fcntl.LOCK_EX)
        return fd

    monkeypatch.setattr(os, "open", opened)
    with pytest.raises(LaunchRefusedError, match="another program has held the new lock"):
        stage.start("pass")
    os.close(*holders)
    # Nothing is left of it: it may be tried again.
    assert list(stage.folder.glob("run*")) == []


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another boot"}])
def test_a_recycled_process_number_is_never_signalled(stage: Stage, change: dict[str, object]) -> None:
    """The supervisor is gone, and an innocent process has the numbers that it wrote down."""
    phase = stage.start(STAY)
    stage.hear(1)
    record = running(phase)
    send_signal(record.supervisor, signal.SIGKILL)
    stage.wait_nobody_left()
    with subprocess.Popen(["sleep", "1000"]) as innocent:
        body = json.loads((phase.run_dir / RUNNING_FILE).read_bytes())
        same = ProcessIdentity.of(innocent.pid)
        assert same is not None
        for name in ("supervisor", "child"):
            body[name] = {**same.to_json(), **change}
        (phase.run_dir / RUNNING_FILE).write_text(json.dumps(body))
        assert isinstance(phase.stop(timeout_s=WAIT_S), Lost)
        assert innocent.poll() is None
        innocent.kill()


@pytest.mark.parametrize("name", [EXIT_FILE, RUNNING_FILE])
@pytest.mark.parametrize("data", [b"", b"\0" * 100])
def test_damaged_run_files_are_no_outcome(stage: Stage, name: str, data: bytes) -> None:
    phase = stage.start(STAY)
    stage.hear(1)
    good = phase.run_dir / name
    kept = good.read_bytes() if good.exists() else None
    good.write_bytes(data)
    for look in (phase.poll, phase.stop):
        with pytest.raises(RunFileError):
            look()
    if kept is None:
        good.unlink()
    else:
        good.write_bytes(kept)
    assert isinstance(phase.stop(timeout_s=WAIT_S), Finished)


FULL_DISK = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[1:2]
from phase_support import *
from ticket_agent.peft.release.running_phase import Finished
disk = Path(sys.argv[2])
confinement = {"unconfined": Unconfined(), "bubblewrap": BUBBLEWRAP}[sys.argv[3]]
with staged(disk, confinement) as stage:
    code = TELL + "tell(b'P')\\nopen('go').read()\\n" + "for _ in range(100): os.write(1, b'x' * 65536)\\n"
    os.mkfifo(stage.work / "go")
    phase = stage.start(code)
    stage.hear(1)
    try:
        with (disk / "filler").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
    except OSError as error:
        print(error.strerror)
    (stage.work / "go").write_bytes(b"")
    state = phase.wait(WAIT_S)
    assert isinstance(state, Finished), state
    record = state.record
    print(record.reason, record.code, record.output_bytes, record.output_lost_bytes > 0)
"""


@needs_mounts
@pytest.mark.parametrize("stage", CONFINEMENTS[:2], indirect=True)
def test_a_full_disk_costs_output_and_not_the_outcome(stage: Stage) -> None:
    disk = stage.folder / "disk"
    disk.mkdir()
    support = Path(sys.modules["phase_support"].__file__ or "").parent
    script = stage.folder / "script.py"
    script.write_text(FULL_DISK)
    mount = f"mount -t tmpfs -o size=512k tmpfs {disk}"
    run = f"{sys.executable} {script} {support} {disk} {stage.confinement.name}"
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f"{mount} && exec {run}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["No space left on device", "exited 0 6553600 True"]


def test_a_start_that_fails_before_its_supervisor_can_be_repeated(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = stage.command("print('once')")
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", "/nonexistent/python")
        with pytest.raises(LaunchRefusedError, match="No such file"):
            stage.launcher.start(command)
    assert not command.run_dir.exists()
    assert ended(stage.launcher.start(command)).succeeded


KILLS = 8
AGENT_THAT_DIES = """
import os, pickle, sys
from ticket_agent.peft.release.launcher import ConfinedLauncher
launcher, command = pickle.loads(sys.stdin.buffer.read())
launcher = ConfinedLauncher(launcher)
print("now", flush=True)
launcher.start(command)
print("started", flush=True)
"""


def test_an_agent_killed_while_it_starts_a_phase_leaves_no_doubt(stage: Stage) -> None:
    """At whatever moment: the phase ran once, or it is known that it never will."""
    seen = set()
    for step in range(KILLS):
        command = stage.command(f"open('effect-{step}', 'a').write('x')")
        with subprocess.Popen(
            [sys.executable, "-c", AGENT_THAT_DIES], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as agent:
            assert agent.stdin is not None
            assert agent.stdout is not None
            agent.stdin.write(pickle.dumps((stage.confinement, command)))
            agent.stdin.close()
            assert agent.stdout.readline() == b"now\n"
            if step == KILLS - 1:
                agent.stdout.readline()
            else:
                time.sleep(step * 0.008)  # somewhere inside
            agent.kill()
        state = RunningPhase(command.run_dir, launch_id=command.launch_id).wait(WAIT_S)
        effect = stage.work / f"effect-{step}"
        if isinstance(state, Finished):
            assert effect.read_text() == "x"
        else:
            assert state == NotStarted()
            assert not effect.exists()
        seen.add(type(state))
        if command.run_dir.exists():
            with pytest.raises(LaunchRefusedError):
                stage.launcher.start(command)
    assert Finished in seen


def test_an_end_in_the_moment_of_looking_is_not_lost(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome is written after the first look for it, and the lock is free at the second."""
    phase = stage.start("pass")
    record = ended(phase)
    looks = iter([None])
    monkeypatch.setattr(
        "ticket_agent.peft.release.running_phase.read_exit", lambda fd: next(looks, read_exit(fd))
    )
    assert phase.poll() == Finished(record=record)
    assert next(looks, "used") == "used"


def test_another_who_looks_is_not_taken_for_a_supervisor(stage: Stage) -> None:
    phase = stage.start(STAY)
    stage.hear(1)
    send_signal(running(phase).supervisor, signal.SIGKILL)
    assert isinstance(phase.stop(timeout_s=WAIT_S), Lost)
    with (phase.run_dir / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert isinstance(phase.poll(), Lost)


@pytest.mark.parametrize("none", [True, False])
def test_the_supervisor_writes_bytecode_where_the_agent_does(
    stage: Stage, none: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", none)
    phase = stage.start(STAY)
    stage.hear(1)
    command = Path(f"/proc/{running(phase).supervisor.pid}/cmdline").read_bytes().split(b"\0")
    assert (b"-B" in command) is none


def test_the_supervisor_carries_nothing_of_the_agent(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "leak")
    phase = stage.start(STAY)
    stage.hear(1)
    proc = Path(f"/proc/{running(phase).supervisor.pid}")
    assert b"leak" not in (proc / "environ").read_bytes()
    assert (proc / "cwd").readlink() == Path("/")
    files = {str(link.readlink()) for link in (proc / "fd").iterdir()}
    known = (str(phase.run_dir), "/dev/null", "pipe:", "anon_inode:")
    assert all(name.startswith(known) for name in files), files
