"""What is left of a release that has ended: native evidence, the signed bundle, the model card.

Everything follows from files that are there when it ends, the time too, so it may be done again after a crash
at any point, and gives the same bytes.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.errors import AbsentError, PeftError, PeftIoError
from ticket_agent.peft.release.attestation import trusted_keys, verify_attestations
from ticket_agent.peft.release.bundle import parse_bundle
from ticket_agent.peft.release.bundle_file import build_bundle
from ticket_agent.peft.release.claims import input_claim
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.evidence import NativeEvidence, reference
from ticket_agent.peft.release.evidence_limits import (
    MAX_ATTESTATION_BYTES,
    MAX_BUNDLE_BYTES,
)
from ticket_agent.peft.release.evidence_store import EvidenceStore
from ticket_agent.peft.release.inputs import parse_input
from ticket_agent.peft.release.keys import read_private_key
from ticket_agent.peft.release.layout import BUNDLE_FILE, CARD_FILE, RECOVERY_PREFIX
from ticket_agent.peft.release.model_card import MAX_CARD_BYTES, CardFacts, render_card
from ticket_agent.peft.release.paired import pair
from ticket_agent.peft.release.phases import TERMINAL, Phase
from ticket_agent.peft.release.profile import parse_profile
from ticket_agent.peft.release.request import MAX_REQUEST_BYTES, parse_request
from ticket_agent.peft.release.row_reports import read_reports
from ticket_agent.peft.release.statement import AttestedBy, Statement

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.release.attestation import Attestation, SourceClaim
    from ticket_agent.peft.release.evaluation import RowLosses
    from ticket_agent.peft.release.layout import Begun, OperationFiles
    from ticket_agent.peft.release.paired import PairedLosses
    from ticket_agent.peft.release.private_root import PrivateRoot
    from ticket_agent.peft.release.release_config import ReleaseConfig
    from ticket_agent.peft.release.release_record import ReleaseRecord
    from ticket_agent.peft.release.request import ReleaseRequest

__all__ = ["MAX_MESSAGE_BYTES", "Conclusion", "conclude", "result_message"]

MAX_MESSAGE_BYTES: Final = 192
"""Of a ticket's message."""
_LEAST_REASON: Final = 12
"""A reason that is cut to less says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What there is of a release now.

    Attributes:
        evidence_sha256: its native evidence; None when nothing was observed.
        bundle: the signed bundle; None without a key, without evidence, or because of ``problem``.
        problem: why nothing was signed although a key is configured; doing it again changes nothing until
            somebody has removed the cause.
    """

    evidence_sha256: str | None
    bundle: Path | None
    problem: str | None = None


def conclude(
    root: PrivateRoot, config: ReleaseConfig, files: OperationFiles, begun: Begun, record: ReleaseRecord
) -> Conclusion:
    """Keep what a release has come to. The root's lock must be held; safe to repeat.

    Args:
        root: the private root.
        config: where evidence is kept and who signs.
        files: of the release, or of the attempt to recover it.
        begun: what was settled when that began.
        record: how it ended.

    Raises:
        DocumentError: the release has not ended.
        EvidenceStoreError: the evidence cannot be kept: the directory is full, or a file in it is damaged.
        PeftIoError: the system failed; repeat it later.
        PeftError: the operation's directory or the evidence directory cannot be used.
    """
    if record.state not in TERMINAL:
        raise DocumentError(f"release {record.operation_id} is {record.state}; it has not ended")
    evidence = None
    if any(True for _ in record.observations()):
        evidence = NativeEvidence(provider_graph_sha256=begun.provider_graph_sha256, record=record)
        with EvidenceStore.open(config.evidence, owner_uid=os.geteuid(), create=True) as store:
            store.store(evidence.encode())
    with ExitStack() as opened:
        place = opened.enter_context(root.operation(files.operation_id))
        sources = place
        if files.recovery is not None:
            place = opened.enter_context(place.open_dir(f"{RECOVERY_PREFIX}{files.recovery}"))
        gathered = _Gathered(root, sources, record)
        problem, bundle = None, None
        if config.signing_key is not None and evidence is not None:
            try:
                bundle = _signed(gathered, evidence, begun, config.signing_key)
            except PeftIoError:
                raise
            except PeftError as error:
                problem = str(error)
            else:
                _keep(place, BUNDLE_FILE, bundle, MAX_BUNDLE_BYTES)
        card = render_card(gathered.facts(begun, evidence, problem, signed=bundle is not None))
        _keep(place, CARD_FILE, card.encode("utf-8"), MAX_CARD_BYTES)
    return Conclusion(
        evidence_sha256=None if evidence is None else evidence.sha256,
        bundle=None if bundle is None else files.path / BUNDLE_FILE,
        problem=problem,
    )


def result_message(record: ReleaseRecord, evidence_sha256: str | None) -> str:
    """The message of the ticket's result: at most ``MAX_MESSAGE_BYTES`` of printable ASCII.

    It has the state, the name of the native evidence where there is any, and as much of the reason as fits.
    """
    told = record.state.value
    if evidence_sha256 is not None:
        told = f"{told} {reference(evidence_sha256)}"
    room = MAX_MESSAGE_BYTES - len(told) - 1
    if record.blocker is None or room < _LEAST_REASON:
        return told
    reason = "".join(char if char.isascii() and char.isprintable() else "?" for char in record.blocker)
    return f"{told} {reason if len(reason) <= room else reason[: room - 3] + '...'}"


class _Gathered:
    """The documents of one release, as its request names them."""

    def __init__(self, root: PrivateRoot, operation: Directory, record: ReleaseRecord) -> None:
        self._root: Final = root
        self._operation: Final = operation
        self._record: Final = record
        self._objects: Final = root.objects

    @property
    def request(self) -> ReleaseRequest:
        return parse_request(self._objects.load(self._record.request_sha256, max_bytes=MAX_REQUEST_BYTES))

    def inputs(self) -> tuple[SourceClaim, tuple[Attestation, ...], tuple[AttestedBy, ...]] | None:
        """What was vouched for and by whom; None when the inputs were not validated."""
        validated = self._record.record_of(Phase.VALIDATE)
        if validated is None or validated.result is None or not validated.result.succeeded:
            return None
        request = self.request
        profile = parse_profile(self._objects.load(request.profile_sha256))
        value = parse_input(
            self._objects.load(request.input_sha256), entry=request.entry, schema=profile.schema
        )
        claim, keys = input_claim(value, profile), trusted_keys(profile)
        records = [self._objects.load(name, max_bytes=MAX_ATTESTATION_BYTES) for name in value.attestations]
        found = verify_attestations(records, keys=keys, expected=claim)
        return claim, found, tuple(AttestedBy.of(each, keys[each.key_id]) for each in found)

    def reports(self) -> tuple[RowLosses, RowLosses] | None:
        return read_reports(self._operation, self._record)

    def facts(
        self, begun: Begun, evidence: NativeEvidence | None, problem: str | None, *, signed: bool
    ) -> CardFacts:
        """For the card, which tells what there is: a document that is gone or damaged is left out."""
        request = profile = value = base = losses = None
        try:
            request = self.request
            profile = parse_profile(self._objects.load(request.profile_sha256))
            base = parse_bundle(self._objects.load(profile.base))
            value = parse_input(
                self._objects.load(request.input_sha256), entry=request.entry, schema=profile.schema
            )
        except PeftIoError:
            raise
        except PeftError:
            pass
        try:
            losses = _paired(self.reports())
        except PeftIoError:
            raise
        except PeftError:
            pass
        return CardFacts(
            record=self._record,
            begun=begun,
            request=request,
            profile=profile,
            input=value,
            base=base,
            losses=losses,
            evidence_sha256=None if evidence is None else evidence.sha256,
            signed=signed,
            problem=problem,
        )


def _paired(reports: tuple[RowLosses, RowLosses] | None) -> PairedLosses | None:
    return None if reports is None else pair(*reports)


def _signed(gathered: _Gathered, evidence: NativeEvidence, begun: Begun, key: Path) -> bytes:
    inputs = gathered.inputs()
    claim, attestations, attested = (None, (), ()) if inputs is None else inputs
    statement = Statement(
        request=gathered.request,
        evidence=evidence,
        reports=gathered.reports(),
        inputs=claim,
        attested=attested,
        launcher=begun.launcher,
    )
    return build_bundle(statement, attestations, read_private_key(key))


def _keep(place: Directory, name: str, data: bytes, max_bytes: int) -> None:
    """Durably let a file have this content; one that has it already is only made durable."""
    try:
        same = place.read_file(name, max_bytes=max_bytes) == data
    except AbsentError:
        same = False
    if same:
        place.sync()
    else:
        place.write_file(name, data)
