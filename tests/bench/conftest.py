"""The table of the measurements, and a place on the disk: a sync in memory costs nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bench_table import TABLE, Table

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def table() -> Table:
    return TABLE


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ticket-agent-bench-") as name:
        yield Path(name)
