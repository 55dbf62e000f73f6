"""Whatever dies in whatever phase of a release: it ends as the table says, and everything is done once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from crash_report import NOTES
from release_bench import Bench, Zygote
from release_cell import Player
from release_cells import Cell, cells

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def player(memory: Path) -> Iterator[Player]:
    folder = memory / "matrix"
    folder.mkdir(mode=0o700)
    zygote = Zygote()
    bench = Bench(folder, zygote)
    try:
        made = Player(bench)
        yield made
        if made.gaps:
            worst = max(made.gaps, key=lambda label: made.gaps[label])
            NOTES.append(
                f"releases: {len(made.gaps)} cells with a client, {made.answers} answers,"
                f" {made.unanswered} questions failed, longest gap {made.gaps[worst]:.0f} ms ({worst})"
            )
    finally:
        bench.close()
        zygote.close()


@pytest.mark.parametrize("cell", cells(), ids=lambda cell: cell.label)
def test_a_release_ends_as_it_must(player: Player, cell: Cell) -> None:
    found = player.play(cell)
    assert not found, "\n".join([f"{cell.label}: {cell.event.why}", *found])
