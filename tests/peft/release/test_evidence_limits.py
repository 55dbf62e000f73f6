"""The bounds fit each other: the largest of everything can be observed, kept, signed, bundled, read back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from key_files import key
from release_scene import (
    ATTESTER,
    CANDIDATE,
    CLAIM,
    CONTEXT,
    GRAPH,
    Scene,
    attestation,
    successor,
)

from ticket_agent.peft.release.attestation import attest
from ticket_agent.peft.release.bundle_file import build_bundle
from ticket_agent.peft.release.bundle_verify import BundleVerification
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.dsse import parse_envelope
from ticket_agent.peft.release.evaluation import Evaluation, RowLosses
from ticket_agent.peft.release.evidence import NativeEvidence, parse_evidence
from ticket_agent.peft.release.evidence_limits import (
    MAX_ATTESTATION_BYTES,
    MAX_BUNDLE_BYTES,
    MAX_ENVELOPE_BYTES,
    MAX_EVALUATION_BYTES,
    MAX_EVIDENCE_BYTES,
    MAX_GUARANTEES,
    MAX_IDENTITY_BYTES,
    MAX_METRICS,
    MAX_PHASES,
    MAX_REPORT_BYTES,
    MAX_ROWS,
    MAX_STATEMENT_BYTES,
)
from ticket_agent.peft.release.observation import (
    PhaseObservation,
    max_detail_bytes,
    max_observation_bytes,
    parse_observation,
)
from ticket_agent.peft.release.phases import Phase, ReleaseState
from ticket_agent.peft.release.profile import MAX_ATTESTATIONS, MAX_KEY_ID_BYTES, MAX_LICENSES
from ticket_agent.peft.release.release_record import Authority, PhaseRecord, ReleaseRecord
from ticket_agent.peft.release.request import Entry
from ticket_agent.peft.release.spelled import spell
from ticket_agent.peft.release.statement import AttestedBy, LauncherFacts, Statement, sign_statement
from ticket_agent.protocol.tokens import U64_MAX

WORST = '"'
"""A printable character that takes two bytes in JSON."""
TICKET = Authority(ticket_id="t" * 128, idempotency_key="k" * 128, writer_epoch=U64_MAX)
LONG = 0.1234567890123456
METRICS = {f"{WORST * 62}{index:02}": -LONG for index in range(1, MAX_METRICS)}
LABEL = WORST * 128


def largest_context() -> Any:
    return replace(CONTEXT, split=LABEL, evaluator=LABEL, evaluator_version=LABEL, seed_policy=LABEL)


class Largest(Scene):
    """A trained release whose every value is as long as it may be, and which failed at the very end."""

    @property
    def reports(self) -> tuple[RowLosses, RowLosses]:
        rows = tuple(f"{index:064x}" for index in range(MAX_ROWS))
        losses = tuple(index + LONG for index in range(MAX_ROWS))
        return (
            RowLosses(artifact_sha256=self.baseline.served_artifact_sha256, rows=rows, losses=losses),
            RowLosses(
                artifact_sha256=CANDIDATE, rows=rows, losses=tuple(loss - LONG * 1e-100 for loss in losses)
            ),
        )

    @property
    def evaluations(self) -> tuple[Evaluation, Evaluation]:
        found = []
        for report in self.reports:
            mean = sum(report.losses) / MAX_ROWS
            found.append(
                Evaluation(
                    artifact_sha256=report.artifact_sha256,
                    context=largest_context(),
                    samples=MAX_ROWS,
                    completed_unix_ms=self.time_of(Phase.EVALUATE),
                    metrics={"eval_loss": mean, **METRICS},
                    native_report_sha256=report.sha256,
                )
            )
        return found[0], found[1]

    @property
    def record(self) -> ReleaseRecord:
        phases = tuple(PhaseRecord(phase=phase, result=self.observed(phase)) for phase in Phase)
        return ReleaseRecord(
            operation_id="release-one",
            request_sha256=phases[0].result.request_sha256 if phases[0].result else "",
            authority=TICKET,
            state=ReleaseState.ROLLBACK_FAILED,
            phases=phases,
            comparison=self.comparison,
            blocker=WORST * 256,
            recovery=TICKET,
        )

    def observed(self, phase: Phase) -> PhaseObservation:
        detail = self.detail(phase)
        frame = len(spell(detail | {"log": ""}))
        detail = detail | {"log": "x" * (max_detail_bytes(phase) - frame)}
        return replace(self.observation(phase), detail=detail, native_identity=WORST * MAX_IDENTITY_BYTES)

    @property
    def evidence(self) -> NativeEvidence:
        return NativeEvidence(provider_graph_sha256=GRAPH, record=self.record)


POLICY = Scene().policy
LARGEST = Largest(
    entry=Entry.TRAIN,
    policy=replace(POLICY, metrics=(replace(POLICY.metrics[0], absolute_bound=1e6),)),
    details={
        Phase.SCAN: {"adapter_sha256": CANDIDATE},
        Phase.STAGE: {"adapter_sha256": CANDIDATE},
        Phase.PROMOTE: {"accepted": successor(Scene().baseline).members()},
    },
)
LICENSES = tuple(f"{WORST * 255}{index}" for index in range(MAX_LICENSES))
LARGEST_CLAIM = replace(CLAIM, license_refs=LICENSES)


def key_id(index: int) -> str:
    return f"{WORST * (MAX_KEY_ID_BYTES - 1)}{index}"


def largest_statement() -> Statement:
    attested = [
        AttestedBy.of(attest(LARGEST_CLAIM, key_id=key_id(index), key=key(ATTESTER)), key(ATTESTER).public)
        for index in range(MAX_ATTESTATIONS)
    ]
    words = tuple(f"{WORST * 126}{index:02}" for index in range(MAX_GUARANTEES))
    return Statement(
        request=LARGEST.request,
        evidence=LARGEST.evidence,
        reports=LARGEST.reports,
        inputs=LARGEST_CLAIM,
        attested=tuple(attested),
        launcher=LauncherFacts(name=LABEL, guarantees=words[:16], missing=words[16:]),
    )


@pytest.mark.parametrize("phase", Phase)
def test_the_largest_observation_fits_and_a_larger_one_is_refused(phase: Phase) -> None:
    largest = LARGEST.observed(phase)
    data = largest.encode()
    assert len(data) <= max_observation_bytes(phase)
    assert parse_observation(data) == largest
    longer = dict(largest.detail) | {"log": largest.detail["log"] + "x"}
    with pytest.raises(DocumentError, match="name it by its digest"):
        replace(largest, detail=longer)


def test_the_largest_evaluations_leave_room_in_their_observation() -> None:
    baseline, candidate = LARGEST.evaluations
    assert max(len(found.encode()) for found in (baseline, candidate)) <= MAX_EVALUATION_BYTES
    told = {"baseline": baseline.members(), "candidate": candidate.members()}
    assert len(spell(told)) + 512 <= max_detail_bytes(Phase.EVALUATE)


def test_the_largest_evidence_fits_and_comes_back() -> None:
    data = LARGEST.evidence.encode()
    assert len(data) <= MAX_EVIDENCE_BYTES
    assert parse_evidence(data) == LARGEST.evidence
    # There are nine phases; a tenth record would fit too.
    assert len(Phase) == MAX_PHASES - 1
    assert len(data) + max_observation_bytes(Phase.VALIDATE) <= MAX_EVIDENCE_BYTES


def test_the_largest_report_fits() -> None:
    assert max(len(report.encode()) for report in LARGEST.reports) <= MAX_REPORT_BYTES


def test_the_largest_attestation_fits() -> None:
    made = attest(LARGEST_CLAIM, key_id=key_id(0), key=key(ATTESTER))
    assert len(made.encode()) <= MAX_ATTESTATION_BYTES
    assert len(attestation().encode()) <= MAX_ATTESTATION_BYTES


def test_the_largest_release_is_signed_bundled_and_verified() -> None:
    statement = largest_statement()
    assert len(statement.encode()) <= MAX_STATEMENT_BYTES
    envelope = sign_statement(statement, key()).encode()
    assert len(envelope) <= MAX_ENVELOPE_BYTES
    parse_envelope(envelope)
    attestations = tuple(
        attest(LARGEST_CLAIM, key_id=key_id(index), key=key(ATTESTER)) for index in range(MAX_ATTESTATIONS)
    )
    bundle = build_bundle(statement, attestations, key())
    assert len(bundle) <= MAX_BUNDLE_BYTES
    assert [v for v in BundleVerification(bundle, key().public).verdicts() if v.ok is not True] == []
