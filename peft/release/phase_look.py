"""Looking at a phase that was dispatched: what its process and its observation together tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.errors import AbsentError, FileChangedError, FileRefusedError, RootRefusedError
from ticket_agent.peft.release.accepting import accept_observation
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.evidence_limits import MAX_EVALUATE_BYTES
from ticket_agent.peft.release.phase_machine import Standing
from ticket_agent.peft.release.run_files import EndReason
from ticket_agent.peft.release.running_phase import Finished, Lost, NotStarted, Running, RunningPhase
from ticket_agent.peft.roots import open_to_read

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from ticket_agent.peft.release.deployment import DeploymentState
    from ticket_agent.peft.release.observation import PhaseObservation
    from ticket_agent.peft.release.phases import Phase
    from ticket_agent.peft.release.running_phase import PhaseState

__all__ = ["Expectation", "Seen", "look", "reason_of"]

MAX_REASON: Final = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What an observation of a phase has to be about; see :func:`accept_observation`."""

    operation_id: str
    request_sha256: str
    phase: Phase
    candidate_sha256: str | None
    deployed: DeploymentState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a look told.

    Attributes:
        standing: how the phase stands.
        observation: what it observed, if it succeeded or failed.
        why: in words.
    """

    standing: Standing
    observation: PhaseObservation | None = None
    why: str = ""


def look(process: RunningPhase, directory: Path, expected: Expectation) -> Seen:
    """Look once; ends what a dead supervisor may have left running, and changes nothing else.

    Args:
        process: the phase's.
        directory: ``out`` of its job.
        expected: what its observation has to be about.

    Raises:
        PhaseStopError: something of it may still run; look again.
        PeftError: nothing can be told now; look again.
    """
    state = process.poll()
    if isinstance(state, Running):
        return Seen(standing=Standing.OPEN)
    if isinstance(state, Lost):
        state = process.stop()
    if isinstance(state, NotStarted):
        return Seen(standing=Standing.NOT_STARTED, why="it was never started")
    if isinstance(state, Finished) and state.record.reason is EndReason.NOT_STARTED:
        return Seen(standing=Standing.NOT_STARTED, why=state.record.error or "its program was not executed")
    try:
        data = _read(directory, f"{expected.phase}.json")
    except AbsentError:
        return Seen(standing=Standing.LOST, why=f"{_end_of(state)} and left no observation")
    except FileChangedError:
        raise
    except (FileRefusedError, RootRefusedError) as error:
        return Seen(standing=Standing.LOST, why=f"its observation is not accepted: {error}")
    try:
        found = accept_observation(
            data,
            operation_id=expected.operation_id,
            request_sha256=expected.request_sha256,
            phase=expected.phase,
            candidate_sha256=expected.candidate_sha256,
            deployed=expected.deployed,
        )
    except DocumentError as error:
        return Seen(standing=Standing.LOST, why=f"its observation is not accepted: {error}")
    standing = Standing.SUCCEEDED if found.succeeded else Standing.FAILED
    return Seen(standing=standing, observation=found, why="" if found.succeeded else reason_of(found.detail))


def reason_of(detail: Mapping[str, Any]) -> str:
    """Why a phase failed, from the detail of its observation, in one line."""
    rule, reason = detail.get("rule"), detail.get("reason")
    parts = [part for part in (rule, reason) if isinstance(part, str) and part]
    return ": ".join(parts)[:MAX_REASON] or "it gives no reason"


def _read(directory: Path, name: str) -> bytes:
    with open_to_read(directory, label="phase output") as out:
        return out.read_file(name, max_bytes=MAX_EVALUATE_BYTES)


def _end_of(state: PhaseState) -> str:
    if not isinstance(state, Finished):
        return "it was killed together with its supervisor"
    record = state.record
    if record.reason is EndReason.STOPPED:
        return "it was stopped"
    if record.reason is EndReason.DEADLINE:
        return "its time was over"
    return f"it ended with signal {record.signal}" if record.code is None else f"it ended with {record.code}"
