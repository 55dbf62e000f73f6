"""Runs the real NVML binding against a stub library, in a child process so that each case loads it afresh."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

STUB_SOURCE = Path(__file__).parents[1] / "gpu" / "nvml_stub.c"
LIBRARY = "libnvidia-ml.so.1"

# One child reads for many cases: each case is forked off before the library is loaded.
_CHILD = """
import json, os, sys, time
from ticket_agent.gpu.inventory import read_inventory
from ticket_agent.gpu.snapshot import collect
from ticket_agent.protocol.collecting import CollectContext, CollectError, Deadline
from ticket_agent.protocol.snapshot import SnapshotBounds
import pynvml  # loads ctypes only; the library itself is loaded by the first nvmlInit

def snapshot(bounds):
    context = CollectContext(
        deadline=Deadline.after(30, time.monotonic), bounds=SnapshotBounds(**bounds)
    )
    try:
        return {"entries": [[entry.path, entry.value] for entry in collect(context)]}
    except CollectError as error:
        return {"reason": error.reason, "detail": error.detail}

for line in sys.stdin:
    case = json.loads(line)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        # ctypes sees what putenv sets; the loader reads LD_LIBRARY_PATH at the start of this process only.
        os.environ.update(case["env"])
        if "bounds" in case:
            answers = [snapshot(case["bounds"])]
        else:
            answers = [read_inventory().to_json() for _ in range(case["times"])]
        with open(writing, "w") as out:
            json.dump(answers, out)
        os._exit(0)
    os.close(writing)
    with open(reading) as source:
        text = source.read()
    _, status = os.waitpid(pid, 0)
    print(json.dumps({"status": os.waitstatus_to_exitcode(status), "text": text}), flush=True)
"""


def build_stub(directory: Path) -> Path:
    """Compile the stub as ``libnvidia-ml.so.1`` into a directory and return the directory."""
    if shutil.which("gcc") is None:
        pytest.skip("needs a C compiler for the stub library (Debian: gcc libc6-dev)")
    subprocess.run(
        [
            "gcc",
            "-shared",
            "-fPIC",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-Wl,-soname,{LIBRARY}",
            "-o",
            str(directory / LIBRARY),
            str(STUB_SOURCE),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    return directory


@dataclass
class NvmlHost:
    """A host whose NVML library is the stub (or is missing: an empty library folder)."""

    libraries: Path
    _child: subprocess.Popen[str] | None = field(default=None, init=False)

    def read(self, times: int = 1, **env: str) -> list[dict[str, Any]]:
        """Inventories read one after the other in one fresh process, as JSON objects."""
        return self._asked({"env": env, "times": times})

    def snapshot(self, bounds: Mapping[str, int] | None = None, **env: str) -> dict[str, Any]:
        """What the collector gives in a fresh process: its entries, or reason and detail of its error."""
        return self._asked({"env": env, "bounds": dict(bounds or {})})[0]

    def _asked(self, case: Mapping[str, Any]) -> list[dict[str, Any]]:
        child = self._started()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(case) + "\n")
        child.stdin.flush()
        answer = json.loads(child.stdout.readline())
        assert answer["status"] == 0, answer
        result: list[dict[str, Any]] = json.loads(answer["text"])
        return result

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.communicate()
            assert self._child.returncode == 0

    def _started(self) -> subprocess.Popen[str]:
        if self._child is None:
            env = {**os.environ, "LD_LIBRARY_PATH": str(self.libraries)}
            root = str(Path(__file__).parents[2])
            env["PYTHONPATH"] = os.pathsep.join(part for part in (root, env.get("PYTHONPATH", "")) if part)
            self._child = subprocess.Popen(
                [sys.executable, "-c", _CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=env,
                cwd="/",
            )
        return self._child
