"""Launchers for a whole run, and what was done, printed at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crash_process import Launcher, missing_tracer
from crash_report import summary_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKERS = 2


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = summary_lines()
    if lines:
        terminalreporter.section("crash tests")
        for line in lines:
            terminalreporter.write_line(line)
