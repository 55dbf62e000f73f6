"""The checks of releases can fail: each deliberate fault of the driver is found by the check named for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crash_report import CAUGHT
from crash_sweep import EVERYTHING
from release_bench import WAIT_S, benched
from release_cell import Player
from release_cells import Cell
from release_mutants import MUTANTS

from ticket_agent.peft.release.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)
PATIENCE_S = 8.0
"""A fault may also keep a release from ever ending."""


@pytest.fixture(scope="module")
def player(memory: Path) -> Iterator[Player]:
    with benched(memory / "mutants") as bench:
        yield Player(bench)


def cell(player: Player, check: str, **wrong: str) -> list[str]:
    """A cell of the matrix."""
    phase, _, name = check.partition("-")
    return player.play(Cell(phase=Phase(phase), name=name), **wrong)


def others(player: Player, check: str, **wrong: str) -> list[str]:
    """Somebody else deploys a newer generation while a phase is at its end: nothing of it is touched."""
    bench, phase = player.bench, Phase(check.partition(" ")[2])
    player.before("train", phase)
    bench.fault(phase, "unobserved", "hold")
    bench.start(player.tickets["train"], **wrong)
    bench.held(phase)
    newer = bench.deploy_another()
    bench.go(phase)
    life = bench.life
    assert life is not None
    assert life.over(bench.wait_s), bench.told()
    end = "failed" if phase is Phase.STAGE else "rollback_failed"
    record = bench.end()
    found = (
        [] if record is not None and record.state == end else [f"it is {record and record.state}, not {end}"]
    )
    if bench.root.control.accepted() != newer:
        found.append("the other deployment was replaced")
    begun = {"load", "rollback"} if phase is Phase.STAGE else {"promote", "rollback"}
    done = [name for name in bench.effects() if name.split(" ")[1] in begun]
    return found + ([f"{done} after somebody else deployed"] if done else [])


CHECKED_BY = {
    "starts before the intent is durable": "stage-agent-unbegun",
    "begins what is lost again": "stage-phase-begin",
    "takes what is lost for never begun": "stage-phase-done",
    "rolls nothing back": "canary-fails",
    "rolls back over a newer generation": "others canary",
    "gives the root away after a failed rollback": "rollback-fails",
    "blocks nothing after a failed rollback": "rollback-fails",
    "asks nobody whether it is allowed": "stage-lost-between",
    "stops nothing": "stage-lost",
    "takes any observation": "promote-other-deployed",
    "keeps no observation": "stage-fails",
    "loads whatever is deployed": "others stage",
}


def run(player: Player, check: str, **wrong: str) -> list[str]:
    player.bench.wait_s = PATIENCE_S if wrong else WAIT_S
    try:
        return (others if check.startswith("others") else cell)(player, check, **wrong)
    except AssertionError as error:
        return [str(error)]


OTHERS = [check for check in CHECKED_BY.values() if check.startswith("others")]


@pytest.mark.parametrize("check", sorted(set(CHECKED_BY.values())) if EVERYTHING else OTHERS)
def test_a_check_finds_nothing_in_the_real_driver(player: Player, check: str) -> None:
    assert run(player, check) == []


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_of_the_driver_is_caught(player: Player, mutant: str) -> None:
    check = CHECKED_BY[mutant]
    found = run(player, check, mutant=mutant)
    assert found != [], f"{check} lets the mutant live"
    print(*found[:4], sep="\n")
    CAUGHT[f"releases: {mutant}"] = check
