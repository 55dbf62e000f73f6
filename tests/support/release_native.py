"""Native phases that leave what the real ones do, without the libraries: no model is loaded."""

from __future__ import annotations

import argparse
import os
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.bundle import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from ticket_agent.peft.release.canary import Expected
from ticket_agent.peft.release.data import check_disjoint
from ticket_agent.peft.release.evaluation import RowLosses
from ticket_agent.peft.release.native.base_model import check_base_model
from ticket_agent.peft.release.native.candidate import scan_adapter
from ticket_agent.peft.release.native.evaluate import _Measured, _told
from ticket_agent.peft.release.native.job import Job
from ticket_agent.peft.release.native.loss_log import LossLog
from ticket_agent.peft.release.native.scan import scan, scan_candidate, scan_imported, scan_named
from ticket_agent.peft.release.observing import observe_and_leave
from ticket_agent.peft.release.phases import Phase
from ticket_agent.peft.release.training_progress import ProgressFile

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 3
FIRST_LOSS = 4.0
BETTER = 0.25
"""By how much each generation is better than the one before."""


def said(generation: int, prompts: tuple[str, ...]) -> tuple[Expected, ...]:
    """What ``standin_python`` serves as this generation."""
    if generation == 0:
        return tuple(Expected(pieces=("base", " of", f" {at}")) for at in range(len(prompts)))
    return tuple(
        Expected(pieces=("this", " is", f" {generation}", f" to {at}")) for at in range(len(prompts))
    )


def validate(job: Job) -> dict[str, Any]:
    base = check_base_model(job)
    check_disjoint(job.train_rows, job.eval_rows)
    detail: dict[str, Any] = {
        "entry": job.release_input.entry.value,
        "base": base,
        "context": job.profile.context.members(),
        "rows": {
            what: {"count": len(rows), "tokens": 16 * len(rows)}
            for what, rows in (("training", job.train_rows), ("evaluation", job.eval_rows))
        },
    }
    imported = scan_imported(job)
    if imported is not None:
        detail |= {"candidate": imported.members(), "training_provenance": "unknown"}
    return detail


def train(job: Job) -> dict[str, Any]:
    from release_lab import write_adapter  # noqa: PLC0415 - only here

    made = write_adapter(job.output_path("training"), seed=job.request.baseline.generation + 1)
    log, progress = LossLog(), ProgressFile(job.outputs, max_steps=STEPS)
    for step in range(1, STEPS + 1):
        log.add(step, FIRST_LOSS - BETTER * step)
        progress.logged(log)
    with job.outputs.open_dir("adapter", create=True) as directory:
        for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
            directory.write_file(name, (made / name).read_bytes())
        scanned = scan_adapter(directory, job.profile, what="the trained adapter")
    digest = job.leave_members("loss-log.json", log.members())
    progress.done()
    return {
        "candidate": scanned.members(),
        "steps": STEPS,
        "losses": log.told(),
        "loss_log_sha256": digest,
        "checkpoints": [],
        "resume": None,
        "native_job_id": job.facts.native_identity,
        "cleanup": "complete",
    }


def evaluate(job: Job) -> dict[str, Any]:
    served = job.request.baseline
    candidate = scan_candidate(job)
    job.check_base_files()
    if served.adapter_sha256 is not None:
        scan_named(job, "incumbent", served.adapter_sha256)
    effect: dict[str, Any] = {"matched_tensors": candidate.tensors, "changed_prompts": 4, "prompts": 4}
    effect |= {"largest_logit_difference": 0.5, "noise": 0.0}
    before = _measured(job, served.served_artifact_sha256, served.generation)
    return _told(job, before, _measured(job, candidate.adapter_sha256, served.generation + 1), effect)


def _measured(job: Job, artifact: str, generation: int) -> _Measured:
    names = tuple(sha256(row.encode()).hexdigest() for row in job.eval_rows)
    mean = FIRST_LOSS - BETTER * generation
    losses = tuple(mean + (0.125 if at % 2 else -0.125) for at in range(len(names)))
    return _Measured(
        report=RowLosses(artifact_sha256=artifact, rows=names, losses=losses),
        mean=mean,
        completed_unix_ms=job.now_unix_ms(),
        answers=said(generation, job.profile.canary.prompts),
    )


WORKS: dict[Phase, Callable[[Job], dict[str, Any]]] = {
    Phase.VALIDATE: validate,
    Phase.TRAIN: train,
    Phase.EVALUATE: evaluate,
    Phase.SCAN: scan,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("phase", type=Phase)
    parser.add_argument("--job", type=Path)
    chosen = parser.parse_args(arguments)
    os.umask(0o077)

    def now() -> int:
        return time.time_ns() // 1_000_000

    try:
        with Job(chosen.job, now_unix_ms=now) as job:
            observe_and_leave(chosen.phase, job, job.facts, lambda: WORKS[chosen.phase](job), now_unix_ms=now)
    except PeftError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
