"""Whether a release can have gone as it is told: what only a caller without evidence can ask.

What a signed bundle can tell is tested with bundles.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from release_scene import DEPLOYED, SCENES, Scene

from ticket_agent.peft.release.consistency import (
    deployed_after,
    evaluations_of,
    require_candidate,
    require_comparison,
    require_order,
    require_outcome,
)
from ticket_agent.peft.release.evidence_errors import InconsistentError
from ticket_agent.peft.release.phases import Phase, ReleaseState
from ticket_agent.peft.release.request import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.peft.release.release_record import PhaseRecord


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_every_way_to_end_is_consistent(scene: Scene) -> None:
    request, record = scene.request, scene.record
    require_order(request, record)
    paired = require_comparison(request, record, scene.reports if scene.evaluated else None)
    require_candidate(record)
    require_outcome(request, record)
    assert (paired is None) is (evaluations_of(record) is None)


def test_nothing_comes_after_the_rollback() -> None:
    scene = SCENES["canary failed"]
    *forward, last, rollback = scene.phases
    for phases in ((*forward, rollback, last), (rollback, *forward, last)):
        with pytest.raises(InconsistentError, match="canary cannot come after the rollback"):
            require_order(scene.request, replace(scene.record, phases=phases))


@pytest.mark.parametrize("entry", Entry)
def test_a_training_is_in_the_order_of_trained_releases_alone(entry: Entry) -> None:
    trained, imported = SCENES["trained"].record, SCENES["imported"].record
    other, word = (trained, "train") if entry is Entry.IMPORT else (imported, "evaluate")
    with pytest.raises(InconsistentError, match=f"^{word} cannot come where"):
        require_order(replace(Scene().request, entry=entry), other)


@pytest.mark.parametrize("state", [ReleaseState.RUNNING, ReleaseState.AMBIGUOUS])
def test_what_has_not_ended_has_no_outcome(state: ReleaseState) -> None:
    with pytest.raises(InconsistentError, match=f"{state} has not ended"):
        require_outcome(Scene().request, replace(Scene().record, state=state))


def test_what_is_deployed_afterwards() -> None:
    for name, scene in SCENES.items():
        found = deployed_after(scene.request, scene.record)
        if scene.state is ReleaseState.ROLLBACK_FAILED:
            assert found is None, name
        elif scene.state is ReleaseState.SUCCEEDED:
            assert found is not None
            assert found.generation == scene.baseline.generation + 1
        else:
            assert found == scene.baseline
    with pytest.raises(InconsistentError, match="without a comparison"):
        deployed_after(Scene().request, replace(Scene().record, comparison=None))


def test_a_promotion_that_does_not_hold_is_recovered() -> None:
    """Whatever was seen after the promotion (a soak that fails, say), the way back is open."""
    scene = Scene(rolled_back=True, state=ReleaseState.RECOVERED_FAILURE, blocker="soak")
    require_order(scene.request, scene.record)
    require_outcome(scene.request, scene.record)
    assert deployed_after(scene.request, scene.record) == DEPLOYED


def test_a_recovery_never_promotes() -> None:
    record = replace(Scene().record, recovery=SCENES["rescued"].recovery)
    with pytest.raises(InconsistentError, match="recovery never succeeds"):
        require_outcome(Scene().request, record)


@pytest.mark.parametrize("name", ["bad input", "imported"])
def test_reports_are_there_exactly_when_there_is_an_evaluation(name: str) -> None:
    scene = SCENES[name]
    with pytest.raises(InconsistentError, match="exactly when there is an evaluation"):
        require_comparison(scene.request, scene.record, None if scene.evaluated else scene.reports)


def test_a_comparison_needs_an_evaluation() -> None:
    record = replace(SCENES["bad input"].record, comparison=Scene().comparison)
    with pytest.raises(InconsistentError, match="no evaluation that it could be of"):
        require_comparison(Scene().request, record, None)


def _prefixes(scene: Scene) -> Iterator[tuple[PhaseRecord, ...]]:
    for length in range(len(scene.phases)):
        yield scene.phases[:length]


@pytest.mark.parametrize("entry", Entry)
def test_no_prefix_of_a_success_is_one(entry: Entry) -> None:
    scene = Scene(entry=entry)
    for phases in _prefixes(scene):
        record = replace(scene.record, phases=phases)
        require_order(scene.request, record)
        with pytest.raises(InconsistentError, match="succeeded without each of"):
            require_outcome(scene.request, record)


@pytest.mark.parametrize("entry", Entry)
def test_a_release_that_stopped_is_a_failure_exactly_before_the_load(entry: Entry) -> None:
    scene = Scene(entry=entry, state=ReleaseState.FAILED, blocker="authority is gone")
    for phases in _prefixes(scene):
        record = replace(scene.record, phases=phases)
        if any(found.phase is Phase.LOAD for found in phases):
            with pytest.raises(InconsistentError, match="must be rolled back"):
                require_outcome(scene.request, record)
        else:
            require_outcome(scene.request, record)
