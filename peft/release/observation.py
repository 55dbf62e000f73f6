"""What a phase says about itself when it has ended: the only source of its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.document_error import DocumentError, reading
from ticket_agent.peft.release.evidence_limits import (
    MAX_EVALUATE_BYTES,
    MAX_IDENTITY_BYTES,
    MAX_OBSERVATION_BYTES,
)
from ticket_agent.peft.release.phases import Phase
from ticket_agent.peft.release.rules import (
    check_operation_id,
    choice,
    digest_text,
    exact,
    field_names,
    flag,
    integer,
    sorted_names,
    text,
)
from ticket_agent.peft.release.spelled import decode_spelled, spell
from ticket_agent.protocol.json_strict import sorted_members
from ticket_agent.protocol.tokens import U64_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PhaseObservation", "max_detail_bytes", "max_observation_bytes", "parse_observation"]

_FRAME: Final = 1024
"""What an observation takes at most beside its detail."""


def max_observation_bytes(phase: Phase) -> int:
    """Most bytes of a phase's observation; what all phases of a release observe fits its evidence."""
    return MAX_EVALUATE_BYTES if phase is Phase.EVALUATE else MAX_OBSERVATION_BYTES


def max_detail_bytes(phase: Phase) -> int:
    """Most bytes of a phase's spelled detail. What is longer belongs into a document of its own."""
    return max_observation_bytes(phase) - _FRAME


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseObservation:
    """One phase that has ended.

    Attributes:
        operation_id: the release's.
        request_sha256: digest of the release's request.
        phase: which one.
        native_identity: which process did it, as its launcher names it; 1..=256 bytes of printable text.
        completed_unix_ms: when it ended, by the host's clock; at least 1.
        succeeded: the phase did what it is for.
        detail: what it found, at most :func:`max_detail_bytes` when spelled; not to be changed.

    Raises:
        DocumentError: a value that no observation has.
    """

    operation_id: str
    request_sha256: str
    phase: Phase
    native_identity: str
    completed_unix_ms: int
    succeeded: bool
    detail: Mapping[str, Any]

    def __post_init__(self) -> None:
        check_operation_id(self.operation_id)
        digest_text(self.request_sha256, "request_sha256")
        text(self.native_identity, "native_identity", MAX_IDENTITY_BYTES)
        integer(self.completed_unix_ms, "completed_unix_ms", 1, U64_MAX)
        flag(self.succeeded, "succeeded")
        detail: dict[str, Any] = sorted_members(dict(self.detail))
        object.__setattr__(self, "detail", MappingProxyType(detail))
        with reading("detail"):
            size = len(spell(detail))
        if size > (limit := max_detail_bytes(self.phase)):
            raise DocumentError(
                f"detail of {self.phase} takes {size} bytes; the limit is {limit}:"
                " store what is long and name it by its digest"
            )

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        return {
            "operation_id": self.operation_id,
            "request_sha256": self.request_sha256,
            "phase": self.phase.value,
            "native_identity": self.native_identity,
            "completed_unix_ms": self.completed_unix_ms,
            "succeeded": self.succeeded,
            "detail": dict(self.detail),
        }

    @classmethod
    def of_members(cls, value: object) -> PhaseObservation:
        """The value of :meth:`members`.

        Raises:
            DocumentError: anything else.
        """
        document = dict(exact(value, field_names(cls), "observation"))
        document["phase"] = Phase(choice(document["phase"], "phase", [phase.value for phase in Phase]))
        sorted_names(document["detail"], "detail")
        return cls(**document)

    def encode(self) -> bytes:
        """The observation's file; at most :func:`max_observation_bytes`."""
        return spell(self.members())

    @property
    def sha256(self) -> str:
        """Digest of the file."""
        return digest(self.encode())

    def require(self, *, operation_id: str, request_sha256: str, phase: Phase) -> None:
        """Refuse an observation of something else.

        Raises:
            DocumentError: another operation, request or phase.
        """
        for member, expected in (
            ("operation_id", operation_id),
            ("request_sha256", request_sha256),
            ("phase", phase),
        ):
            found = getattr(self, member)
            if found != expected:
                raise DocumentError(
                    f"observation of {phase}: {member} is {found}, not {expected}; it is of another release"
                )


def parse_observation(data: bytes) -> PhaseObservation:
    """Read an observation's file.

    Raises:
        DocumentError: anything but the one spelling of an observation.
    """
    document = decode_spelled(data, what="observation", max_bytes=MAX_EVALUATE_BYTES)
    with reading("observation"):
        return PhaseObservation.of_members(document)
