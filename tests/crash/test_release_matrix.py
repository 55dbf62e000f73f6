"""Whatever dies in whatever phase of a release: it ends as the table says, and everything is done once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crash_report import NOTES
from crash_sweep import EVERYTHING
from release_bench import benched
from release_cell import Player
from release_cells import Cell, cells, sample

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def player(memory: Path) -> Iterator[Player]:
    with benched(memory / "matrix") as bench:
        made = Player(bench)
        yield made
        if made.gaps:
            NOTES.append(made.line())


@pytest.mark.parametrize("cell", cells() if EVERYTHING else sample(), ids=lambda cell: cell.label)
def test_a_release_ends_as_it_must(player: Player, cell: Cell) -> None:
    if cell.event.do[0] == "full" and not player.bench.small:
        pytest.skip("only root can mount a file system that is full")
    found = player.play(cell)
    assert not found, "\n".join([f"{cell.label}: {cell.event.why}", *found])
