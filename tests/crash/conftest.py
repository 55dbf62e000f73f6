"""Launchers for a whole run, and what was done, printed at its end."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from crash_process import Launcher, missing_tracer
from crash_report import summary_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKERS = 2
MEMORY = Path("/dev/shm")
ROOMY = 2**30
"""Free bytes that the memory's file system must have."""


@pytest.fixture(scope="session")
def launchers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Launcher]]:
    """Two processes that start agents; skips where no agent can be traced."""
    missing = missing_tracer()
    if missing is not None:
        pytest.skip(missing)
    found = [Launcher(tmp_path_factory.mktemp(f"launcher{number}")) for number in range(WORKERS)]
    yield found
    for launcher in found:
        launcher.close()


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory in memory where there is one.

    The page cache outlives every process, and a cut of the power is played on an image: how long a sync takes
    on this machine's disk proves nothing, and under load it is what takes the time.
    """
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ROOMY:
        yield tmp_path_factory.mktemp("memory")
        return
    with tempfile.TemporaryDirectory(prefix="ticket-agent-crash-", dir=MEMORY) as name:
        yield Path(name)


@pytest.fixture
def workspace(memory: Path) -> Iterator[Path]:
    """A directory of one test, in memory where that is possible."""
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = summary_lines()
    if lines:
        terminalreporter.section("crash tests")
        for line in lines:
            terminalreporter.write_line(line)
