"""The table of the measurements."""

from __future__ import annotations

import pytest
from bench_table import TABLE, Table


@pytest.fixture
def table() -> Table:
    return TABLE
