"""What a phase in bubblewrap cannot do, tried from inside."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from peft_support import needs_root
from phase_support import BUBBLEWRAP, WAIT_S, Stage, needs_bubblewrap, staged

from ticket_agent.peft.release.phase_command import PhaseLimits
from ticket_agent.peft.release.running_phase import Finished

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = needs_bubblewrap


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    assert BUBBLEWRAP is not None
    with staged(tmp_path.resolve(), BUBBLEWRAP) as made:
        yield made


TRY = """
import json, os, socket, sys
def tried(action, *arguments):
    try:
        return repr(action(*arguments))
    except OSError as error:
        return type(error).__name__ + " " + str(error.errno)
"""


def answer(stage: Stage, code: str, *arguments: str, **changes: Any) -> Any:
    phase = stage.start(TRY + code, *arguments, **changes)
    state = phase.wait(WAIT_S)
    assert isinstance(state, Finished)
    assert state.record.succeeded, phase.log().lines()
    return json.loads(phase.log().pieces[0].data)


def test_no_network_but_its_own_loopback(stage: Stage) -> None:
    code = """
def resolve(name): return socket.getaddrinfo(name, 80)
def reach(port): return socket.create_connection(("127.0.0.1", port), 5).close()
def outside(): return socket.create_connection(("192.0.2.1", 80), 5)
def abstract(name): return socket.socket(socket.AF_UNIX).connect(chr(0) + name)
own = socket.create_server(("127.0.0.1", 0))
print(json.dumps([
    tried(reach, int(sys.argv[1])), tried(outside), tried(resolve, "example.com"),
    tried(abstract, sys.argv[2]), tried(reach, own.getsockname()[1]), resolve("localhost") != [],
]))
"""
    name = f"ticket-agent-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0" + name)
        abstract.listen()
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), 5).close()
        refused, outside, name_of, unix, own, localhost = answer(stage, code, str(port), name)
    assert refused == unix == "ConnectionRefusedError 111"
    assert outside == "OSError 101"  # network unreachable
    assert name_of.startswith("gaierror")
    assert own == "None"
    assert localhost


def test_inputs_are_read_only_and_outputs_writable(stage: Stage) -> None:
    inputs = stage.work / "inputs"
    inputs.mkdir()
    (inputs / "weights").write_bytes(b"12345678")
    code = """
name = sys.argv[1]
print(json.dumps([
    open(name + "/weights").read(),
    tried(open, name + "/weights", "r+"), tried(open, name + "/new", "w"),
    tried(os.unlink, name + "/weights"),
    tried(os.rename, name, name + "2"), tried(os.chmod, name + "/weights", 0o777),
    tried(open, "/new", "w"), tried(open, "/usr/new", "w"), tried(open, sys.prefix + "/new", "w"),
]))
open("result", "w").write("mine")
"""
    found = answer(stage, code, str(inputs), read_only=(*stage.command("").read_only, inputs))
    assert found[0] == "12345678"
    assert set(found[1:]) <= {"OSError 30", "OSError 16"}  # read-only file system, or a mount point
    assert found.count("OSError 16") <= 1
    assert [path.name for path in inputs.iterdir()] == ["weights"]
    assert (stage.work / "result").read_text() == "mine"


def test_tmp_is_private_and_bounded(stage: Stage) -> None:
    code = """
seen = os.path.exists(sys.argv[1])
open("/tmp/left", "w").write("x")
def fill(folder):
    with open(folder + "/large", "wb", buffering=0) as file:
        for _ in range(100): file.write(bytes(1 << 20))
print(json.dumps([seen, tried(fill, "/tmp"), tried(fill, "/dev/shm"), os.environ["TMPDIR"]]))
"""
    with tempfile.NamedTemporaryFile(dir="/tmp") as canary:
        limits = PhaseLimits(scratch_bytes=4 << 20)
        found = answer(stage, code, canary.name, limits=limits)
    assert found == [False, "OSError 28", "OSError 28", "/tmp"]
    assert not Path("/tmp/left").exists()


@pytest.mark.disk  # what is bound at its place in /dev/shm is seen there
def test_only_what_was_named_can_be_seen(stage: Stage) -> None:
    secret = stage.folder / "source.private.key"
    secret.write_bytes(b"secret")
    code = """
print(json.dumps([
    tried(open, sys.argv[1]), tried(os.listdir, sys.argv[2]), tried(os.listdir, "/home"),
    tried(open, "/etc/shadow"), tried(os.listdir, "/run"), tried(os.listdir, "/sys"),
    sorted(name for name in os.listdir("/proc") if name.isdigit()), os.listdir("/dev/shm"),
    tried(os.kill, int(sys.argv[3]), 0),
]))
"""
    command = stage.command("")
    run_dir = str(command.run_dir.parent / "run-1")
    found = answer(stage, code, str(secret), run_dir, str(os.getpid() + 100_000))
    assert set(found[:6]) == {"FileNotFoundError 2"}
    assert len(found[6]) <= 3
    assert found[7] == []
    assert found[8] == "ProcessLookupError 3"


@needs_root
def test_root_inside_is_no_root(stage: Stage) -> None:
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
status = dict(line.rstrip().split(":", 1) for line in open("/proc/self/status"))
mounted = libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None)
print(json.dumps([os.getuid(), status["CapEff"].strip(), status["NoNewPrivs"].strip(), mounted,
    tried(os.mknod, "device", 0o020600, os.makedev(1, 3)), tried(os.chown, "/tmp", 1, 1),
    tried(open, "/proc/sys/kernel/core_pattern", "r+"), tried(open, "/proc/sys/vm/drop_caches", "w")]))
"""
    assert answer(stage, code) == [
        0,
        "0" * 16,
        "1",
        -1,
        "PermissionError 1",
        "PermissionError 1",
        "OSError 30",
        "OSError 30",
    ]


def test_this_package_and_its_interpreter_run_inside(stage: Stage) -> None:
    code = "import ticket_agent.peft.release.launcher as one, json; print(json.dumps(one.__name__))"
    phase = stage.start("", argv=(sys.executable, "-I", "-c", code))
    assert isinstance(phase.wait(WAIT_S), Finished)
    assert phase.log().lines() == ['"ticket_agent.peft.release.launcher"']
