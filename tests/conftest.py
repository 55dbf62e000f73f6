"""What holds for every test: where its files are, the examples of property tests, and the extra ``train``.

Property tests draw the same examples in every run, so that a red run is about the change, not luck.
``TICKET_AGENT_RANDOM=1 python -m pytest`` draws new ones; run that now and then. How long one example takes
says nothing about the code on a machine that does other things as well; the limit of the whole test stays.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import train_extra
from hypothesis import HealthCheck, settings
from memory_folder import memory_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_plugins = ["parallel_run"]

if (memory := memory_folder()) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))  # where pytest makes `tmp_path`

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", patient, derandomize=True)
settings.register_profile("random", patient, print_blob=True)
settings.load_profile("random" if os.environ.get("TICKET_AGENT_RANDOM") else "repeatable")


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder of one test: in memory where that is possible, on the disk with the marker ``disk``."""
    if request.node.get_closest_marker("disk") is None:
        yield request.getfixturevalue("tmp_path")
        return
    with tempfile.TemporaryDirectory(prefix="ticket-agent-test-") as name:
        yield Path(name)


TRAIN_TIMEOUT_S = 900
"""Libraries that take seconds to import on an idle machine take a minute on a busy one, more than once."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """More time for whatever needs the extra and does not say how much."""
    for item in items:
        if item.get_closest_marker("train") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TRAIN_TIMEOUT_S))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs the extra before any fixture is made."""
    if item.get_closest_marker("train") is not None and (reason := train_extra.why_not()) is not None:
        pytest.skip(reason)
