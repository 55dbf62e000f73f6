"""A release as it could have been: request, evaluations, observations, record, in any variant."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from ticket_agent.peft.release.attestation import Attestation, SourceClaim, attest
from ticket_agent.peft.release.bundle_file import build_bundle
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.comparison import Comparison, compare
from ticket_agent.peft.release.context import EvaluationContext
from ticket_agent.peft.release.deployment import DeploymentState
from ticket_agent.peft.release.evaluation import Evaluation, RowLosses
from ticket_agent.peft.release.evidence import NativeEvidence
from ticket_agent.peft.release.keys import PrivateKey
from ticket_agent.peft.release.observation import PhaseObservation
from ticket_agent.peft.release.phases import Phase, ReleaseState, forward_phases
from ticket_agent.peft.release.release_record import Authority, PhaseRecord, ReleaseRecord
from ticket_agent.peft.release.request import (
    Direction,
    Entry,
    EvaluationPolicy,
    Metric,
    ReleaseRequest,
    encode_request,
)
from ticket_agent.peft.release.statement import AttestedBy, LauncherFacts, Statement

CANDIDATE = "11" * 32
BASE = "22" * 32
INCUMBENT = "33" * 32
RUNTIME = "66" * 32
GRAPH = "77" * 32
BEGAN = 1_700_000_000_000
STEP_MS = 1_000

CONTEXT = EvaluationContext(
    dataset_sha256="a1" * 32,
    split="heldout-16",
    preprocessing_sha256="a2" * 32,
    base_sha256=BASE,
    tokenizer_sha256="a3" * 32,
    evaluator="transformers.Trainer.evaluate",
    evaluator_version="4.56.2",
    parameters_sha256="a4" * 32,
    seed_policy="fixed:41",
    runtime_sha256=RUNTIME,
    resource_sha256="a5" * 32,
)
ROWS = tuple(sha256(b"row %d" % index).hexdigest() for index in range(16))
BASELINE_LOSSES = tuple(3.5 + 0.01 * index for index in range(16))
CANDIDATE_LOSSES = tuple(loss - 0.25 + 0.002 * (index % 3) for index, loss in enumerate(BASELINE_LOSSES))

POLICY = EvaluationPolicy(
    minimum_samples=16,
    maximum_age_ms=60_000,
    metrics=(
        Metric(name="eval_loss", direction=Direction.LOWER, absolute_bound=4.0, maximum_regression=0.0),
    ),
)
DEPLOYED = DeploymentState(
    generation=1,
    adapter_sha256=INCUMBENT,
    served_artifact_sha256=INCUMBENT,
    runtime_sha256=RUNTIME,
    healthy=True,
    rollback_verified=True,
)
BARE = replace(DEPLOYED, generation=0, adapter_sha256=None, served_artifact_sha256=BASE)
TICKET = Authority(ticket_id="ticket-1", idempotency_key="once", writer_epoch=7)
ATTESTER = bytes(range(2, 34))
RESCUE = Authority(ticket_id="ticket-2", idempotency_key="again", writer_epoch=8)


def mean(losses: tuple[float, ...]) -> float:
    return sum(losses) / len(losses)


def successor(state: DeploymentState, adapter: str = CANDIDATE) -> DeploymentState:
    return replace(
        state, generation=state.generation + 1, adapter_sha256=adapter, served_artifact_sha256=adapter
    )


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The values a release consists of; ``replace`` one to have another release."""

    entry: Entry = Entry.IMPORT
    baseline: DeploymentState = DEPLOYED
    policy: EvaluationPolicy = POLICY
    candidate_losses: tuple[float, ...] = CANDIDATE_LOSSES
    baseline_losses: tuple[float, ...] = BASELINE_LOSSES
    rows: tuple[str, ...] = ROWS
    details: dict[Phase, dict[str, Any]] = field(default_factory=dict)
    fails: Phase | None = None
    lost: Phase | None = None
    stops_before: Phase | None = None
    rolled_back: bool | None = None
    state: ReleaseState = ReleaseState.SUCCEEDED
    blocker: str | None = None
    recovery: Authority | None = None
    operation_id: str = "release-one"
    model_id: str = "adapter-one"
    profile_sha256: str = "aa" * 32
    input_sha256: str = "bb" * 32
    context: EvaluationContext = CONTEXT
    candidate: str = CANDIDATE
    began_ms: int = BEGAN

    @property
    def request(self) -> ReleaseRequest:
        return ReleaseRequest(
            operation_id=self.operation_id,
            model_id=self.model_id,
            entry=self.entry,
            profile_sha256=self.profile_sha256,
            input_sha256=self.input_sha256,
            evaluation_policy=self.policy,
            baseline=self.baseline,
        )

    @property
    def request_bytes(self) -> bytes:
        return encode_request(self.request)

    @property
    def reports(self) -> tuple[RowLosses, RowLosses]:
        """Of the baseline and of the candidate."""
        return (
            RowLosses(
                artifact_sha256=self.baseline.served_artifact_sha256,
                rows=self.rows,
                losses=self.baseline_losses,
            ),
            RowLosses(artifact_sha256=self.candidate, rows=self.rows, losses=self.candidate_losses),
        )

    @property
    def evaluations(self) -> tuple[Evaluation, Evaluation]:
        """Of the baseline and of the candidate."""
        baseline, candidate = (
            Evaluation(
                artifact_sha256=report.artifact_sha256,
                context=self.context,
                samples=len(self.rows),
                completed_unix_ms=self.time_of(Phase.EVALUATE) - 10,
                metrics={"eval_loss": mean(report.losses)},
                native_report_sha256=report.sha256,
            )
            for report in self.reports
        )
        return baseline, candidate

    @property
    def comparison(self) -> Comparison:
        baseline, candidate = self.evaluations
        return compare(
            candidate,
            baseline,
            policy=self.policy,
            accepted=self.baseline,
            now_unix_ms=self.time_of(Phase.EVALUATE),
        )

    def time_of(self, phase: Phase) -> int:
        return self.began_ms + STEP_MS * list(Phase).index(phase)

    def detail(self, phase: Phase) -> dict[str, Any]:
        if phase in self.details:
            return self.details[phase]
        if phase is Phase.EVALUATE:
            baseline, candidate = self.evaluations
            return {"baseline": baseline.members(), "candidate": candidate.members()}
        if phase in (Phase.SCAN, Phase.STAGE):
            return {"adapter_sha256": self.candidate}
        if phase is Phase.PROMOTE:
            return {"accepted": successor(self.baseline, self.candidate).members()}
        if phase is Phase.ROLLBACK:
            return {"accepted": self.baseline.members()}
        return {}

    def observation(self, phase: Phase, *, succeeded: bool = True) -> PhaseObservation:
        failed = {"error": "ValueError", "reason": "it did not work"}
        return PhaseObservation(
            operation_id=self.operation_id,
            request_sha256=digest(self.request_bytes),
            phase=phase,
            native_identity=f"systemd:{list(Phase).index(phase):032x}",
            completed_unix_ms=self.time_of(phase),
            succeeded=succeeded,
            detail=self.detail(phase) if succeeded else failed,
        )

    @property
    def phases(self) -> tuple[PhaseRecord, ...]:
        found = []
        for phase in forward_phases(self.entry):
            if phase is self.stops_before:
                break
            if phase is self.lost:
                found.append(PhaseRecord(phase=phase, result=None))
                break
            result = self.observation(phase, succeeded=phase is not self.fails)
            found.append(PhaseRecord(phase=phase, result=result))
            if phase is self.fails:
                break
        if self.rolled_back is not None:
            result = self.observation(Phase.ROLLBACK, succeeded=self.rolled_back)
            found.append(PhaseRecord(phase=Phase.ROLLBACK, result=result))
        return tuple(found)

    @property
    def evaluated(self) -> bool:
        record = {entry.phase: entry.result for entry in self.phases}.get(Phase.EVALUATE)
        return record is not None and record.succeeded

    @property
    def compared(self) -> bool:
        return self.evaluated and self.stops_before is not Phase.SCAN

    @property
    def record(self) -> ReleaseRecord:
        return ReleaseRecord(
            operation_id=self.operation_id,
            request_sha256=digest(self.request_bytes),
            authority=TICKET,
            state=self.state,
            phases=self.phases,
            comparison=self.comparison if self.compared else None,
            blocker=self.blocker,
            recovery=self.recovery,
        )

    @property
    def evidence(self) -> NativeEvidence:
        return NativeEvidence(provider_graph_sha256=GRAPH, record=self.record)


WORSE = tuple(loss + 0.5 for loss in BASELINE_LOSSES)
STOPPED = "the release was stopped"

SCENES = {
    "imported": Scene(),
    "trained": Scene(entry=Entry.TRAIN),
    "first generation": Scene(baseline=BARE),
    "bad input": Scene(fails=Phase.VALIDATE, state=ReleaseState.FAILED, blocker="refused bad input"),
    "training failed": Scene(
        entry=Entry.TRAIN, fails=Phase.TRAIN, state=ReleaseState.FAILED, blocker="failed native-phase train"
    ),
    "regression": Scene(
        candidate_losses=WORSE,
        stops_before=Phase.SCAN,
        state=ReleaseState.FAILED,
        blocker="refused candidate-regression eval_loss",
    ),
    "authority gone": Scene(stops_before=Phase.LOAD, state=ReleaseState.FAILED, blocker=STOPPED),
    "canary failed": Scene(
        fails=Phase.CANARY, rolled_back=True, state=ReleaseState.RECOVERED_FAILURE, blocker="canary"
    ),
    "load lost": Scene(
        lost=Phase.LOAD, rolled_back=True, state=ReleaseState.RECOVERED_FAILURE, blocker=STOPPED
    ),
    "rollback failed": Scene(
        fails=Phase.CANARY, rolled_back=False, state=ReleaseState.ROLLBACK_FAILED, blocker="canary"
    ),
    "no authority to roll back": Scene(
        fails=Phase.LOAD, state=ReleaseState.ROLLBACK_FAILED, blocker="expired native-phase-deadline"
    ),
    "rescued": Scene(
        entry=Entry.TRAIN,
        lost=Phase.TRAIN,
        rolled_back=True,
        state=ReleaseState.RECOVERED_FAILURE,
        blocker=STOPPED,
        recovery=RESCUE,
    ),
}
"""Every way in which a release can end."""


CLAIM = SourceClaim(
    source_sha256="01" * 32,
    base_sha256=BASE,
    tokenizer_sha256=CONTEXT.tokenizer_sha256,
    dataset_sha256="04" * 32,
    adapter_bundle_sha256=None,
    license_refs=("apache-2.0",),
)
LAUNCHER = LauncherFacts(
    name="bubblewrap", guarantees=("no network but loopback", "private /tmp"), missing=("memory limit",)
)


def attestation() -> Attestation:
    return attest(CLAIM, key_id="local-reference-source", key=PrivateKey.of(ATTESTER))


def statement_of(scene: Scene, **changes: Any) -> Statement:
    validated = scene.phases[0].result is not None and scene.phases[0].result.succeeded
    made = attestation()
    values: dict[str, Any] = {
        "request": scene.request,
        "evidence": scene.evidence,
        "reports": scene.reports if scene.evaluated else None,
        "inputs": CLAIM if validated else None,
        "attested": (AttestedBy.of(made, PrivateKey.of(ATTESTER).public),) if validated else (),
        "launcher": LAUNCHER,
    }
    return Statement(**(values | changes))


def bundle_of(scene: Scene, key: PrivateKey) -> bytes:
    statement = statement_of(scene)
    return build_bundle(statement, (attestation(),) if statement.attested else (), key)
