"""Launchers for a whole run, and a place for its files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from crash_process import Launcher, missing_tracer
from memory_folder import memory_folder
from parallel_run import is_one_of_many

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKERS = 2


@pytest.fixture(scope="session")
def launchers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Launcher]]:
    """Processes that start agents, one where others run beside it; skips where no agent can be traced."""
    missing = missing_tracer()
    if missing is not None:
        pytest.skip(missing)
    count = 1 if is_one_of_many(request.config) else WORKERS
    found = [Launcher(tmp_path_factory.mktemp(f"launcher{number}")) for number in range(count)]
    yield found
    for launcher in found:
        launcher.close()


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory in memory where there is one."""
    folder = memory_folder() or tmp_path_factory.mktemp("memory")
    with tempfile.TemporaryDirectory(prefix="ticket-agent-crash-", dir=folder) as name:
        yield Path(name)


@pytest.fixture
def workspace(memory: Path) -> Iterator[Path]:
    """A directory of one test, in memory where that is possible."""
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)
