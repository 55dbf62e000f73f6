"""A snapshot's number never comes twice and never goes back, and a restart needs nobody; this can fail.

Each deliberate fault is found by the check that is named for it, and none finds anything in the real code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crash_report import CAUGHT, NOTES
from snapshot_checks import CHECKS, RUNS
from snapshot_mutants import MUTANTS, Mutant

if TYPE_CHECKING:
    from pathlib import Path

LEAST_DEATHS = 160
"""Two lives of at least 40 steps, with a hive that remembers and one that does not; fewer would mean that
steps are not counted."""


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_finds_nothing_in_the_real_code(workspace: Path, check: str) -> None:
    assert CHECKS[check](workspace) == []
    assert check != "deaths" or RUNS[check] >= LEAST_DEATHS
    NOTES.append(f"publisher in this process, {check}: {RUNS[check]} lives, 0 violations")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(workspace: Path, monkeypatch: pytest.MonkeyPatch, mutant: Mutant) -> None:
    with monkeypatch.context() as patch:
        mutant.apply(patch)
        found = CHECKS[mutant.check](workspace)
    assert found != [], f"{mutant.check} lets the mutant live"
    print(*found[:4], sep="\n")
    CAUGHT[mutant.name] = f"publisher, {mutant.check}"


def test_every_check_catches_something() -> None:
    assert {mutant.check for mutant in MUTANTS} == set(CHECKS)
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 6
