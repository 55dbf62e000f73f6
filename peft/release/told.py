"""What the phases of a release have told, for people: figures out of observations. Pure, and tolerant.

An observation's detail is what its phase chose to say. What is missing in it, or of another kind, is left out
here: nothing is decided by these figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.deployment import DeploymentState
from ticket_agent.peft.release.document_error import DocumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.peft.release.observation import PhaseObservation
    from ticket_agent.peft.release.phases import Phase
    from ticket_agent.peft.release.release_record import ReleaseRecord

__all__ = [
    "CanaryRound",
    "accepted_of",
    "canary_rounds",
    "detail_of",
    "eval_losses",
    "failure_of",
    "findings_of",
    "training_losses",
]

_MAX_REASON: Final = 512
_METRIC: Final = "eval_loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRound:
    """One round of a canary: its condition, and the latency of each prompt in milliseconds."""

    condition: str
    latency_ms: tuple[int, ...]
    failures: int


def detail_of(record: ReleaseRecord, phase: Phase) -> Mapping[str, Any]:
    """What a phase told; empty where it told nothing."""
    entry = record.record_of(phase)
    return {} if entry is None or entry.result is None else entry.result.detail


def failure_of(observation: PhaseObservation) -> tuple[str | None, str | None]:
    """Rule and reason of a phase that did not succeed."""
    rule, reason = observation.detail.get("rule"), observation.detail.get("reason")
    if not isinstance(rule, str):
        rule = None
    if not isinstance(reason, str):
        error = observation.detail.get("error")
        reason = error if isinstance(error, str) else None
    found = findings_of(observation.detail)
    if reason is None and found:
        rule, reason = found[0]
    return rule, None if reason is None else reason[:_MAX_REASON]


def findings_of(detail: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a canary found, by rule and text."""
    found = _canary(detail).get("findings")
    if not isinstance(found, list):
        return []
    return [
        (item["rule"], item["text"])
        for item in found
        if isinstance(item, dict) and isinstance(item.get("rule"), str) and isinstance(item.get("text"), str)
    ]


def canary_rounds(detail: Mapping[str, Any]) -> list[CanaryRound]:
    """The rounds of a canary in the detail of ``canary``, ``promote`` or ``rollback``."""
    rounds = _canary(detail).get("rounds")
    found = []
    for item in rounds if isinstance(rounds, list) else []:
        times = item.get("latency_ms") if isinstance(item, dict) else None
        if not isinstance(times, list) or not all(type(time) is int and time >= 0 for time in times):
            continue
        failures = item.get("failures")
        found.append(
            CanaryRound(
                condition=str(item.get("condition", "?")),
                latency_ms=tuple(times),
                failures=failures if type(failures) is int else 0,
            )
        )
    return found


def training_losses(detail: Mapping[str, Any]) -> list[tuple[int, float]]:
    """Steps and losses that a training told."""
    events = detail.get("losses")
    return [
        (item[0], float(item[1]))
        for item in (events if isinstance(events, list) else [])
        if isinstance(item, list)
        and len(item) == 2  # noqa: PLR2004 - a step and its loss
        and type(item[0]) is int
        and type(item[1]) in {int, float}
    ]


def eval_losses(detail: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """The mean losses of baseline and candidate in the detail of ``evaluate``."""
    found = []
    for who in ("baseline", "candidate"):
        metrics = detail.get(who)
        metrics = metrics.get("metrics") if isinstance(metrics, dict) else None
        value = metrics.get(_METRIC) if isinstance(metrics, dict) else None
        found.append(value if isinstance(value, float) else None)
    return found[0], found[1]


def accepted_of(detail: Mapping[str, Any]) -> DeploymentState | None:
    """What ``promote`` or ``rollback`` say is deployed."""
    try:
        return DeploymentState.of_members(detail.get("accepted"))
    except DocumentError:
        return None


def _canary(detail: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = detail.get("canary")
    return inner if isinstance(inner, dict) else detail
