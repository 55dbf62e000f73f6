"""Native evidence: the record of an ended release, kept under the digest of its bytes.

The document is made of what was observed alone, its time too, so that the same release gives the same bytes
however often it is told.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.errors import AbsentError, PeftError
from ticket_agent.peft.names import is_partial
from ticket_agent.peft.release.canonical import digest, require_spelling
from ticket_agent.peft.release.document_error import DocumentError, reading
from ticket_agent.peft.release.evidence_errors import EvidenceStoreError
from ticket_agent.peft.release.evidence_limits import MAX_EVIDENCE_BYTES, MAX_EVIDENCE_OBJECTS
from ticket_agent.peft.release.phases import TERMINAL
from ticket_agent.peft.release.release_record import ReleaseRecord
from ticket_agent.peft.release.rules import choice, digest_text, exact
from ticket_agent.protocol.json_strict import dumps, parse_object

if TYPE_CHECKING:
    from ticket_agent.peft.directory import Directory

__all__ = ["ACTION", "EvidenceStore", "NativeEvidence", "parse_evidence", "reference"]

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
_SUFFIX: Final = ".json"
_NAME: Final = re.compile(r"[0-9a-f]{64}\.json")


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


class EvidenceStore:
    """A private directory with one file per document, named ``<sha256>.json``.

    Storing the same again changes nothing. A file that does not hold what its name says is never replaced:
    somebody has to look at it.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory: Final = directory

    def store(self, data: bytes) -> str:
        """Durably keep a document; returns its digest.

        Raises:
            EvidenceStoreError: it has 0 or more than ``MAX_EVIDENCE_BYTES`` bytes, the directory is full, or
                the file with this digest is damaged.
            PeftError: the directory cannot be used.
        """
        if not 1 <= len(data) <= MAX_EVIDENCE_BYTES:
            raise EvidenceStoreError(
                f"evidence has 1..={MAX_EVIDENCE_BYTES} bytes; this document has {len(data)}"
            )
        sha256 = digest(data)
        if self._present(sha256):
            # The process that wrote it may have died before the name was durable.
            self._directory.sync()
            return sha256
        stored = sum(_NAME.fullmatch(name) is not None for name in self._directory.names())
        if stored >= MAX_EVIDENCE_OBJECTS:
            raise EvidenceStoreError(
                f"{self._directory.label} holds {stored} documents, which is the limit; archive old ones"
            )
        self._directory.write_file(sha256 + _SUFFIX, data)
        return sha256

    def load(self, sha256: str) -> bytes:
        """Return the document with this digest.

        Raises:
            AbsentError: there is none.
            EvidenceStoreError: the file is damaged.
            PeftError: it cannot be read.
        """
        name = digest_text(sha256, "evidence") + _SUFFIX
        try:
            data = self._directory.read_file(name, max_bytes=MAX_EVIDENCE_BYTES)
        except AbsentError:
            raise
        except PeftError as error:
            raise EvidenceStoreError(f"{error}; it is left as it is, look who changed it") from error
        if digest(data) != sha256:
            raise EvidenceStoreError(
                f"{self._directory.path(name)} does not hold what its name says; it is left as it is,"
                " look who changed it"
            )
        return data

    def digests(self) -> list[str]:
        """Digests of all documents, sorted; nothing is read."""
        names = self._directory.names()
        return [name.removesuffix(_SUFFIX) for name in names if _NAME.fullmatch(name)]

    def foreign(self) -> list[str]:
        """Names that do not belong here; what an interrupted write left is not among them."""
        return [
            name for name in self._directory.names() if not _NAME.fullmatch(name) and not is_partial(name)
        ]

    def _present(self, sha256: str) -> bool:
        try:
            self.load(sha256)
        except AbsentError:
            return False
        return True
