"""The command line as an operator uses it: processes with an environment of their own, read line by line."""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hive_support import TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ticket_agent.hive.reference import ConsoleServer

PATIENCE_S = 100.0
OUTPUT_SCHEMA = "ticket-agent-output/v1"
COMMAND = [sys.executable, "-m", "ticket_agent"]
ESCAPE = "\x1b["

_OURS = re.compile(
    r"COH|HIVE_|STATE_DIRECTORY|XDG_STATE|NOTIFY_|WATCHDOG_|NO_COLOR|FORCE_COLOR|TICKET_AGENT|_TICKET_AGENT"
)


def now_ms() -> int:
    """The clock of a hive that processes talk to."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Answer:
    """What a finished command left; no command may ever leave a traceback."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line of an error."""
        lines = [text for text in self.err.splitlines() if text.startswith("ticket-agent: ")]
        assert len(lines) == 1, self.err
        return lines[0]

    @property
    def objects(self) -> list[dict[str, Any]]:
        """Every line of the output as one object of the output schema."""
        found = [json.loads(text) for text in self.out.splitlines()]
        assert all(entry["schema"] == OUTPUT_SCHEMA for entry in found), self.out
        return found

    @property
    def object(self) -> dict[str, Any]:
        (only,) = self.objects
        return only


@dataclass
class Running:
    """A process that serves; its streams are read as they come."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    _queue: queue.SimpleQueue[str | None] = field(default_factory=queue.SimpleQueue)
    _ended: int = 0
    """How many of the two streams are over."""

    def follow(self) -> None:
        """Read both streams until they end."""

        def pump(stream: Any) -> None:
            with stream:
                for text in stream:
                    self._queue.put(text.rstrip("\n"))
            self._queue.put(None)

        for stream in (self.process.stdout, self.process.stderr):
            threading.Thread(target=pump, args=(stream,), daemon=True).start()

    def until(self, wanted: Callable[[str], bool]) -> str:
        """The next line that fits."""
        deadline = time.monotonic() + PATIENCE_S
        while self._ended < 2:
            try:
                text = self._queue.get(timeout=max(deadline - time.monotonic(), 0.001))
            except queue.Empty:
                break
            if text is None:
                self._ended += 1
                continue
            self.lines.append(text)
            if wanted(text):
                return text
        shown = "\n".join(self.lines)
        raise AssertionError(f"the line did not come (exit code {self.process.poll()}):\n{shown}")

    def event(self, name: str, **fields: object) -> dict[str, Any]:
        """The next event of this name with these fields in a JSON log."""

        def fits(text: str) -> bool:
            return text.startswith("{") and {"event": name, **fields}.items() <= json.loads(text).items()

        found: dict[str, Any] = json.loads(self.until(fits))
        return found

    def events(self, *names: str) -> dict[str, dict[str, Any]]:
        """The next event of each of these names, in whatever order they come."""
        found: dict[str, dict[str, Any]] = {}

        def all_came(text: str) -> bool:
            event = json.loads(text) if text.startswith("{") else {}
            if event.get("event") in names:
                found.setdefault(event["event"], event)
            return len(found) == len(names)

        self.until(all_came)
        return found

    def stop(self, number: int) -> int:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Operator:
    """Runs commands in a home of its own, so that nothing of the host's shows through.

    ``home/state`` is the default state directory, ``home/tmp`` holds the console locks.
    """

    def __init__(self, home: Path, bytecode: Path) -> None:
        self.home = home
        self.state = home / "state"
        self.tmp = home / "tmp"
        self.tmp.mkdir()
        kept = {name: value for name, value in os.environ.items() if not _OURS.match(name)}
        for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONPATH"):
            kept.pop(name, None)
        root = str(Path(__file__).parents[2])
        self.env = kept | {
            "HOME": str(home),
            "TMPDIR": str(self.tmp),
            "PYTHONPATH": root,
            "PYTHONPYCACHEPREFIX": str(bytecode),
            "LAB_TOKEN": TOKEN,
            "STATE_DIRECTORY": str(self.state),
        }

    def run(
        self, *arguments: str | bytes | Path, env: dict[str, str] | None = None, **options: Any
    ) -> Answer:
        """Run a command to its end."""
        done = subprocess.run(
            [*COMMAND, *arguments],
            env=self.env | (env or {}),
            cwd=self.home,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE_S,
            check=False,
            **options,
        )
        answer = Answer(done.returncode, done.stdout.decode(), done.stderr.decode())
        assert "Traceback" not in answer.err, answer.err
        return answer

    @contextmanager
    def spawn(self, *arguments: str | Path, env: dict[str, str] | None = None) -> Iterator[Running]:
        """Run a command until the block ends."""
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=self.env | (env or {}),
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running = Running(process)
        running.follow()
        try:
            yield running
        finally:
            running.end()
        assert not any("Traceback" in text for text in running.lines), "\n".join(running.lines)

    def at(self, server: ConsoleServer, *, lab: bool = False) -> list[str]:
        """The options that lead to a hive of the test."""
        return ["--tcp-port", str(server.lab_port if lab else server.port), "--auth-token", "env:LAB_TOKEN"]

    def serve(self, server: ConsoleServer, *more: str, env: dict[str, str] | None = None) -> Any:
        """`run` against a hive of the test, with a JSON log."""
        return self.spawn("run", *self.at(server), "--log-format", "json", *more, env=env)


def contents(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything a reader could have changed: names, modes, times of change, bytes."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(directory))] = (status.st_mode, status.st_mtime_ns, data)
    return found


def break_record(state: Path, sequence: int) -> tuple[Path, bytes]:
    """Flip one bit in the middle of a record; returns the file and what it holds now."""
    (path,) = (state / "ops").glob(f"{sequence:020d}-*.rec")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path, bytes(data)
