"""What goes wrong in the process of a phase: told by a file, done by the process itself.

``<release directory>/faults/<phase>.json`` holds ``{"at": place, "do": what}``. A place is ``begin`` (nothing
was done), ``unobserved`` (all was done, the observation is not written), ``observed`` (it is written), or
``module:Class.method`` for the moment after that call.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

PAUSE_S = 0.002
HOLD_S = 600.0
"""Nobody is held for ever; what is left of a test that failed has been ended long before."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def set_method(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


class LabFaults:
    """The faults of one phase in one release directory."""

    def __init__(self, lab: Path, phase: str) -> None:
        self.folder = lab / "faults"
        self.phase = phase
        path = self.folder / f"{phase}.json"
        self.fault: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}

    @property
    def at(self) -> str:
        return str(self.fault.get("at", ""))

    def begun(self) -> None:
        """The process is there, and has done nothing."""
        if self.at == "begin":
            self.strike()

    def strike(self) -> None:
        match self.fault["do"]:
            case "kill":
                die()
            case "exit":
                sys.stderr.write("out of ideas\n")
                os._exit(3)
            case "hold":
                self.hold()
            case "full":
                raise OSError(errno.ENOSPC, "No space left on device")

    def hold(self) -> None:
        """Say that it is there, and wait until somebody lets it go on."""
        (self.folder / f"{self.phase}.held").touch()
        end = time.monotonic() + HOLD_S
        while not (self.folder / f"{self.phase}.go").exists() and time.monotonic() < end:
            time.sleep(PAUSE_S)

    def install(self) -> None:
        """Put the fault where it strikes."""
        if not self.fault:
            return
        from ticket_agent.peft.release.job_directory import JobDirectory  # noqa: PLC0415

        if ":" in self.at:
            self._after(self.at)
        leave = JobDirectory.leave

        def left(job: JobDirectory, name: str, data: bytes) -> str:
            if name != f"{self.phase}.json":
                return leave(job, name, data)
            if self.at == "unobserved":
                self.strike()
            found = leave(job, name, self._changed(data))
            if self.at == "observed":
                self.strike()
            return found

        set_method(JobDirectory, "leave", left)

    def _after(self, place: str) -> None:
        module, _, path = place.partition(":")
        owner_name, _, method = path.partition(".")
        owner = getattr(importlib.import_module(module), owner_name)
        real = getattr(owner, method)

        def call(*arguments: Any, **named: Any) -> Any:
            result = real(*arguments, **named)
            self.strike()
            return result

        set_method(owner, method, call)

    def _changed(self, data: bytes) -> bytes:
        """What is written in place of the observation."""
        document = json.loads(data)
        match self.fault["do"]:
            case "garbage":
                return data[: len(data) // 2]
            case "foreign":
                document["request_sha256"] = "f" * 64
            case "phase":
                document["phase"] = "rollback" if self.phase != "rollback" else "load"
            case "fails":
                document |= {"succeeded": False, "detail": {"reason": "it was told to", "rule": "told"}}
            case "adapter":
                document["detail"]["adapter_sha256"] = "e" * 64
            case "deployed":
                document["detail"]["accepted"]["generation"] += 7
            case _:
                return data
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
