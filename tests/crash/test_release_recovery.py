"""A release that did not end well is recovered by a ticket of its own, whatever happens to the recovery."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crash_sweep import EVERYTHING
from release_bench import benched
from release_cell import Player
from release_cells import JOURNAL, Cell

from ticket_agent.peft.release.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAYS = {
    "validate-phase-begin": "ambiguous",
    "stage-phase-done": "ambiguous",
    "evaluate-lost": "ambiguous",
    "load-lost": "stuck",
    "promote-lost": "stuck",
    "canary-expired": "stuck",
    "rollback-agent-intended": "stuck",
    "rollback-phase-begin": "stuck",
    "rollback-phase-done": "stuck",
    "rollback-fails": "stuck",
    "rollback-incumbent-dies": "stuck",
    "rollback-garbage": "stuck",
}
"""Each way in which a release comes to be recovered."""
FEW = ("stage-phase-done", "promote-lost", "rollback-phase-begin", "rollback-incumbent-dies")
RECOVERED = {"accepted": 0, "pointer": 0, "runtime": 0, "answers": True, "owner": False, "blocked": False}

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def player(memory: Path) -> Iterator[Player]:
    with benched(memory / "recovery") as bench:
        yield Player(bench)


def _spoil(player: Player, way: str, end: str) -> None:
    """A release that has to be recovered; nothing is wrong with the host any more."""
    phase, _, name = way.partition("-")
    cell = Cell(phase=Phase(phase), name=name)
    assert cell.expected == end
    assert player.play(cell) == []
    for path in (player.bench.home / "faults").iterdir():
        path.unlink()
    for name in ("authority", "clock", "monotonic"):
        (player.bench.home / name).unlink(missing_ok=True)


def _recovery(player: Player, number: int) -> str:
    return player.bench.ticket("train", number, recovery_only=True)


def _told(player: Player, number: int) -> dict[str, str]:
    found: dict[str, str] = player.bench.told()[f"t-{number}"]
    return found


def _require_recovered(player: Player, number: int) -> None:
    bench = player.bench
    told = _told(player, number)
    assert told["outcome"] == "rejected", told
    assert told["message"].startswith("recovered_failure"), told
    assert bench.files_say() == RECOVERED, told
    assert bench.verified(recovery=f"t-{number}") == []
    candidate = bench.candidate()
    assert candidate is None or candidate.running() is False
    assert [name for name, count in bench.effects().items() if count > 1] == []


@pytest.mark.parametrize("way", WAYS if EVERYTHING else FEW)
def test_a_recovery_restores_everything(player: Player, way: str) -> None:
    _spoil(player, way, WAYS[way])
    before = player.bench.end()
    assert player.bench.run(_recovery(player, 11)) == 0, player.bench.output()
    _require_recovered(player, 11)
    assert player.bench.end() == before, "the release's own record does not change"


AGENT = {
    "dispatch-before": "recovered_failure",
    "dispatch-after": "rollback_failed",
    "settle-before": "recovered_failure",
    "settle-after": "recovered_failure",
    "finish-after": "recovered_failure",
}


@pytest.mark.parametrize("point", AGENT if EVERYTHING else ["dispatch-after", "settle-after"])
def test_an_agent_dies_in_a_recovery(player: Player, point: str) -> None:
    _spoil(player, "load-lost", "stuck")
    method, when = point.split("-")
    ticket, bench = _recovery(player, 11), player.bench
    wrong = {"at": f"{JOURNAL}.{method}", "phase": "rollback", "when": when}
    assert bench.run(ticket, die=wrong) == -9, bench.told()
    assert bench.run(ticket) == 0, bench.output()
    found = bench.end(recovery="t-11")
    assert found is not None
    assert found.state == AGENT[point]
    if found.state == "recovered_failure":
        _require_recovered(player, 11)
    else:
        assert bench.files_say()["blocked"]
        assert bench.run(_recovery(player, 12)) == 0, bench.output()
        _require_recovered(player, 12)


def test_the_agent_is_down_while_a_recovery_is_done(player: Player) -> None:
    _spoil(player, "load-lost", "stuck")
    bench, ticket = player.bench, _recovery(player, 11)
    bench.fault(Phase.ROLLBACK, "unobserved", "hold")
    bench.start(ticket)
    bench.held(Phase.ROLLBACK)
    bench.end_life()
    bench.go(Phase.ROLLBACK)
    assert bench.run(ticket) == 0
    _require_recovered(player, 11)


def test_an_incumbent_that_was_started_again_is_started_once(player: Player) -> None:
    bench = player.bench
    player.before("train", Phase.LOAD)
    bench.fault(Phase.LOAD, "unobserved", "hold")
    bench.fault(Phase.CANARY, "unobserved", "fails")
    bench.fault(Phase.ROLLBACK, "begin", "kill")
    bench.start(player.tickets["train"])
    bench.held(Phase.LOAD)
    first = bench.server("first.server")
    assert first is not None
    first.kill()
    bench.go(Phase.LOAD)
    life = bench.life
    assert life is not None
    assert life.over(bench.wait_s), str(bench.told())
    assert "rollback_failed" in _told(player, 1)["message"]
    bench.unfault(Phase.ROLLBACK)
    assert bench.run(_recovery(player, 11)) == 0, bench.output()
    _require_recovered(player, 11)
    running = [server.launch_id for server in bench.room.all() if server.running() is not False]
    assert running == ["rel-1.incumbent"]


def test_there_are_four_attempts(player: Player) -> None:
    _spoil(player, "load-lost", "stuck")
    bench = player.bench
    bench.fault(Phase.ROLLBACK, "begin", "kill")
    for number in range(11, 15):
        assert bench.run(_recovery(player, number)) == 0, bench.output()
        assert "rollback_failed" in _told(player, number)["message"]
    bench.unfault(Phase.ROLLBACK)
    assert bench.run(_recovery(player, 15)) == 0
    assert "4 attempts already" in _told(player, 15)["message"]
    assert bench.files_say()["blocked"]


@pytest.mark.parametrize(
    ("way", "end", "why"),
    [
        ("validate-fails", "failed", "nothing to recover"),
        ("load-fails", "recovered", "nothing to recover"),
        ("validate-phase-told", "succeeded", "nothing to recover"),
    ],
)
def test_what_ended_is_not_recovered(player: Player, way: str, end: str, why: str) -> None:
    _spoil(player, way, end)
    files = player.bench.files_say()
    assert player.bench.run(_recovery(player, 11)) == 0
    assert why in _told(player, 11)["message"]
    assert player.bench.files_say() == files


def test_a_recovery_needs_another_ticket_and_happens_once(player: Player) -> None:
    _spoil(player, "load-lost", "stuck")
    bench = player.bench
    same = _recovery(player, 1).replace('"k-1"', '"k-other"')
    (bench.home / "state").rename(bench.home / "state-of-before")
    assert bench.run(same) == 0
    assert "a recovery needs another one" in _told(player, 1)["message"]
    assert bench.run(_recovery(player, 11)) == 0
    _require_recovered(player, 11)
    assert bench.run(_recovery(player, 12)) == 0
    assert "recovered already" in _told(player, 12)["message"]


def test_a_recovery_waits_for_the_release_that_runs(player: Player) -> None:
    bench, ticket = player.bench, player.tickets["train"]
    player.before("train", Phase.CANARY)
    bench.fault(Phase.CANARY, "unobserved", "hold")
    bench.start(ticket, _recovery(player, 11))
    bench.held(Phase.CANARY)
    bench.until(lambda: "still runs" in _told(player, 11)["why"], "the recovery waits")
    bench.go(Phase.CANARY)
    life = bench.life
    assert life is not None
    assert life.over(bench.wait_s), str(bench.told())
    assert _told(player, 1)["outcome"] == "confirmed"
    assert "nothing to recover" in _told(player, 11)["message"]


def test_somebody_elses_generation_is_not_taken_back(player: Player) -> None:
    _spoil(player, "load-lost", "stuck")
    bench = player.bench
    newer = bench.deploy_another()
    assert bench.run(_recovery(player, 11)) == 0, bench.output()
    assert "somebody else's deployment" in _told(player, 11)["message"]
    assert bench.root.control.accepted() == newer
    assert bench.files_say()["blocked"]
    assert "recovery t-11 rollback" not in " ".join(bench.effects())
