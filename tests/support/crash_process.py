"""Agents as processes under a tracer that can kill them, or let a call fail, at any of their system calls."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from crash_log import TRACE_WHOLE, from_json, traced_ops
from hive_support import TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from journal_support import Op

TRACED = (
    "open",
    "openat",
    "creat",
    "mkdir",
    "mkdirat",
    "write",
    "writev",
    "pwrite64",
    "ftruncate",
    "fallocate",
    "fsync",
    "fdatasync",
    "close",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "unlink",
    "unlinkat",
    "flock",
    "connect",
    "sendto",
    "recvfrom",
)
"""Every call through which an agent changes its state directory or talks to a hive."""

KILL = "signal=SIGKILL"

PATIENCE_S = 60.0
LOOK_S = 0.005
"""Seconds between two looks whether a daemon has done its work."""

_CALL = re.compile(r"(\d+)\s+(\w+)\((.*)")
_TEMPORARY = re.compile(r"\.([\w.-]+?)(?:\.\d+){1,2}\.(?:tmp|partial)")
_UNFINISHED = re.compile(r"\.new-([\w-]+)(?:\.\d+){2}")
_FIRST = re.compile(r'"(?:\\.|[^"\\])*"')
_FRAME = re.compile(r"^(?:\\\d{1,3}|\\.|[^A-Z])*")


def missing_tracer() -> str | None:
    """Why no process can be traced here, or None."""
    strace = shutil.which("strace")
    if strace is None:
        return "strace is not installed"
    done = subprocess.run(
        [strace, "-qq", "-o", os.devnull, "-e", "trace=close", "true"], capture_output=True, check=False
    )
    return None if done.returncode == 0 else "this environment does not allow tracing"


@dataclass(frozen=True)
class Call:
    """One traced call of an agent's main thread.

    Attributes:
        name: of the system call.
        ordinal: how many calls of this name there were so far in this thread, itself included.
        what: the object, without what differs from run to run: a path, a command to the hive.
        nth: how many calls of this name on this object there were so far, itself included.
        owned: it is about the state directory, or about roots beside it.
        line: as the tracer printed it.
    """

    name: str
    ordinal: int
    what: str
    nth: int
    owned: bool
    line: str

    @property
    def answer(self) -> int:
        """What it returned."""
        return int(self.line.rsplit(" = ", 1)[1].split(maxsplit=1)[0])

    @property
    def label(self) -> str:
        return f"{self.name}#{self.ordinal} {self.what}"

    @property
    def injected(self) -> bool:
        """The tracer made up its answer."""
        return "(INJECTED)" in self.line

    @property
    def remote(self) -> bool:
        return self.what.startswith("hive: ")

    @property
    def is_effect(self) -> bool:
        """The one command that changes the world."""
        return self.name == "sendto" and "ECHO /queen/" in self.what


@dataclass(frozen=True)
class Life:
    """How an agent process ended and what it was seen to do."""

    code: int
    output: str
    calls: tuple[Call, ...]

    @property
    def killed(self) -> bool:
        return self.code == -9


class Launcher:
    """One launcher process; runs one agent after the other."""

    def __init__(self, tmp: Path) -> None:
        self._tmp = tmp
        self._tmp.mkdir(parents=True, exist_ok=True)
        root = Path(__file__).parents[2]
        self._environ = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(tmp),
            "TMPDIR": str(tmp),
            "PYTHONPATH": str(root),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "LC_ALL": "C.UTF-8",
            "LAB_TOKEN": TOKEN,
            "COHSH_CONSOLE_LOCK": "0",
        }
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("crash_launcher.py"))],
            env=self._environ,
            cwd=tmp,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer("ready")
        self._count = 0

    def once(
        self,
        state_dir: Path,
        port: int,
        *,
        inject: str | None = None,
        traced: bool | None = None,
        short: int | None = None,
        file_limit: int | None = None,
        options: Sequence[str] = (),
    ) -> Life:
        """One pass of an agent, traced if something is injected or ``traced``.

        Args:
            state_dir: of the agent.
            port: of its hive.
            inject: as ``strace -e inject=`` takes it: ``fsync:signal=SIGKILL:when=3``; several, apart by
                blanks.
            traced: record without injecting.
            short: most bytes that it hands to one write.
            file_limit: most bytes of a file that it writes, by the kernel's limit; the output is lost, too.
            options: more of its command line.
        """
        more: dict[str, Any] = {"short": short, "file_limit": file_limit}
        arguments = [*_arguments("once", state_dir, port), *options]
        return self._live(arguments, state_dir, inject, traced=bool(traced), until=None, **more)

    def command(
        self, arguments: Sequence[str], state_dir: Path, *, inject: str | None = None, traced: bool = False
    ) -> Life:
        """Another command with its arguments, traced if something is injected or ``traced``."""
        return self._live(list(arguments), state_dir, inject, traced=traced, until=None)

    def serve(
        self, state_dir: Path, port: int, *, until: Callable[[], bool], inject: str | None = None
    ) -> Life:
        """A daemon, always traced, that gets SIGTERM as soon as ``until`` holds; arguments as of ``once``."""
        return self._live(_arguments("run", state_dir, port), state_dir, inject, traced=True, until=until)

    def _live(
        self,
        arguments: list[str],
        state_dir: Path,
        inject: str | None,
        *,
        traced: bool,
        until: Callable[[], bool] | None,
        **more: Any,
    ) -> Life:
        pid, output = self._order(arguments, **more)
        trace = self._tmp / f"trace-{self._count}"
        tracer = None
        if inject is not None or traced:
            faults = [part for one in (inject or "").split() for part in ("-e", f"inject={one}")]
            tracer = _attach(pid, [*_strace(trace), *faults])
        self._say("go")
        if until is not None:
            self._stop_when(until, pid)
        code = self._answer("status")
        calls: tuple[Call, ...] = ()
        if tracer is not None:
            tracer.communicate()
            calls = tuple(parse_trace(trace.read_text(errors="replace"), pid, state_dir))
            trace.unlink()
        return Life(code=code, output=_taken(output), calls=calls)

    def _stop_when(self, until: Callable[[], bool], pid: int) -> None:
        """Wait for a condition or for the end of the process, whichever comes first."""
        deadline = time.monotonic() + PATIENCE_S
        assert self._process.stdout is not None
        while not select.select([self._process.stdout], [], [], LOOK_S)[0]:
            late = time.monotonic() > deadline
            if late or until():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
                return

    def both_logs(self, state_dir: Path, port: int) -> tuple[list[Op], list[Op]]:
        """One life, told by its own seam and by the kernel."""
        seam = self._tmp / "seam"
        pid, output = self._order(_arguments("once", state_dir, port), seam=str(seam))
        trace = self._tmp / "trace-whole"
        tracer = _attach(pid, ["strace", "-f", "-y", "-o", str(trace), *TRACE_WHOLE])
        self._say("go")
        code = self._answer("status")
        tracer.communicate()
        assert code == 0, _taken(output)
        told = from_json(json.loads(_taken(seam)))
        return told, traced_ops(_taken(trace), pid, state_dir)

    def _order(self, arguments: list[str], **more: Any) -> tuple[int, Path]:
        """An agent that waits to be let go: its process id, and where its output goes."""
        self._count += 1
        output = self._tmp / f"output-{self._count}"
        self._say(json.dumps({"args": arguments, "output": str(output), **more}))
        return self._answer("pid"), output

    def cold(self, state_dir: Path, port: int) -> Life:
        """The same pass by a new interpreter, traced from its first call on."""
        trace = self._tmp / "trace-cold"
        command = [
            *_strace(trace),
            sys.executable,
            "-m",
            "ticket_agent",
            *_arguments("once", state_dir, port),
        ]
        done = subprocess.run(
            command,
            env=self._environ,
            cwd=self._tmp,
            capture_output=True,
            text=True,
            check=False,
        )
        text = trace.read_text(errors="replace")
        calls = tuple(parse_trace(text, int(text.split(maxsplit=1)[0]), state_dir))
        return Life(code=done.returncode, output=done.stdout + done.stderr, calls=calls)

    def _say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def _answer(self, member: str) -> int:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return int(answer[member])

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _arguments(command: str, state_dir: Path, port: int) -> list[str]:
    where = ["--state-dir", str(state_dir), "--tcp-port", str(port), "--auth-token", "env:LAB_TOKEN"]
    return [command, *where, "--log-format", "json", "--log-level", "debug"]


def _attach(pid: int, command: list[str]) -> subprocess.Popen[str]:
    tracer = subprocess.Popen(
        [*command, "-p", str(pid)], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    assert tracer.stderr is not None
    first = tracer.stderr.readline()
    assert "attached" in first, first
    return tracer


def _taken(path: Path) -> str:
    text = path.read_text(errors="replace")
    path.unlink()
    return text


def _strace(trace: Path) -> list[str]:
    return [
        "strace",
        "-f",
        "-y",
        "-s",
        "64",
        "-o",
        str(trace),
        "-e",
        "trace=" + ",".join(f"?{name}" for name in TRACED),
    ]


def parse_trace(text: str, pid: int, state_dir: Path) -> Iterator[Call]:
    """The calls of one thread, in order."""
    counts: Counter[str] = Counter()
    last_command = ""
    home = str(state_dir.parent)
    for line in text.splitlines():
        match = _CALL.match(line)
        if match is None or int(match[1]) != pid or match[2] not in TRACED:
            continue
        name, rest = match[2], match[3]
        counts[name] += 1
        if name == "sendto":
            last_command = _command(rest)
        what = _object(name, rest, home, last_command)
        counts[f"{name} {what}"] += 1
        yield Call(
            name=name,
            ordinal=counts[name],
            what=what,
            nth=counts[f"{name} {what}"],
            owned=what.startswith(("state", "roots")),
            line=rest,
        )


def _command(rest: str) -> str:
    found = _FIRST.search(rest)
    text = _FRAME.sub("", found[0][1:-1]) if found is not None else ""
    return " ".join(text.split()[:2])


def _object(name: str, rest: str, home: str, command: str) -> str:
    if name in ("sendto", "recvfrom", "connect"):
        return f"hive: {command}" if name != "connect" else "hive: connect"
    at = rest.find(home)
    if at < 0:
        return "elsewhere"
    below = re.match(r"/?([^>\"]*)", rest[at + len(home) :])
    where = below[1] if below is not None else ""
    quoted = [found[1:-1] for found in _FIRST.findall(rest.split("<", 1)[-1])]
    in_directory = name in ("openat", "mkdirat", "unlinkat", "renameat", "renameat2", "linkat")
    absolute = bool(quoted) and quoted[-1].startswith("/")
    named = "/".join([where, quoted[-1]]) if quoted and in_directory and not absolute else where
    return _TEMPORARY.sub(r"\1.tmp", _UNFINISHED.sub(r"new-\1", named.strip("/")))


def boundaries(calls: tuple[Call, ...]) -> list[Call]:
    """The calls before which a death or a failure can make a difference."""
    found = []
    for call in calls:
        # A look whether the hive hung up changes nothing and is followed by the command it was for.
        polled = call.name == "recvfrom" and "EAGAIN" in call.line
        if call.owned or (call.remote and not polled):
            found.append(call)
    return found
