"""Native evidence: the record of an ended release as one document, named by the digest of its bytes.

The document is made of what was observed alone, its time too, so that the same release gives the same bytes
however often it is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ticket_agent.peft.release.canonical import digest, require_spelling
from ticket_agent.peft.release.document_error import DocumentError, reading
from ticket_agent.peft.release.evidence_limits import MAX_EVIDENCE_BYTES
from ticket_agent.peft.release.phases import TERMINAL
from ticket_agent.peft.release.release_record import ReleaseRecord
from ticket_agent.peft.release.rules import choice, digest_text, exact
from ticket_agent.protocol.json_strict import dumps, parse_object

__all__ = ["ACTION", "NativeEvidence", "parse_evidence", "reference"]

ACTION: Final = "peft.release"
_SCHEMA: Final = "cohesix-native-provider-evidence/v1"
_PROOF: Final = "native_provider_operation"
_MEMBERS: Final = (
    "schema",
    "proof_class",
    "authoritative",
    "worker_proof",
    "ticket_id",
    "idempotency_key",
    "action",
    "writer_epoch",
    "provider_graph_sha256",
    "observed_unix_ms",
    "observation",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeEvidence:
    """What the host says about a release. It proves what was observed here, not what the hive admitted.

    Attributes:
        provider_graph_sha256: digest of the provider's registry as it was when the ticket was admitted.
        record: how the release went; it has ended, and something was observed.

    Raises:
        DocumentError: the release has not ended, or nothing was observed.
    """

    provider_graph_sha256: str
    record: ReleaseRecord

    def __post_init__(self) -> None:
        digest_text(self.provider_graph_sha256, "provider_graph_sha256")
        if self.record.state not in TERMINAL:
            raise DocumentError(f"state is {self.record.state}: evidence is of a release that has ended")
        if next(self.record.observations(), None) is None:
            raise DocumentError("nothing was observed, so there is nothing to give evidence of")

    @property
    def observed_unix_ms(self) -> int:
        """When the last phase that was observed ended."""
        return list(self.record.observations())[-1].completed_unix_ms

    def encode(self) -> bytes:
        """The document; at most ``MAX_EVIDENCE_BYTES``, whatever was observed."""
        # A recovery has a ticket of its own, and the evidence is what answers it.
        told = self.record.recovery or self.record.authority
        values = (
            _SCHEMA,
            _PROOF,
            False,
            False,
            told.ticket_id,
            told.idempotency_key,
            ACTION,
            told.writer_epoch,
            self.provider_graph_sha256,
            self.observed_unix_ms,
            self.record.members(),
        )
        return dumps(dict(zip(_MEMBERS, values, strict=True)))

    @property
    def sha256(self) -> str:
        """Digest of the document."""
        return digest(self.encode())


def parse_evidence(data: bytes) -> NativeEvidence:
    """Read native evidence.

    Raises:
        DocumentError: anything but what :meth:`NativeEvidence.encode` writes for a release that has ended.
    """
    with reading("native evidence"):
        document: dict[str, Any] = exact(
            parse_object(data, what="the document", max_bytes=MAX_EVIDENCE_BYTES), _MEMBERS
        )
        choice(document["schema"], "schema", (_SCHEMA,))
        evidence = NativeEvidence(
            provider_graph_sha256=document["provider_graph_sha256"],
            record=ReleaseRecord.of_members(document["observation"]),
        )
        # Everything else repeats what the record says, and would differ here.
        require_spelling(data, evidence.encode())
    return evidence


def reference(sha256: str) -> str:
    """How a ticket's result names evidence, for its message."""
    return f"native_observation=sha256:{digest_text(sha256, 'evidence')}"
