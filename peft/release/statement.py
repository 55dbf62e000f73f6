"""The signed account of a release: an in-toto statement about the adapter and what is served.

A statement is made of the request, the native evidence and the evaluation's reports; little in it is told by
it alone: where the inputs come from and which guarantees the launcher gave. So a verifier who has those
documents makes it again and compares.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.attestation import SourceClaim
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.consistency import (
    deployed_after,
    evaluations_of,
    require_candidate,
    require_comparison,
    require_order,
    require_outcome,
)
from ticket_agent.peft.release.document_error import reading
from ticket_agent.peft.release.dsse import IN_TOTO, sign
from ticket_agent.peft.release.evidence_errors import AttestationError, InconsistentError
from ticket_agent.peft.release.evidence_limits import (
    MAX_GUARANTEES,
    MAX_LABEL_BYTES,
    MAX_STATEMENT_BYTES,
)
from ticket_agent.peft.release.keys import PublicKey
from ticket_agent.peft.release.phases import Phase
from ticket_agent.peft.release.profile import MAX_ATTESTATIONS
from ticket_agent.peft.release.request import encode_request
from ticket_agent.peft.release.rules import array, digest_text, exact, field_names, refuse, text
from ticket_agent.peft.release.spelled import decode_spelled, spell

if TYPE_CHECKING:
    from ticket_agent.peft.release.attestation import Attestation
    from ticket_agent.peft.release.dsse import Envelope
    from ticket_agent.peft.release.evaluation import RowLosses
    from ticket_agent.peft.release.evidence import NativeEvidence
    from ticket_agent.peft.release.keys import PrivateKey
    from ticket_agent.peft.release.request import ReleaseRequest

__all__ = [
    "PREDICATE_TYPE",
    "STATEMENT_TYPE",
    "AttestedBy",
    "LauncherFacts",
    "Statement",
    "parse_claims",
    "sign_statement",
]

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "urn:ticket-agent:peft-release:v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherFacts:
    """How the phases were confined.

    Attributes:
        name: the launcher; 1..=128 printable ASCII characters.
        guarantees: what it gives, in words; each at most 128 characters.
        missing: what it does not give. Together at most 32.

    Raises:
        DocumentError: a value that no launcher has.
    """

    name: str
    guarantees: tuple[str, ...]
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        text(self.name, "name", MAX_LABEL_BYTES)
        both = [*self.guarantees, *self.missing]
        array(both, "guarantees and missing", 0, MAX_GUARANTEES)
        for guarantee in both:
            text(guarantee, "guarantees and missing", MAX_LABEL_BYTES)
        if len(set(both)) != len(both):
            refuse("guarantees and missing", "different ones, each told once")

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        return {
            "name": self.name,
            "guarantees": list(self.guarantees),
            "missing": list(self.missing),
        }

    @classmethod
    def of_members(cls, value: object) -> LauncherFacts:
        """The value of :meth:`members`.

        Raises:
            DocumentError: anything else.
        """
        with reading("launcher"):
            document = exact(value, field_names(cls))
            return cls(
                name=document["name"],
                guarantees=tuple(array(document["guarantees"], "guarantees", 0, MAX_GUARANTEES)),
                missing=tuple(array(document["missing"], "missing", 0, MAX_GUARANTEES)),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestedBy:
    """An attestation of the inputs that the host verified.

    Attributes:
        key_id: what the profile calls the key.
        public_key: the key, raw, in 64 hexadecimal digits.
        sha256: digest of the attestation.

    Raises:
        DocumentError: a value that none has.
    """

    key_id: str
    public_key: str
    sha256: str

    def __post_init__(self) -> None:
        text(self.key_id, "key_id", MAX_LABEL_BYTES)
        digest_text(self.public_key, "public_key")
        digest_text(self.sha256, "sha256")

    @classmethod
    def of(cls, attestation: Attestation, key: PublicKey) -> AttestedBy:
        """Name an attestation that ``key`` made."""
        return cls(key_id=attestation.key_id, public_key=key.raw.hex(), sha256=attestation.sha256)

    def require(self, attestation: Attestation, claim: SourceClaim | None) -> None:
        """Return if ``attestation`` is the named one, and vouches for ``claim``.

        Raises:
            AttestationError: it is another one, of another claim, or not signed by the named key.
            KeyFileError: the named key is none.
            CryptographyMissingError: nothing here can tell.
        """
        if (attestation.sha256, attestation.key_id) != (self.sha256, self.key_id):
            raise AttestationError(
                f"attestation by {self.key_id}: it is not the one that the statement names"
            )
        if attestation.claim != claim:
            raise AttestationError(f"attestation by {self.key_id}: it is about other inputs")
        attestation.verify(PublicKey(bytes.fromhex(self.public_key)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What is signed about a release.

    Attributes:
        request: what was asked for.
        evidence: how it went.
        reports: losses of the rows under baseline and candidate; None when the evaluation did not succeed.
        inputs: where the inputs come from, as it was attested; None when that was not verified.
        attested: who vouched for the inputs; 1..=4 with ``inputs``, none without.
        launcher: how the phases were confined.

    Raises:
        DocumentError: a value that no statement has.
        InconsistentError: the release cannot have gone like this.
        ComparisonRefusedError: reports and evaluations contradict each other.
    """

    request: ReleaseRequest
    evidence: NativeEvidence
    reports: tuple[RowLosses, RowLosses] | None
    inputs: SourceClaim | None
    attested: tuple[AttestedBy, ...]
    launcher: LauncherFacts

    def __post_init__(self) -> None:
        record = self.evidence.record
        if record.request_sha256 != digest(encode_request(self.request)):
            raise InconsistentError("the evidence is of another request")
        if record.operation_id != self.request.operation_id:
            raise InconsistentError("the evidence is of another operation")
        require_order(self.request, record)
        require_comparison(self.request, record, self.reports)
        require_candidate(record)
        require_outcome(self.request, record)
        _require_inputs(self)

    def members(self) -> dict[str, Any]:
        """The statement as an object of JSON."""
        record, request = self.evidence.record, self.request
        deployed = deployed_after(request, record)
        predicate = {
            "operation_id": request.operation_id,
            "model_id": request.model_id,
            "entry": request.entry.value,
            "ticket": asdict(record.authority),
            "recovery_ticket": None if record.recovery is None else asdict(record.recovery),
            "request_sha256": record.request_sha256,
            "profile_sha256": request.profile_sha256,
            "input_sha256": request.input_sha256,
            "inputs": None if self.inputs is None else self.inputs.members(),
            "attestations": [asdict(attested) for attested in self.attested],
            "launcher": self.launcher.members(),
            "phases": [_phase(self, index) for index in range(len(record.phases))],
            "metrics": self._metrics(),
            "comparison": None if record.comparison is None else record.comparison.members(),
            "baseline": request.baseline.members(),
            "deployed": None if deployed is None else deployed.members(),
            "native_evidence_sha256": self.evidence.sha256,
            "observed_unix_ms": self.evidence.observed_unix_ms,
            "outcome": {"state": record.state.value, "blocker": record.blocker},
        }
        return {
            "_type": STATEMENT_TYPE,
            "subject": self._subjects(),
            "predicateType": PREDICATE_TYPE,
            "predicate": predicate,
        }

    def encode(self) -> bytes:
        """The one spelling of the statement; at most ``MAX_STATEMENT_BYTES``."""
        return spell(self.members())

    def _metrics(self) -> dict[str, Any] | None:
        found = evaluations_of(self.evidence.record)
        paired = require_comparison(self.request, self.evidence.record, self.reports)
        if found is None or paired is None:
            return None
        baseline, candidate = found
        return {
            "base_sha256": candidate.context.base_sha256,
            "candidate_sha256": candidate.artifact_sha256,
            "baseline": dict(baseline.metrics),
            "candidate": dict(candidate.metrics),
            "losses": paired.members(),
        }

    def _subjects(self) -> list[dict[str, Any]]:
        """What the statement is about; the request always, so that a release with no adapter has one too."""
        record = self.evidence.record
        subjects = {"request": record.request_sha256}
        if found := evaluations_of(record):
            subjects["adapter"] = found[1].artifact_sha256
        if deployed := deployed_after(self.request, record):
            subjects["served-artifact"] = deployed.served_artifact_sha256
        return [{"name": name, "digest": {"sha256": subjects[name]}} for name in sorted(subjects)]


def _require_inputs(statement: Statement) -> None:
    """Refuse inputs that nobody vouches for, or that are not those of the evaluation.

    Raises:
        DocumentError: too few or too many attestations.
        InconsistentError: the inputs are known although they were not validated, or the other way round; or
            the evaluation was of another base model or tokenizer.
    """
    inputs, record = statement.inputs, statement.evidence.record
    low, high = (0, 0) if inputs is None else (1, MAX_ATTESTATIONS)
    array(list(statement.attested), "attestations", low, high)
    validated = record.record_of(Phase.VALIDATE)
    valid = validated is not None and validated.result is not None and validated.result.succeeded
    if valid is not (inputs is not None):
        raise InconsistentError("the inputs are known exactly when they were validated")
    found = evaluations_of(record)
    if found is None or inputs is None:
        return
    for name in ("base_sha256", "tokenizer_sha256"):
        if getattr(inputs, name) != getattr(found[1].context, name):
            raise InconsistentError(f"the evaluation was made with another {name} than the inputs have")


def sign_statement(statement: Statement, key: PrivateKey) -> Envelope:
    """Sign a statement.

    Raises:
        CryptographyMissingError: nothing here can sign.
    """
    return sign(statement.encode(), payload_type=IN_TOTO, key=key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a statement alone tells, and the digests of the documents that tell the rest."""

    request_sha256: str
    native_evidence_sha256: str
    inputs: SourceClaim | None
    attested: tuple[AttestedBy, ...]
    launcher: LauncherFacts


def parse_claims(data: bytes) -> Claims:
    """Read what only a statement tells.

    The caller makes the statement again from this and the other documents; that holds the rest of the bytes.

    Raises:
        DocumentError: no statement of this kind.
    """
    document = decode_spelled(data, what="statement", max_bytes=MAX_STATEMENT_BYTES)
    with reading("statement"):
        exact(document, ("_type", "subject", "predicateType", "predicate"))
        if document["_type"] != STATEMENT_TYPE or document["predicateType"] != PREDICATE_TYPE:
            refuse("_type and predicateType", f"{STATEMENT_TYPE} and {PREDICATE_TYPE}")
        predicate = exact(document["predicate"], _PREDICATE, "predicate")
        inputs = predicate["inputs"]
        attested = array(predicate["attestations"], "attestations", 0, MAX_ATTESTATIONS)
        return Claims(
            request_sha256=digest_text(predicate["request_sha256"], "request_sha256"),
            native_evidence_sha256=digest_text(predicate["native_evidence_sha256"], "native_evidence_sha256"),
            inputs=None if inputs is None else SourceClaim.of_members(inputs),
            attested=tuple(
                AttestedBy(**exact(item, field_names(AttestedBy), "attestations")) for item in attested
            ),
            launcher=LauncherFacts.of_members(predicate["launcher"]),
        )


_PREDICATE: Final = (
    "operation_id",
    "model_id",
    "entry",
    "ticket",
    "recovery_ticket",
    "request_sha256",
    "profile_sha256",
    "input_sha256",
    "inputs",
    "attestations",
    "launcher",
    "phases",
    "metrics",
    "comparison",
    "baseline",
    "deployed",
    "native_evidence_sha256",
    "observed_unix_ms",
    "outcome",
)


def _phase(statement: Statement, index: int) -> dict[str, Any]:
    entry = statement.evidence.record.phases[index]
    told = entry.result
    return {
        "phase": entry.phase.value,
        "observation_sha256": None if told is None else told.sha256,
        "native_identity": None if told is None else told.native_identity,
        "completed_unix_ms": None if told is None else told.completed_unix_ms,
        "succeeded": None if told is None else told.succeeded,
    }
