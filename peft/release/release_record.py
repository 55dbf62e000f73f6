"""How a release went: its phases with what each observed, and how it ended."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.comparison import Comparison
from ticket_agent.peft.release.document_error import DocumentError, reading
from ticket_agent.peft.release.evidence_limits import MAX_BLOCKER_BYTES, MAX_PHASES
from ticket_agent.peft.release.observation import PhaseObservation
from ticket_agent.peft.release.phases import Phase, ReleaseState
from ticket_agent.peft.release.rules import (
    array,
    check_operation_id,
    choice,
    digest_text,
    exact,
    field_names,
    integer,
    refuse,
    text,
)
from ticket_agent.protocol.tokens import U64_MAX, is_token

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["RECORD_SCHEMA", "Authority", "PhaseRecord", "ReleaseRecord"]

RECORD_SCHEMA: Final = "cohesix-peft-recipe-journal/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """The ticket under which something was done.

    Raises:
        DocumentError: a value that no ticket has.
    """

    ticket_id: str
    idempotency_key: str
    writer_epoch: int

    def __post_init__(self) -> None:
        for name in ("ticket_id", "idempotency_key"):
            if not is_token(getattr(self, name)):
                refuse(name, "1..=128 ASCII letters, digits or . - _ : without a leading -")
        integer(self.writer_epoch, "writer_epoch", 1, U64_MAX)

    @classmethod
    def of_members(cls, value: object) -> Authority:
        """The value of ``asdict``.

        Raises:
            DocumentError: anything else.
        """
        return cls(**exact(value, field_names(cls), "authority"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRecord:
    """A phase that was dispatched, and what it observed; None where no observation came."""

    phase: Phase
    result: PhaseObservation | None

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        result = None if self.result is None else self.result.members()
        return {"phase": self.phase.value, "result": result}

    @classmethod
    def of_members(cls, value: object) -> PhaseRecord:
        """The value of :meth:`members`.

        Raises:
            DocumentError: anything else.
        """
        document = exact(value, field_names(cls), "phases")
        phase = Phase(choice(document["phase"], "phase", [phase.value for phase in Phase]))
        result = document["result"]
        with reading(phase):
            return cls(phase=phase, result=None if result is None else PhaseObservation.of_members(result))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRecord:
    """A release as its journal tells it.

    Attributes:
        operation_id: the release's.
        request_sha256: digest of its request.
        authority: the ticket that started it.
        state: where it stands.
        phases: those that were dispatched, in that order, each at most once.
        comparison: the decision after the evaluation, None before it or when it was against the candidate.
        blocker: what stopped it, 1..=256 bytes of printable text, or None.
        recovery: the ticket of a recovery that was asked for later, or None.

    Raises:
        DocumentError: a value that no record has, or an observation of another release or phase.
    """

    operation_id: str
    request_sha256: str
    authority: Authority
    state: ReleaseState
    phases: tuple[PhaseRecord, ...]
    comparison: Comparison | None = None
    blocker: str | None = None
    recovery: Authority | None = None

    def __post_init__(self) -> None:
        check_operation_id(self.operation_id)
        digest_text(self.request_sha256, "request_sha256")
        array(list(self.phases), "phases", 0, MAX_PHASES)
        if len({record.phase for record in self.phases}) != len(self.phases):
            refuse("phases", "different phases: each is dispatched at most once")
        for observation in self.observations():
            observation.require(
                operation_id=self.operation_id,
                request_sha256=self.request_sha256,
                phase=observation.phase,
            )
        for record in self.phases:
            if record.result is not None and record.result.phase is not record.phase:
                raise DocumentError(f"phases: {record.phase} holds the observation of {record.result.phase}")
        if self.blocker is not None:
            text(self.blocker, "blocker", MAX_BLOCKER_BYTES, ascii_only=False)

    def observations(self) -> Iterator[PhaseObservation]:
        """Everything that was observed, in the order of the phases."""
        return (record.result for record in self.phases if record.result is not None)

    def record_of(self, phase: Phase) -> PhaseRecord | None:
        """The record of a phase, None when it was not dispatched."""
        return next((record for record in self.phases if record.phase is phase), None)

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON, in the order that its readers write."""
        document: dict[str, Any] = {
            "schema": RECORD_SCHEMA,
            "operation_id": self.operation_id,
            "request_sha256": self.request_sha256,
            **asdict(self.authority),
            "state": self.state.value,
            "phases": [record.members() for record in self.phases],
            "comparison": None if self.comparison is None else self.comparison.members(),
            "blocker": self.blocker,
        }
        if self.recovery is not None:
            document["recovery_authority"] = asdict(self.recovery)
        return document

    @classmethod
    def of_members(cls, value: object) -> ReleaseRecord:
        """The value of :meth:`members`.

        Raises:
            DocumentError: anything else.
        """
        with reading("release record"):
            return _record(value)


_MEMBERS: Final = (
    "schema",
    "operation_id",
    "request_sha256",
    *field_names(Authority),
    "state",
    "phases",
    "comparison",
    "blocker",
)


def _record(value: object) -> ReleaseRecord:
    optional = ("recovery_authority",) if isinstance(value, dict) and "recovery_authority" in value else ()
    document = exact(value, (*_MEMBERS, *optional))
    choice(document["schema"], "schema", (RECORD_SCHEMA,))
    choice(document["state"], "state", [state.value for state in ReleaseState])
    comparison = document["comparison"]
    return ReleaseRecord(
        operation_id=document["operation_id"],
        request_sha256=document["request_sha256"],
        authority=Authority.of_members({name: document[name] for name in field_names(Authority)}),
        state=ReleaseState(document["state"]),
        phases=tuple(
            PhaseRecord.of_members(item) for item in array(document["phases"], "phases", 0, MAX_PHASES)
        ),
        comparison=None if comparison is None else Comparison.of_members(comparison),
        blocker=document["blocker"],
        recovery=Authority.of_members(document["recovery_authority"]) if optional else None,
    )
