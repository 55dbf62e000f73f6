"""Verifying the bundle of a release with nothing but the public key of who signed it.

Two questions are answered: whether the bundle is what was signed, and whether what was signed can have
happened. The second does not take the signer's word for what follows from something else in the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.attestation import parse_attestation
from ticket_agent.peft.release.bundle_file import (
    ENVELOPE,
    EVIDENCE,
    MANIFEST,
    REPORTS,
    REQUEST,
    STATEMENT,
    attestation_name,
    manifest_of,
    observation_names,
    read_bundle,
)
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.consistency import (
    require_candidate,
    require_comparison,
    require_order,
    require_outcome,
)
from ticket_agent.peft.release.dsse import IN_TOTO, parse_envelope, verify
from ticket_agent.peft.release.evaluation import parse_row_losses
from ticket_agent.peft.release.evidence import parse_evidence
from ticket_agent.peft.release.evidence_errors import (
    BundleFileError,
    CryptographyMissingError,
    InconsistentError,
)
from ticket_agent.peft.release.observation import parse_observation
from ticket_agent.peft.release.request import parse_request
from ticket_agent.peft.release.statement import Statement, parse_claims

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ticket_agent.peft.release.bundle_file import BundleFiles
    from ticket_agent.peft.release.evaluation import RowLosses
    from ticket_agent.peft.release.evidence import NativeEvidence
    from ticket_agent.peft.release.keys import PublicKey
    from ticket_agent.peft.release.paired import PairedLosses
    from ticket_agent.peft.release.release_record import ReleaseRecord
    from ticket_agent.peft.release.request import ReleaseRequest
    from ticket_agent.peft.release.statement import Claims

__all__ = ["BundleVerification", "Verdict", "difference"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One check.

    Attributes:
        check: what was looked at, in a few words.
        ok: True or False; None when it could not be looked at, because an earlier check failed.
        reason: what is wrong, or what there is to say when nothing is.
    """

    check: str
    ok: bool | None
    reason: str = ""


class _UnreachedError(Exception):
    """What a check needs was not there."""


class BundleVerification:
    """One pass over a bundle: iterate over :meth:`verdicts`, then ask what was found.

    Attributes:
        data: the bundle.
        key: the public key that must have signed it.
        request: what was asked for, when it could be read.
        evidence: how it went, when it could be read.
        claims: what the statement alone tells, when it could be read.
        losses: the losses side by side, when there are any and they are in order.
    """

    def __init__(self, data: bytes, key: PublicKey) -> None:
        self.data: Final = data
        self.key: Final = key
        self.request: ReleaseRequest | None = None
        self.evidence: NativeEvidence | None = None
        self.claims: Claims | None = None
        self.losses: PairedLosses | None = None
        self._files: BundleFiles | None = None
        self._statement: bytes | None = None
        self._reports: tuple[RowLosses, RowLosses] | None = None
        self._reports_read = False

    def verdicts(self) -> Iterator[Verdict]:
        """Every check, in order; the bundle is good when all are ``True``.

        Raises:
            CryptographyMissingError: nothing here can verify.
        """
        steps: tuple[tuple[str, Callable[[], str]], ...] = (
            ("archive", self._archive),
            ("manifest", self._manifest),
            ("signature", self._signature),
            ("statement", self._claims),
            ("request", self._request),
            ("native evidence", self._evidence),
            ("observations", self._observations),
            ("attestations", self._attestations),
            ("evaluation reports", self._read_reports),
            ("order of phases", self._order),
            ("comparison", self._comparison),
            ("candidate", self._candidate),
            ("outcome", self._outcome),
            ("statement made again", self._again),
        )
        for check, step in steps:
            yield _verdict(check, step)

    # -- is it what was signed? ---------------------------------------------------------------------------

    def _archive(self) -> str:
        self._files = read_bundle(self.data)
        return f"{len(self._files.files)} files"

    def _manifest(self) -> str:
        files = _need(self._files)
        if files.take(MANIFEST) != manifest_of(files.files):
            raise BundleFileError("a file differs from the size or digest that the manifest has for it")
        return f"sha256 {digest(files.take(MANIFEST))}"

    def _signature(self) -> str:
        envelope = parse_envelope(_need(self._files).take(ENVELOPE))
        self._statement = verify(envelope, payload_type=IN_TOTO, key=self.key)
        return f"key {self.key.keyid}"

    def _claims(self) -> str:
        statement = _need(self._statement)
        if _need(self._files).take(STATEMENT) != statement:
            raise BundleFileError(f"{STATEMENT} is not the statement that was signed")
        self.claims = parse_claims(statement)
        return f"sha256 {digest(statement)}"

    def _request(self) -> str:
        data = _need(self._files).take(REQUEST)
        _require_digest(REQUEST, data, _need(self.claims).request_sha256)
        self.request = parse_request(data)
        return f"sha256 {digest(data)}"

    def _evidence(self) -> str:
        data = _need(self._files).take(EVIDENCE)
        _require_digest(EVIDENCE, data, _need(self.claims).native_evidence_sha256)
        self.evidence = parse_evidence(data)
        return f"sha256 {digest(data)}"

    def _observations(self) -> str:
        files, record = _need(self._files), self._record()
        names = observation_names(record)
        for told in record.observations():
            name = names[told.phase]
            if parse_observation(files.take(name)) != told:
                raise BundleFileError(f"{name} is not what the native evidence has for {told.phase}")
        return f"{len(names)} of {len(record.phases)} phases"

    def _attestations(self) -> str:
        files, claims = _need(self._files), _need(self.claims)
        for index, attested in enumerate(claims.attested):
            attested.require(parse_attestation(files.take(attestation_name(index))), claims.inputs)
        return ", ".join(attested.key_id for attested in claims.attested) or "none: nothing was validated"

    def _read_reports(self) -> str:
        files = _need(self._files)
        present = [name for name in REPORTS if name in files.files]
        if present:
            baseline, candidate = (parse_row_losses(files.take(name)) for name in REPORTS)
            self._reports = baseline, candidate
        self._reports_read = True
        return f"{len(baseline.rows)} rows" if present else "none: nothing was evaluated"

    # -- can it have happened? ----------------------------------------------------------------------------

    def _order(self) -> str:
        record = self._record()
        require_order(_need(self.request), record)
        return ", ".join(entry.phase for entry in record.phases)

    def _comparison(self) -> str:
        if not self._reports_read:
            raise _UnreachedError
        record = self._record()
        self.losses = require_comparison(_need(self.request), record, self._reports)
        if self.losses is None:
            return "none: nothing was evaluated"
        decision = "not accepted" if record.comparison is None else "accepted"
        return f"candidate {decision}, {difference(self.losses)}"

    def _candidate(self) -> str:
        record = self._record()
        require_candidate(record)
        return "none" if record.comparison is None else record.comparison.candidate_sha256

    def _outcome(self) -> str:
        record = self._record()
        require_outcome(_need(self.request), record)
        return record.state if record.blocker is None else f"{record.state}: {record.blocker}"

    def _again(self) -> str:
        """Make the statement again: every byte of it then is what the other documents say."""
        claims, request, evidence = _need(self.claims), _need(self.request), _need(self.evidence)
        if not self._reports_read:
            raise _UnreachedError
        statement = Statement(
            request=request,
            evidence=evidence,
            reports=self._reports,
            inputs=claims.inputs,
            attested=claims.attested,
            launcher=claims.launcher,
        )
        if statement.encode() != _need(self._statement):
            raise InconsistentError("the statement says something else than what it is made of")
        names = {MANIFEST, ENVELOPE, STATEMENT, REQUEST, EVIDENCE}
        names |= set(observation_names(evidence.record).values())
        names |= {attestation_name(index) for index in range(len(claims.attested))}
        names |= set(REPORTS if self._reports else ())
        _need(self._files).require_only(names)
        return "the same bytes; only what it tells of inputs and launcher is the signer's word"

    def _record(self) -> ReleaseRecord:
        return _need(self.evidence).record


def difference(losses: PairedLosses) -> str:
    """The difference of the losses in words."""
    error = losses.standard_error
    sure = "" if error is None else f", standard error {error:.6f}"
    return f"loss {losses.mean_difference:+.6f}{sure}, {len(losses.rows)} rows"


def _verdict(check: str, step: Callable[[], str]) -> Verdict:
    try:
        return Verdict(check=check, ok=True, reason=step())
    except CryptographyMissingError:
        raise
    except PeftError as error:
        return Verdict(check=check, ok=False, reason=str(error))
    except _UnreachedError:
        return Verdict(check=check, ok=None, reason="not looked at: an earlier check failed")


def _need(value: T | None) -> T:
    if value is None:
        raise _UnreachedError
    return value


def _require_digest(name: str, data: bytes, sha256: str) -> None:
    if (found := digest(data)) != sha256:
        raise BundleFileError(f"{name} has the digest {found}; the statement names {sha256}")
