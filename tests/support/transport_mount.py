"""The way through a directory: a FUSE process that speaks to the console."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import fuse_hive
from mount_support import NEWEST
from transports import ConfiguredAgent, ConsoleServed, Transport

if TYPE_CHECKING:
    from pathlib import Path

    from agent_support import AgentProcess

    from ticket_agent.hive.reference import Faults, ReferenceHive

_MOUNT = """
import sys
from functools import partial
import fuse_hive
fuse_hive.ConsoleConfig = partial(fuse_hive.ConsoleConfig, command_s=float(sys.argv.pop()))
fuse_hive.main()
"""
PATIENCE_S = 60.0
REQUESTS = 600
"""One reading of a file is up to ten requests of the mount's process."""


class MountServed(ConsoleServed):
    """A console, and from the first agent on a mount of it."""

    def __init__(self, hive: ReferenceHive, faults: Faults) -> None:
        super().__init__(hive, faults)
        self._mounted: fuse_hive.Mounted | None = None

    def agent(
        self, state_dir: Path, port: int, tmp: Path, *, timeout_s: float | None, poll_ms: int | None
    ) -> AgentProcess:
        if self._mounted is None:
            self._mounted = self._mount(port, tmp / "hive", timeout_s or 5.0)
        table = f'[mount_dir]\npath = "{self._mounted.path}"\n'
        return ConfiguredAgent(state_dir, tmp, table, poll_ms=poll_ms)

    def _mount(self, port: int, directory: Path, timeout_s: float) -> fuse_hive.Mounted:
        directory.mkdir()
        before = directory.stat().st_dev
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-c", _MOUNT, str(port), str(directory), "new", "1.0", str(timeout_s)]
        mounted = fuse_hive.Mounted(directory, subprocess.Popen(command, env=environ))
        deadline = time.monotonic() + PATIENCE_S
        while directory.stat().st_dev == before:
            assert mounted.process.poll() is None, "the mount's process ended"
            assert time.monotonic() < deadline, "the hive is not mounted"
            time.sleep(0.01)
        return mounted

    def close(self) -> None:
        if self._mounted is not None:
            self._mounted.unmount()
        super().close()


MOUNT = Transport("mount", MountServed, NEWEST, requests=REQUESTS)
