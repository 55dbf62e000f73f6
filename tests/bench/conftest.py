"""The table that the measurements are printed in; no figure in it ever fails a run."""

from __future__ import annotations

import pytest
from bench_table import Table

_TABLE = Table()


@pytest.fixture
def table() -> Table:
    return _TABLE


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _TABLE.rows:
        return
    terminalreporter.section("measured on this machine, in this run")
    widths = [max(len(row[column]) for row in _TABLE.rows) for column in range(3)]
    for what, measured, bar in _TABLE.rows:
        terminalreporter.write_line(f"{what:<{widths[0]}}  {measured:>{widths[1]}}  bar {bar}")
