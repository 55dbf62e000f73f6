"""The table that the measurements are printed in; no figure in it ever fails a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from bench_table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

_TABLE = Table()


@pytest.fixture
def table() -> Iterator[Table]:
    return _TABLE


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _TABLE.rows:
        return
    terminalreporter.section("measured on this machine, in this run")
    widths = [max(len(row[column]) for row in _TABLE.rows) for column in range(3)]
    for what, measured, bar in _TABLE.rows:
        terminalreporter.write_line(f"{what:<{widths[0]}}  {measured:>{widths[1]}}  bar {bar}")
