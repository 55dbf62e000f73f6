"""The phase ``evaluate``: the model that is served now and the candidate, on the same rows."""

from __future__ import annotations

import hashlib
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.behaviour import BEHAVIOUR_FILE, Behaviour
from ticket_agent.peft.release.evaluation import Evaluation, RowLosses
from ticket_agent.peft.release.native.adapters import attach
from ticket_agent.peft.release.native.effect import continuations, prompt_logits, require_effect
from ticket_agent.peft.release.native.libraries import library
from ticket_agent.peft.release.native.models import load_base, load_tokenizer, prepare
from ticket_agent.peft.release.native.native_errors import EvaluationError, JobError
from ticket_agent.peft.release.native.pins import check_pins
from ticket_agent.peft.release.native.scan import scan_candidate, scan_named
from ticket_agent.peft.release.native.token_rows import collator, tokenise
from ticket_agent.peft.release.native.trainers import trainer_arguments
from ticket_agent.peft.release.paired import pair
from ticket_agent.peft.release.profile import EVAL_LOSS

if TYPE_CHECKING:
    from ticket_agent.peft.release.canary import Expected
    from ticket_agent.peft.release.native.job import Job

__all__ = ["BASELINE_ROWS", "CANDIDATE_ROWS", "evaluate"]

BASELINE_ROWS: Final = "baseline-rows.json"
CANDIDATE_ROWS: Final = "candidate-rows.json"
"""Reports of the losses of each row, below ``out``."""
_MEAN_TOLERANCE: Final = 1e-5


def evaluate(job: Job) -> dict[str, Any]:
    """Evaluate baseline and candidate, and prove that the candidate does something.

    Raises:
        PeftError: an adapter is refused or cannot be loaded completely, or has no effect.
    """
    profile, served = job.profile, job.request.baseline
    check_pins(profile)
    candidate = scan_candidate(job)
    job.check_base_files()
    if served.adapter_sha256 is not None:
        scan_named(job, "incumbent", served.adapter_sha256)
    elif served.served_artifact_sha256 != profile.base:
        raise JobError("the request's baseline serves neither an adapter nor the profile's base model")
    prepare(profile)
    bench = _Bench(job)
    base = load_base(job.input_path("base"), profile)
    plain, again = bench.logits(base), bench.logits(base)
    if served.adapter_sha256 is None:
        before = bench.measure(base, served.served_artifact_sha256)
    else:
        incumbent, _ = attach(base, job.input_path("incumbent"), profile)
        before = bench.measure(incumbent, served.served_artifact_sha256)
        del incumbent, base
        # Not taken off again: what is compared must be a base model that nobody has touched.
        base = load_base(job.input_path("base"), profile)
    adapted, matched = attach(base, job.input_path("adapter"), profile)
    effect = require_effect(plain, again, bench.logits(adapted), matched=matched)
    after = bench.measure(adapted, candidate.adapter_sha256)
    return _told(job, before, after, effect)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """One model: its losses, when they were complete, and its answers to the frozen prompts."""

    report: RowLosses
    mean: float
    completed_unix_ms: int
    answers: tuple[Expected, ...]

    def evaluation(self, job: Job, name: str) -> Evaluation:
        """Leave the report under ``name``; return the evaluation that names it."""
        return Evaluation(
            artifact_sha256=self.report.artifact_sha256,
            context=job.profile.context,
            samples=len(self.report.rows),
            completed_unix_ms=self.completed_unix_ms,
            metrics={EVAL_LOSS: self.mean},
            native_report_sha256=job.leave(name, self.report.encode()),
        )


class _Bench:
    """What both models are given: the same rows and the same prompts."""

    def __init__(self, job: Job) -> None:
        self._profile: Final = job.profile
        self._now_unix_ms: Final = job.now_unix_ms
        self._tokenizer: Final = load_tokenizer(job.input_path("base"))
        self._rows: Final = tokenise(self._tokenizer, job.eval_rows, job.profile, what="evaluation rows")
        self._names: Final = tuple(hashlib.sha256(row.encode()).hexdigest() for row in job.eval_rows)

    def logits(self, model: Any) -> list[Any]:
        """What a model says after each frozen prompt."""
        return prompt_logits(model, self._tokenizer, self._profile.canary.prompts)

    def measure(self, model: Any, artifact_sha256: str) -> _Measured:
        """Evaluate a model.

        Raises:
            EvaluationError: a loss is not finite, or the losses are not those that the trainer adds up.
        """
        losses: list[float] = []
        with tempfile.TemporaryDirectory() as scratch:
            trainer = library("transformers").Trainer(
                model=model,
                args=trainer_arguments(self._profile, Path(scratch)),
                eval_dataset=self._rows,
                data_collator=collator(self._tokenizer),
            )
            _record_losses(trainer, losses)
            mean = float(trainer.evaluate()[EVAL_LOSS])
        completed_unix_ms = self._now_unix_ms()
        _check_losses(losses, mean, len(self._rows))
        canary = self._profile.canary
        return _Measured(
            report=RowLosses(artifact_sha256=artifact_sha256, rows=self._names, losses=tuple(losses)),
            mean=math.fsum(losses) / len(losses),
            completed_unix_ms=completed_unix_ms,
            answers=continuations(model, self._tokenizer, canary.prompts, canary.max_tokens),
        )


def _record_losses(trainer: Any, losses: list[float]) -> None:
    """Keep the loss of each batch, which is one row, on its way to the trainer's mean."""
    step = trainer.prediction_step

    def recorded(*arguments: Any, **named: Any) -> Any:
        result = step(*arguments, **named)
        losses.append(float(result[0]) + 0.0)
        return result

    trainer.prediction_step = recorded


def _check_losses(losses: list[float], mean: float, rows: int) -> None:
    if len(losses) != rows:
        raise EvaluationError(f"the trainer evaluated {len(losses)} of {rows} rows")
    for at, loss in enumerate(losses):
        if not math.isfinite(loss):
            raise EvaluationError(f"the loss of evaluation row {at} is {loss}")
    own = math.fsum(losses) / rows
    if not math.isclose(own, mean, rel_tol=_MEAN_TOLERANCE, abs_tol=_MEAN_TOLERANCE):
        raise EvaluationError(f"the trainer tells a mean loss of {mean}; its rows have {own}")


def _told(job: Job, before: _Measured, after: _Measured, effect: dict[str, Any]) -> dict[str, Any]:
    paired = pair(before.report, after.report)
    behaviour = Behaviour(baseline=before.answers, candidate=after.answers)
    return {
        "baseline": before.evaluation(job, BASELINE_ROWS).members(),
        "candidate": after.evaluation(job, CANDIDATE_ROWS).members(),
        "effect": effect,
        "answers_unlike_baseline": behaviour.changed,
        "behaviour_sha256": job.leave(BEHAVIOUR_FILE, behaviour.encode()),
        "mean_difference": paired.mean_difference,
        "standard_error": paired.standard_error,
    }
