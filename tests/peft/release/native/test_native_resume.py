"""Going on from a checkpoint: exactly where it stood, or not at all."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from native_jobs import STEPS, Prepared, World, digests, prepare

from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.checkpoint import encode_checkpoint, parse_checkpoint
from ticket_agent.peft.release.request import Entry

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from native_lab import Lab, Trained
    from native_worker import Worker

pytestmark = pytest.mark.train

STEP = 8


@pytest.fixture
def stopped(trained: Trained, tmp_path: Path) -> Path:
    """What a training that was stopped after step 8 has left."""
    out = tmp_path / "stopped"
    (out / "checkpoints").mkdir(parents=True)
    detail = trained.observed["detail"]
    wanted = next(entry["sha256"] for entry in detail["checkpoints"] if entry["step"] == STEP)
    source = trained.job.out / "checkpoints" / wanted
    newest = parse_checkpoint((trained.job.out / "checkpoint.json").read_bytes())
    manifest = replace(newest, step=STEP, files=tuple(digests(source).items()))
    data = encode_checkpoint(manifest)
    # The manifest that was published then is rebuilt from its parts: both have one name.
    assert digest(data) == wanted
    shutil.copytree(source, out / "checkpoints" / wanted)
    (out / "checkpoint.json").write_bytes(data)
    return out


def changed(out: Path, name: str, change: Callable[[Path], None]) -> None:
    """Change a file of the newest checkpoint, and its manifest with it."""
    manifest = parse_checkpoint((out / "checkpoint.json").read_bytes())
    folder = out / "checkpoints" / digest(encode_checkpoint(manifest))
    change(folder / name)
    data = encode_checkpoint(replace(manifest, files=tuple(digests(folder).items())))
    folder.rename(folder.with_name(digest(data)))
    (out / "checkpoint.json").write_bytes(data)


def resumed(path: Path, world: World, stopped: Path, *, by_reference: bool = False) -> Prepared:
    return prepare(
        path,
        world,
        Entry.TRAIN,
        checkpoint=stopped,
        operation="release-two",
        by_reference=by_reference,
    )


def refused(job: Prepared, phase: str) -> dict[str, str]:
    found = job.observed(phase)
    assert found["succeeded"] is False
    detail: dict[str, str] = found["detail"]
    return detail


def test_a_resumed_training_ends_as_one_that_was_never_stopped(
    lab: Lab, stopped: Path, tmp_path: Path
) -> None:
    job = resumed(tmp_path / "job", lab.world, stopped, by_reference=True)
    lab.worker.phase("validate", job.path)
    assert job.observed("validate")["detail"]["resumes"]["step"] == STEP
    lab.worker.phase("train", job.path)
    found = job.observed("train")
    assert found["succeeded"], found["detail"]
    assert digests(job.out / "adapter") == digests(lab.trained.adapter)
    whole = lab.trained.observed["detail"]["losses"]
    assert found["detail"]["losses"] == whole[STEP:]
    proof = found["detail"]["resume"]
    assert (proof["from_step"], proof["first_step"], proof["last_logged_step"]) == (STEP, STEP + 1, STEP)
    assert round(proof["first_loss"], 6) == whole[STEP][1]
    assert round(proof["last_logged_loss"], 6) == whole[STEP - 1][1]
    assert proof["probe_loss"] == pytest.approx(proof["saved_probe_loss"], rel=1e-6)
    manifest = parse_checkpoint((job.out / "checkpoint.json").read_bytes())
    assert (manifest.source_operation, manifest.step) == ("release-two", STEPS)


def test_a_killed_training_goes_on_in_another_release(lab: Lab, tmp_path: Path) -> None:
    killed = prepare(tmp_path / "killed", lab.world, Entry.TRAIN)
    ended = lab.worker.call("native_worker:run", "train", killed.path, ["killed_in_step_ten"])
    assert ended["exit"] == -signal.SIGKILL
    # Nobody says how it ended, and what it published before is whole.
    assert not (killed.out / "train.json").exists()
    job = resumed(tmp_path / "job", lab.world, killed.out)
    lab.worker.phase("train", job.path)
    assert job.observed("train")["detail"]["resume"]["from_step"] == STEP
    assert digests(job.out / "adapter") == digests(lab.trained.adapter)


def test_a_full_disk_ends_a_training_with_an_observation(lab: Lab, tmp_path: Path) -> None:
    job = prepare(tmp_path / "job", lab.world, Entry.TRAIN)
    lab.worker.phase("train", job.path, "disk_is_nearly_full")
    assert job.observed("train")["succeeded"] is False
    assert not (job.out / "checkpoint.json").exists()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("resume_starts_again", "the trainer is at step 0, and the checkpoint is of step 8"),
        ("resume_keeps_new_weights", "did not take over the checkpoint's weights"),
        ("resume_has_no_optimizer", "at step 0, and the checkpoint is of step 8"),
        ("resume_forgets_moments", "the optimizer is at step 0, and the checkpoint is of step 8"),
        ("resume_forgets_schedule", "the schedule is at step 0, and the checkpoint is of step 8"),
    ],
)
def test_a_trainer_that_starts_again_is_noticed(
    fault: str, reason: str, lab: Lab, stopped: Path, tmp_path: Path
) -> None:
    job = resumed(tmp_path / "job", lab.world, stopped)
    lab.worker.phase("train", job.path, fault)
    found = refused(job, "train")
    assert found["error"] == "ResumeNotProvenError"
    assert reason in found["reason"]
    assert not (job.out / "adapter").exists()


def test_a_probe_that_costs_something_else_is_noticed(
    worker: Worker, world: World, stopped: Path, tmp_path: Path
) -> None:
    def edit(path: Path) -> None:
        state = json.loads(path.read_bytes())
        entry = next(
            entry for entry in state["log_history"] if "probe_loss" in entry and entry["step"] == STEP
        )
        entry["probe_loss"] += 0.1
        path.write_text(json.dumps(state))

    changed(stopped, "trainer_state.json", edit)
    job = resumed(tmp_path / "job", world, stopped)
    worker.phase("train", job.path)
    assert "when the checkpoint was saved" in refused(job, "train")["reason"]


def test_a_first_loss_far_from_the_last_one_is_noticed(
    worker: Worker, world: World, stopped: Path, tmp_path: Path
) -> None:
    def edit(path: Path) -> None:
        state = json.loads(path.read_bytes())
        state["log_history"] = [entry for entry in state["log_history"] if "probe_loss" not in entry]
        next(entry for entry in state["log_history"] if entry["step"] == STEP)["loss"] = 1.0
        path.write_text(json.dumps(state))

    changed(stopped, "trainer_state.json", edit)
    job = resumed(tmp_path / "job", world, stopped)
    worker.phase("train", job.path)
    assert "the first loss after resuming" in refused(job, "train")["reason"]


class Payload:
    """Leaves a file when it is loaded by somebody who runs what he loads."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Callable[..., int], tuple[str]]:
        return os.system, (f"touch {self._mark}",)


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
@pytest.mark.parametrize("phase", ["validate", "train"])
def test_nothing_in_a_checkpoint_is_run(
    phase: str, name: str, lab: Lab, stopped: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "was-run"
    changed(stopped, name, lambda path: _write(path, pickle.dumps({"state": Payload(mark)})))
    job = resumed(tmp_path / "job", lab.world, stopped)
    lab.worker.phase(phase, job.path)
    found = refused(job, phase)
    assert found["error"] == "CheckpointRefusedError"
    assert f"{name} cannot be loaded as tensors and numbers alone" in found["reason"]
    assert not mark.exists()


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def test_a_state_without_its_members_is_refused(
    worker: Worker, world: World, stopped: Path, tmp_path: Path
) -> None:
    source = next((stopped / "checkpoints").iterdir())
    scheduler = (source / "scheduler.pt").read_bytes()
    changed(stopped, "optimizer.pt", lambda path: _write(path, scheduler))
    job = resumed(tmp_path / "job", world, stopped)
    worker.phase("validate", job.path)
    assert "optimizer.pt has no param_groups, state" in refused(job, "validate")["reason"]


@pytest.mark.parametrize(
    "case",
    [
        ("release-one", STEP, "is of this very operation"),
        ("release-two", STEPS, "nothing is left"),
        ("release-two", STEP - 1, "global_step must be 7"),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused(
    case: tuple[str, int, str], lab: Lab, stopped: Path, tmp_path: Path
) -> None:
    operation, step, reason = case
    manifest = parse_checkpoint((stopped / "checkpoint.json").read_bytes())
    folder = stopped / "checkpoints" / digest(encode_checkpoint(manifest))
    data = encode_checkpoint(replace(manifest, step=step))
    if step != STEP:
        folder.rename(folder.with_name(digest(data)))
    (stopped / "checkpoint.json").write_bytes(data)
    job = prepare(tmp_path / "job", lab.world, Entry.TRAIN, checkpoint=stopped, operation=operation)
    for phase in ("validate", "train"):
        lab.worker.phase(phase, job.path)
        assert reason in refused(job, phase)["reason"]
