"""Every release that a root knows of, and the generations that they made. Reads files only."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.evidence import parse_evidence
from ticket_agent.peft.release.evidence_check import evidence_of
from ticket_agent.peft.release.evidence_store import EvidenceStore
from ticket_agent.peft.release.phases import Phase, ReleaseState
from ticket_agent.peft.release.release_view import Stage
from ticket_agent.peft.release.told import accepted_of, detail_of, eval_losses

if TYPE_CHECKING:
    from ticket_agent.peft.release.release_config import ReleaseConfig
    from ticket_agent.peft.release.release_reader import ReleaseReader
    from ticket_agent.peft.release.release_record import ReleaseRecord
    from ticket_agent.peft.release.request import ReleaseRequest

__all__ = ["PastRelease", "release_history"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRelease:
    """One release, as far as its files or its evidence tell.

    Attributes:
        operation_id: which.
        model_id: of which model; None when its request is gone.
        entry: import or train; None likewise.
        stage: where it stands.
        state: how it ended; None while it has not.
        blocker: what stopped it.
        generation: that it deployed; None when it deployed none.
        adapter_sha256: the candidate, when it was evaluated.
        baseline_loss: of what was served before, on the held-out rows.
        candidate_loss: of the candidate.
        ended_unix_ms: when the last of its phases that was observed ended.
        evidence_sha256: its native evidence.
        deployed: its generation is the one that is deployed now.
    """

    operation_id: str
    model_id: str | None
    entry: str | None
    stage: Stage
    state: ReleaseState | None
    blocker: str | None
    generation: int | None
    adapter_sha256: str | None
    baseline_loss: float | None
    candidate_loss: float | None
    ended_unix_ms: int | None
    evidence_sha256: str | None
    deployed: bool

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def release_history(config: ReleaseConfig, reader: ReleaseReader) -> tuple[list[PastRelease], list[str]]:
    """All releases by the time of their end, those that go on last; and what cannot be read, one line each.

    Operations whose directory was removed are told by their evidence.
    """
    deployment = reader.deployment()
    accepted = deployment.accepted
    now = None if accepted is None else (accepted.generation, accepted.adapter_sha256)
    found, problems, known = [], list(deployment.problems), set()
    for operation_id in reader.operations():
        try:
            view = reader.release(operation_id, log_lines=0)
            evidence = evidence_of(view)
        except PeftError as error:
            problems.append(f"{operation_id}: {error}")
            continue
        problems += [f"{operation_id}: {problem}" for problem in view.problems]
        sha256 = None if evidence is None else evidence.sha256
        known.add(operation_id)
        found.append(
            _past(operation_id, view.request, view.end, stage=view.stage, evidence_sha256=sha256, now=now)
        )
    for operation_id, record, sha256 in _from_evidence(config, known, problems):
        request = None
        with suppress(PeftError):
            request = reader.request(record.request_sha256)
        found.append(_past(operation_id, request, record, stage=Stage.ENDED, evidence_sha256=sha256, now=now))
    return sorted(found, key=_order), problems


def _order(past: PastRelease) -> tuple[bool, int, str]:
    return past.ended_unix_ms is None, past.ended_unix_ms or 0, past.operation_id


def _from_evidence(
    config: ReleaseConfig, known: set[str], problems: list[str]
) -> list[tuple[str, ReleaseRecord, str]]:
    found: dict[str, tuple[int, ReleaseRecord, str]] = {}
    if not config.evidence.is_dir():
        return []
    try:
        with EvidenceStore.open(config.evidence, owner_uid=os.geteuid(), create=False) as store:
            for sha256 in store.digests():
                try:
                    evidence = parse_evidence(store.load(sha256))
                except PeftError as error:
                    problems.append(str(error))
                    continue
                operation_id, at = evidence.record.operation_id, evidence.observed_unix_ms
                # A recovery makes evidence of its own; the later one says how it ended in the end.
                if operation_id not in known and (operation_id not in found or found[operation_id][0] < at):
                    found[operation_id] = (at, evidence.record, sha256)
    except PeftError as error:
        problems.append(str(error))
    return [(operation_id, record, sha256) for operation_id, (_, record, sha256) in found.items()]


def _past(
    operation_id: str,
    request: ReleaseRequest | None,
    record: ReleaseRecord | None,
    *,
    stage: Stage,
    evidence_sha256: str | None,
    now: tuple[int, str | None] | None,
) -> PastRelease:
    observed = [] if record is None else list(record.observations())
    baseline, candidate = (None, None) if record is None else eval_losses(detail_of(record, Phase.EVALUATE))
    deployed = None
    if record is not None and record.state is ReleaseState.SUCCEEDED:
        deployed = accepted_of(detail_of(record, Phase.PROMOTE))
    return PastRelease(
        operation_id=operation_id,
        model_id=None if request is None else request.model_id,
        entry=None if request is None else request.entry.value,
        stage=stage,
        state=None if record is None else record.state,
        blocker=None if record is None else record.blocker,
        generation=None if deployed is None else deployed.generation,
        adapter_sha256=None if record is None else _adapter(record),
        baseline_loss=baseline,
        candidate_loss=candidate,
        ended_unix_ms=observed[-1].completed_unix_ms if observed else None,
        evidence_sha256=evidence_sha256,
        deployed=deployed is not None and (deployed.generation, deployed.adapter_sha256) == now,
    )


def _adapter(record: ReleaseRecord) -> str | None:
    if record.comparison is not None:
        return record.comparison.candidate_sha256
    told = detail_of(record, Phase.EVALUATE).get("candidate")
    sha256 = told.get("artifact_sha256") if isinstance(told, dict) else None
    return sha256 if isinstance(sha256, str) else None
