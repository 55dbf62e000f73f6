"""Whether an observation is taken for what a phase achieved: pure.

It has to be of this very release and phase, and a success has to say what this phase's success consists of.
What is not accepted counts as no observation at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ticket_agent.peft.release.deployment import DeploymentState
from ticket_agent.peft.release.document_error import DocumentError, reading
from ticket_agent.peft.release.evaluation import Evaluation
from ticket_agent.peft.release.observation import parse_observation
from ticket_agent.peft.release.phases import Phase
from ticket_agent.peft.release.rules import digest_text

if TYPE_CHECKING:
    from ticket_agent.peft.release.observation import PhaseObservation

__all__ = ["accept_observation"]

_CANDIDATE = frozenset({Phase.SCAN, Phase.STAGE})
_DIGESTS = {Phase.EVALUATE: ("behaviour_sha256",), Phase.STAGE: ("serving_bundle_sha256",)}
"""What later phases are told by."""


def accept_observation(
    data: bytes,
    *,
    operation_id: str,
    request_sha256: str,
    phase: Phase,
    candidate_sha256: str | None,
    deployed: DeploymentState | None,
) -> PhaseObservation:
    """Read an observation and hold it to what is known.

    Args:
        data: the file.
        operation_id: of the release.
        request_sha256: digest of its request.
        phase: that was dispatched.
        candidate_sha256: the adapter that was compared; None before there is a decision.
        deployed: what a success of this phase leaves deployed; None where it changes nothing.

    Raises:
        DocumentError: it is not accepted, with the reason.
    """
    found = parse_observation(data)
    found.require(operation_id=operation_id, request_sha256=request_sha256, phase=phase)
    if not found.succeeded:
        return found
    with reading(f"observation of {phase}"):
        if phase is Phase.EVALUATE:
            for name in ("baseline", "candidate"):
                Evaluation.of_members(found.detail.get(name), name)
        for member in _DIGESTS.get(phase, ()):
            digest_text(found.detail.get(member), member)
        if phase is Phase.TRAIN:
            _require_candidate(found.detail.get("candidate"))
        if phase in _CANDIDATE and found.detail.get("adapter_sha256") != candidate_sha256:
            raise DocumentError(
                "it is about another adapter than the one that was evaluated",
                rule="candidate-changed-after-evaluation",
            )
        if deployed is not None:
            with reading("accepted"):
                told = DeploymentState.of_members(found.detail.get("accepted"))
            if told != deployed:
                raise DocumentError("it tells of another deployment", rule="promotion-postcondition")
    return found


def _require_candidate(told: object) -> None:
    with reading("candidate"):
        digest_text(told.get("adapter_sha256") if isinstance(told, dict) else None, "adapter_sha256")
