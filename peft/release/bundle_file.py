"""The bundle of a release: one file with the signed statement and every document that it follows from.

It is an uncompressed archive; the same release signed by the same key always gives the same bytes::

    peft-release/
      manifest.json               size and digest of every other file
      envelope.json               the statement, signed
      statement.json              the statement alone, to be read
      request.json                what was asked for
      evidence.json               the native evidence: how it went
      observations/<n>-<phase>.json
      attestations/<n>.json       who vouches for the inputs
      reports/baseline.json       losses of the rows
      reports/candidate.json

Everything but envelope, request, evidence, attestations and reports repeats what stands in these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.journal.same_tar import ArchiveError, read_files, write_files
from ticket_agent.peft.names import shown
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.evidence_errors import BundleFileError
from ticket_agent.peft.release.evidence_limits import MAX_BUNDLE_BYTES, MAX_PHASES
from ticket_agent.peft.release.profile import MAX_ATTESTATIONS
from ticket_agent.peft.release.request import encode_request
from ticket_agent.peft.release.spelled import spell
from ticket_agent.peft.release.statement import sign_statement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.peft.release.attestation import Attestation
    from ticket_agent.peft.release.keys import PrivateKey
    from ticket_agent.peft.release.phases import Phase
    from ticket_agent.peft.release.release_record import ReleaseRecord
    from ticket_agent.peft.release.statement import Statement

__all__ = [
    "ENVELOPE",
    "EVIDENCE",
    "MANIFEST",
    "MANIFEST_SCHEMA",
    "REPORTS",
    "REQUEST",
    "STATEMENT",
    "BundleFiles",
    "attestation_name",
    "build_bundle",
    "manifest_of",
    "observation_names",
    "read_bundle",
]

TOP: Final = "peft-release"
MANIFEST: Final = "manifest.json"
ENVELOPE: Final = "envelope.json"
STATEMENT: Final = "statement.json"
REQUEST: Final = "request.json"
EVIDENCE: Final = "evidence.json"
REPORTS: Final = ("reports/baseline.json", "reports/candidate.json")
MANIFEST_SCHEMA: Final = "ticket-agent-release-bundle/v1"

_MAX_FILES: Final = 5 + len(REPORTS) + MAX_PHASES + MAX_ATTESTATIONS


@dataclass(frozen=True, slots=True)
class BundleFiles:
    """The files of a bundle by name, as they came; nothing about them is verified.

    Attributes:
        files: not to be changed.
    """

    files: Mapping[str, bytes]

    def take(self, name: str) -> bytes:
        """Return a file.

        Raises:
            BundleFileError: the bundle has none of that name.
        """
        if name not in self.files:
            raise BundleFileError(f"the bundle has no {name}")
        return self.files[name]

    def require_only(self, names: set[str]) -> None:
        """Refuse files that do not belong to the release.

        Raises:
            BundleFileError: there is one.
        """
        for name in sorted(self.files.keys() - names):
            raise BundleFileError(f"{shown(name)} does not belong to this release")


def attestation_name(index: int) -> str:
    """Name of an attestation in the bundle, counted from 0."""
    return f"attestations/{index + 1}.json"


def observation_names(record: ReleaseRecord) -> dict[Phase, str]:
    """Names of the observations in the bundle; of a phase that observed nothing there is none."""
    return {
        entry.phase: f"observations/{index:02}-{entry.phase}.json"
        for index, entry in enumerate(record.phases, 1)
        if entry.result is not None
    }


def manifest_of(files: Mapping[str, bytes]) -> bytes:
    """Return the manifest of all files but itself."""
    members = [
        {"path": name, "bytes": len(data), "sha256": digest(data)}
        for name, data in sorted(files.items())
        if name != MANIFEST
    ]
    return spell({"schema": MANIFEST_SCHEMA, "members": members})


def build_bundle(statement: Statement, attestations: tuple[Attestation, ...], key: PrivateKey) -> bytes:
    """Sign a statement and put it together with all that it follows from; at most ``MAX_BUNDLE_BYTES``.

    Args:
        statement: what is signed.
        attestations: those that the statement names, in its order.
        key: whose signature it is.

    Raises:
        AttestationError: the attestations are not those of the statement.
        BundleFileError: there are more or fewer of them than the statement names.
        CryptographyMissingError: nothing here can sign.
    """
    if len(attestations) != len(statement.attested):
        raise BundleFileError(
            f"the statement names {len(statement.attested)} attestations, and {len(attestations)} are there"
        )
    envelope = sign_statement(statement, key)
    record = statement.evidence.record
    files = {
        ENVELOPE: envelope.encode(),
        STATEMENT: envelope.payload,
        REQUEST: encode_request(statement.request),
        EVIDENCE: statement.evidence.encode(),
    }
    names = observation_names(record)
    files |= {names[told.phase]: told.encode() for told in record.observations()}
    for index, (attested, attestation) in enumerate(zip(statement.attested, attestations, strict=True)):
        attested.require(attestation, statement.inputs)
        files[attestation_name(index)] = attestation.encode()
    for name, report in zip(REPORTS, statement.reports or (), strict=False):
        files[name] = report.encode()
    files[MANIFEST] = manifest_of(files)
    return write_files(TOP, files)


def read_bundle(data: bytes) -> BundleFiles:
    """Take a bundle apart.

    Raises:
        BundleFileError: it is too large, or not an archive as :func:`build_bundle` writes it.
    """
    if len(data) > MAX_BUNDLE_BYTES:
        raise BundleFileError(f"the bundle of a release has at most {MAX_BUNDLE_BYTES} bytes")
    try:
        return BundleFiles(read_files(data, TOP, max_files=_MAX_FILES))
    except ArchiveError as error:
        raise BundleFileError(str(error)) from error
