"""Which observations count: only those of the very phase that say what its success consists of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from release_scene import BARE, CANDIDATE, Scene, successor

from ticket_agent.peft.release.accepting import accept_observation
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.phases import Phase

PLAIN = Scene()
SCENE = replace(
    PLAIN,
    details={
        Phase.TRAIN: {"candidate": {"adapter_sha256": CANDIDATE}},
        Phase.EVALUATE: PLAIN.detail(Phase.EVALUATE) | {"behaviour_sha256": "b" * 64},
        Phase.STAGE: PLAIN.detail(Phase.STAGE) | {"serving_bundle_sha256": "5" * 64},
    },
)
OTHER = "0" * 64


def accept(phase: Phase, data: bytes | None = None, /, **changes: Any) -> object:
    deployed = {
        Phase.PROMOTE: successor(SCENE.baseline),
        Phase.ROLLBACK: SCENE.baseline,
    }
    members: dict[str, Any] = {
        "operation_id": SCENE.operation_id,
        "request_sha256": digest(SCENE.request_bytes),
        "phase": phase,
        "candidate_sha256": CANDIDATE,
        "deployed": deployed.get(phase),
    }
    return accept_observation(
        SCENE.observation(phase).encode() if data is None else data, **(members | changes)
    )


@pytest.mark.parametrize("phase", list(Phase))
def test_an_observation_of_the_very_phase_counts(phase: Phase) -> None:
    assert accept(phase) == SCENE.observation(phase)
    failed = SCENE.observation(phase, succeeded=False)
    assert accept(phase, failed.encode()) == failed


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize(
    "changes",
    [
        {"operation_id": "another"},
        {"request_sha256": OTHER},
        {"phase": Phase.VALIDATE},
        {"phase": Phase.CANARY},
    ],
)
def test_one_of_something_else_does_not(phase: Phase, changes: dict[str, Any]) -> None:
    if changes.get("phase") is phase:
        return
    with pytest.raises(DocumentError, match="another release"):
        accept(phase, **changes)


@pytest.mark.parametrize("data", [b"", b"{}", b"null", b"\xff", b"{" * 5000])
def test_what_is_no_observation_does_not(data: bytes) -> None:
    with pytest.raises(DocumentError):
        accept(Phase.SCAN, data)


@pytest.mark.parametrize("phase", [Phase.SCAN, Phase.STAGE])
def test_another_candidate_than_was_evaluated_does_not(phase: Phase) -> None:
    with pytest.raises(DocumentError, match="another adapter"):
        accept(phase, candidate_sha256=OTHER)
    with pytest.raises(DocumentError, match="another adapter"):
        accept(phase, candidate_sha256=None)


@pytest.mark.parametrize("phase", [Phase.PROMOTE, Phase.ROLLBACK])
def test_another_deployment_than_the_phase_leaves_does_not(phase: Phase) -> None:
    with pytest.raises(DocumentError, match="another deployment"):
        accept(phase, deployed=BARE)
    told = replace(SCENE, details={phase: {}}).observation(phase)
    with pytest.raises(DocumentError):
        accept(phase, told.encode())


def test_an_evaluation_without_both_evaluations_does_not() -> None:
    told = replace(SCENE, details={Phase.EVALUATE: {"baseline": None}}).observation(Phase.EVALUATE)
    with pytest.raises(DocumentError, match="baseline"):
        accept(Phase.EVALUATE, told.encode())


@pytest.mark.parametrize("phase", [Phase.TRAIN, Phase.EVALUATE, Phase.STAGE])
def test_a_success_that_lacks_what_later_phases_need_does_not(phase: Phase) -> None:
    with pytest.raises(DocumentError, match=str(phase)):
        accept(phase, replace(PLAIN, details={phase: {}}).observation(phase).encode())
    with pytest.raises(DocumentError, match="must be a SHA-256"):
        accept(phase, PLAIN.observation(phase).encode())
