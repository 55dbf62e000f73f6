"""The phase ``train``: a new adapter on the base model, or one that goes on from a checkpoint."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.adapter_config import MAX_CONFIG_BYTES
from ticket_agent.peft.release.bundle import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from ticket_agent.peft.release.native.adapters import lora_model
from ticket_agent.peft.release.native.candidate import ScannedAdapter, scan_adapter
from ticket_agent.peft.release.native.checkpoints import KEPT, PUBLISHED, check_checkpoint, publish
from ticket_agent.peft.release.native.libraries import library
from ticket_agent.peft.release.native.loss_log import LossLog, logging_interval
from ticket_agent.peft.release.native.models import load_base, load_tokenizer, prepare
from ticket_agent.peft.release.native.native_errors import JobError, TrainingError
from ticket_agent.peft.release.native.pins import check_pins
from ticket_agent.peft.release.native.resuming import PROBE, PROBE_ROWS, ResumeProof, probe_loss
from ticket_agent.peft.release.native.token_rows import collator, tokenise
from ticket_agent.peft.release.native.trainers import trainer_arguments, with_events
from ticket_agent.peft.release.request import Entry
from ticket_agent.peft.release.training_progress import ProgressFile
from ticket_agent.protocol.json_strict import parse_object

if TYPE_CHECKING:
    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.release.native.job import Job

__all__ = ["LOG", "train"]

ADAPTER: Final = "adapter"
"""Below ``out``: the trained adapter."""
LOG: Final = "loss-log.json"
_SCRATCH: Final = "training"


def train(job: Job) -> dict[str, Any]:
    """Train, publish checkpoints, and leave the adapter in ``out/adapter``.

    Raises:
        PeftError: training cannot be started, went wrong, or did not go on where it had to.
    """
    profile = job.profile
    if job.release_input.entry is not Entry.TRAIN:
        raise JobError("this release imports an adapter; there is nothing to train")
    for name in (_SCRATCH, ADAPTER, PUBLISHED):
        if job.outputs.kind(name) is not None:
            raise TrainingError(f"out/{name} is there already; training was started before")
    check_pins(profile)
    job.check_base_files()
    if job.checkpoint is not None:
        check_checkpoint(job, job.checkpoint)
    prepare(profile)
    run = _Training(job)
    run.train()
    scanned = _save(job, run.model)
    shutil.rmtree(job.output_path(_SCRATCH))
    loss_log_sha256 = job.leave_members(LOG, run.log.members())
    run.progress.done()
    return {
        "candidate": scanned.members(),
        "steps": profile.settings.max_steps,
        "losses": run.log.told(),
        "loss_log_sha256": loss_log_sha256,
        "checkpoints": [{"step": step, "sha256": sha256} for step, sha256 in run.published],
        "resume": None if run.proof is None else run.proof.members(),
        "native_job_id": job.facts.native_identity,
        "cleanup": "complete",
    }


class _Training:
    """One run of the trainer, and what was seen of it."""

    def __init__(self, job: Job) -> None:
        profile, settings = job.profile, job.profile.settings
        self._job: Final = job
        self.log: Final = LossLog()
        self.progress: Final = ProgressFile(job.outputs, max_steps=settings.max_steps)
        self.published: list[tuple[int, str]] = []
        tokenizer = load_tokenizer(job.input_path("base"))
        rows = tokenise(tokenizer, job.train_rows, profile, what="training rows")
        collate = collator(tokenizer)
        self._probes = [collate([row]) for row in rows[:PROBE_ROWS]]
        base = load_base(job.input_path("base"), profile)
        # Loading may have drawn random numbers, how many depends on the version.
        library("transformers").set_seed(settings.seed)
        self.model: Final = lora_model(base, profile)
        checkpoint = job.checkpoint
        self._checkpoint = None if checkpoint is None else job.input_path("checkpoint")
        self.proof = None
        if checkpoint is not None and self._checkpoint is not None:
            self.proof = ResumeProof(self._checkpoint, checkpoint.step)
        interval = settings.checkpoint_interval
        saving = {} if interval is None else {"save_strategy": "steps", "save_steps": interval}
        self._trainer = library("transformers").Trainer(
            model=self.model,
            args=trainer_arguments(
                profile,
                job.output_path(_SCRATCH),
                max_steps=settings.max_steps,
                learning_rate=settings.learning_rate,
                optim="adamw_torch",
                logging_strategy="steps",
                logging_steps=logging_interval(settings.max_steps),
                save_total_limit=KEPT,
                **saving,
            ),
            train_dataset=rows,
            data_collator=collate,
            callbacks=[
                with_events(
                    on_train_begin=self._begin,
                    on_step_end=self._step,
                    on_log=self._logged,
                    on_save=self._saved,
                )
            ],
        )

    def train(self) -> None:
        """Train to the last step.

        Raises:
            PeftError: see :func:`train`.
        """
        self._trainer.train(
            resume_from_checkpoint=None if self._checkpoint is None else str(self._checkpoint)
        )
        reached, wanted = self._trainer.state.global_step, self._job.profile.settings.max_steps
        if reached != wanted:
            raise TrainingError(f"training ended at step {reached} of {wanted}")

    def _begin(self, state: Any, **_: Any) -> None:
        if self.proof is not None:
            trainer = self._trainer
            probe = probe_loss(self.model, self._probes)
            self.proof.began(state, self.model, trainer.optimizer, trainer.lr_scheduler, probe)
        elif state.global_step != 0:
            raise TrainingError(f"training began at step {state.global_step} without a checkpoint")

    def _step(self, state: Any, **_: Any) -> None:
        interval = self._job.profile.settings.checkpoint_interval
        if interval is not None and state.global_step % interval == 0:
            # Saved with the state, so that whoever goes on from here can compare.
            probe = probe_loss(self.model, self._probes)
            state.log_history.append({"step": state.global_step, PROBE: probe})

    def _logged(self, state: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if logs is None or "loss" not in logs:
            return
        loss = float(logs["loss"])
        self.log.add(int(state.global_step), loss)
        self.progress.logged(self.log)
        if self.proof is not None:
            self.proof.logged(int(state.global_step), loss)

    def _saved(self, state: Any, **_: Any) -> None:
        step = int(state.global_step)
        saved = self._job.output_path(_SCRATCH) / f"checkpoint-{step}"
        self.published.append((step, publish(self._job, saved, step)))
        if len(self.published) > KEPT:
            oldest = self.published.pop(0)[1]
            with self._job.outputs.open_dir(PUBLISHED) as directory:
                directory.remove_tree(oldest)


def _save(job: Job, model: Any) -> ScannedAdapter:
    """Leave the adapter's two files in ``out/adapter``, and scan them as any other adapter is scanned."""
    saved = job.output_path(_SCRATCH) / ADAPTER
    model.save_pretrained(str(saved), safe_serialization=True)
    with job.outputs.open_dir(ADAPTER, create=True) as directory:
        directory.write_file(ADAPTER_WEIGHTS, (saved / ADAPTER_WEIGHTS).read_bytes())
        directory.write_file(ADAPTER_CONFIG, _config(job, (saved / ADAPTER_CONFIG).read_bytes()))
        return _scanned(directory, job)


def _config(job: Job, data: bytes) -> bytes:
    """The configuration in an order of its own: sets come out of the library in any, and it is identity."""
    members = parse_object(data, what=ADAPTER_CONFIG, max_bytes=MAX_CONFIG_BYTES)
    base = job.profile.stack.base
    members |= {
        "base_model_name_or_path": base.source,
        "revision": base.revision,
        "target_modules": sorted(members["target_modules"]),
    }
    return (json.dumps(members, sort_keys=True, indent=2) + "\n").encode("ascii")


def _scanned(directory: Directory, job: Job) -> ScannedAdapter:
    return scan_adapter(directory, job.profile, what="the trained adapter")
