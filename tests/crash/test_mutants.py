"""The checks can fail: each deliberate fault is found by the check that is named for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crash_checks import CHECKS
from crash_mutants import MUTANTS, Mutant
from crash_report import CAUGHT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_finds_nothing_in_the_real_code(workspace: Path, check: str) -> None:
    assert CHECKS[check](workspace) == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(workspace: Path, monkeypatch: pytest.MonkeyPatch, mutant: Mutant) -> None:
    with monkeypatch.context() as patch:
        mutant.apply(patch)
        found = CHECKS[mutant.check](workspace)
    assert found != [], f"{mutant.check} lets the mutant live"
    print(*found[:4], sep="\n")
    CAUGHT[mutant.name] = mutant.check


def test_every_check_catches_something() -> None:
    assert {mutant.check for mutant in MUTANTS} == set(CHECKS)
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 12
