"""Phases in a journal: dispatched once, settled by what was observed, and the same after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from release_scene import GRAPH, TICKET, Scene

from ticket_agent.journal.errors import FenceHeldError, IllegalTransitionError
from ticket_agent.journal.transitions import State
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.layout import Begun, OperationFiles
from ticket_agent.peft.release.phase_journal import PhaseJournal
from ticket_agent.peft.release.phase_machine import Standing
from ticket_agent.peft.release.phases import Phase
from ticket_agent.peft.release.statement import LauncherFacts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCENE = Scene()
BEGUN = Begun(
    operation_id=SCENE.operation_id,
    request_sha256=digest(SCENE.request_bytes),
    authority=TICKET,
    expires_unix_ms=9_000,
    provider_graph_sha256=GRAPH,
    launcher=LauncherFacts(name="bubblewrap", guarantees=("network: none",)),
    began_unix_ms=1_000,
)


def opened(root: Path) -> PhaseJournal:
    return PhaseJournal.open(root, clock=lambda: 5_000, boot_id="boot", agent_version="1+00000000")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def journal(root: Path) -> Iterator[PhaseJournal]:
    found = opened(root)
    yield found
    found.close()


def files(root: Path, **members: str) -> OperationFiles:
    return OperationFiles(root=root, operation_id=SCENE.operation_id, **members)


def test_a_phase_goes_through_its_journal(root: Path, journal: PhaseJournal) -> None:
    place, phase = files(root), Phase.SCAN
    assert journal.standing(place, phase) is None
    journal.dispatch(place, phase, BEGUN, {"launch_id": "x"})
    assert journal.standing(place, phase) is Standing.OPEN
    assert not journal.unfinished(place, phase)
    journal.settle(place, phase, SCENE.observation(phase), why="scan succeeded")
    assert journal.standing(place, phase) is Standing.SUCCEEDED
    assert journal.unfinished(place, phase)
    published: list[str] = []
    journal.finish(place, phase, lambda: published.append("once"))
    journal.finish(place, phase, lambda: published.append("again"))
    assert published == ["once"]
    record = journal.record(place, phase)
    assert record is not None
    assert [entry.state for entry in record.history] == list(State)
    assert record.result is not None
    assert record.result.evidence["observation_sha256"] == SCENE.observation(phase).sha256


def test_a_phase_is_dispatched_once(root: Path, journal: PhaseJournal) -> None:
    journal.dispatch(files(root), Phase.LOAD, BEGUN, {})
    with pytest.raises(IllegalTransitionError):
        journal.dispatch(files(root), Phase.LOAD, BEGUN, {})
    journal.settle_lost(files(root), Phase.LOAD, why="killed")
    with pytest.raises(IllegalTransitionError):
        journal.dispatch(files(root), Phase.LOAD, BEGUN, {})


@pytest.mark.parametrize(
    "standing", [Standing.SUCCEEDED, Standing.FAILED, Standing.LOST, Standing.NOT_STARTED]
)
def test_how_a_phase_stands_is_the_same_after_a_restart(root: Path, standing: Standing) -> None:
    place, phase = files(root), Phase.CANARY
    first = opened(root)
    first.dispatch(place, phase, BEGUN, {"because": "x"})
    match standing:
        case Standing.LOST:
            first.settle_lost(place, phase, why="killed")
        case Standing.NOT_STARTED:
            first.settle_not_started(place, phase, why="refused")
        case _:
            told = SCENE.observation(phase, succeeded=standing is Standing.SUCCEEDED)
            first.settle(place, phase, told, why="it ended")
    first.close()
    second = opened(root)
    assert second.standing(place, phase) is standing
    second.close()


def test_phases_of_different_attempts_are_different_operations(root: Path, journal: PhaseJournal) -> None:
    for place in (files(root), files(root, recovery="ticket-2"), files(root, recovery="ticket-3")):
        journal.dispatch(place, Phase.ROLLBACK, BEGUN, {})
    journal.settle_lost(files(root, recovery="ticket-2"), Phase.ROLLBACK, why="killed")
    assert journal.standing(files(root), Phase.ROLLBACK) is Standing.OPEN
    assert journal.standing(files(root, recovery="ticket-3"), Phase.ROLLBACK) is Standing.OPEN


def test_two_processes_never_drive_one_root(root: Path, journal: PhaseJournal) -> None:
    assert journal.unreadable() == ()
    with pytest.raises(FenceHeldError):
        opened(root)


def test_a_damaged_record_is_named(root: Path) -> None:
    first = opened(root)
    first.dispatch(files(root), Phase.TRAIN, BEGUN, {})
    first.close()
    path = next((root / "journal" / "ops").iterdir())
    path.write_bytes(path.read_bytes()[:-1])
    second = opened(root)
    assert second.unreadable() == (path.name,)
    second.close()


def test_what_a_release_began_with_comes_back() -> None:
    assert Begun.parse(BEGUN.encode()) == BEGUN
