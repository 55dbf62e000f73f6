"""An operator at a terminal, and a journal with a finished past for them to read."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from cli_support import Answer, Operator

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled once for all processes of the session."""
    return tmp_path_factory.mktemp("bytecode")


@pytest.fixture
def operator(tmp_path: Path, bytecode: Path) -> Operator:
    return Operator(tmp_path, bytecode)


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory, bytecode: Path) -> tuple[Answer, Path]:
    """The answer of a demo with leases only, and the journal that it kept."""
    home = tmp_path_factory.mktemp("demo")
    answer = Operator(home, bytecode).run("demo", "--json", "--leases-only", "--keep", "kept")
    return answer, home / "kept"


@pytest.fixture
def journal(demo: tuple[Answer, Path], operator: Operator) -> Path:
    """A copy of the demo's journal as the operator's state directory: twelve tickets, all ended."""
    shutil.copytree(demo[1], operator.state)
    return operator.state
