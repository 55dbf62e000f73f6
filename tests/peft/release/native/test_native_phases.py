"""The phases as they go well, for real on a CPU; and what they refuse before any library is used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from adapter_edits import edited, scaled
from native_jobs import INTERVAL, STEPS, Prepared, World, digests, identity, prepare

from ticket_agent.peft.release.behaviour import Behaviour
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.comparison import compare
from ticket_agent.peft.release.evaluation import Evaluation, parse_row_losses
from ticket_agent.peft.release.evidence_errors import ComparisonRefusedError
from ticket_agent.peft.release.native.job import JobFacts
from ticket_agent.peft.release.observation import max_observation_bytes, parse_observation
from ticket_agent.peft.release.paired import PairedLosses, pair, require_mean
from ticket_agent.peft.release.phases import Phase
from ticket_agent.peft.release.request import Entry

if TYPE_CHECKING:
    from pathlib import Path

    from native_lab import Lab, Trained

pytestmark = pytest.mark.train


def parsed(job: Prepared, phase: Phase) -> dict[str, Any]:
    """The detail of an observation that is of this job, succeeded and fits its bound."""
    data = (job.out / f"{phase}.json").read_bytes()
    assert len(data) <= max_observation_bytes(phase)
    found = parse_observation(data)
    found.require(
        operation_id=job.request.operation_id,
        request_sha256=digest((job.inputs / "request.json").read_bytes()),
        phase=phase,
    )
    assert found.succeeded, dict(found.detail)
    assert found.completed_unix_ms > 0
    return dict(found.detail)


def evaluations(job: Prepared) -> tuple[Evaluation, Evaluation, PairedLosses]:
    """Both evaluations, held against their reports."""
    detail = parsed(job, Phase.EVALUATE)
    found, reports = [], []
    for name in ("baseline", "candidate"):
        evaluation = Evaluation.of_members(detail[name], name)
        report = parse_row_losses((job.out / f"{name}-rows.json").read_bytes())
        require_mean(evaluation, report)
        found.append(evaluation)
        reports.append(report)
    paired = pair(*reports)
    assert detail["mean_difference"] == paired.mean_difference
    assert detail["standard_error"] == paired.standard_error
    return found[0], found[1], paired


def test_the_command_as_it_is_started(world: World, tmp_path: Path) -> None:
    job = prepare(tmp_path / "job", world, Entry.TRAIN)
    env = os.environ | {"HF_HUB_OFFLINE": "0", "HF_TOKEN": "not-a-token", "http_proxy": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "ticket_agent.peft.release.native", "validate", "--job", str(job.path)]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "validate succeeded\n", "")
    detail = parsed(job, Phase.VALIDATE)
    assert detail["context"] == world.profile.context.members()
    assert detail["rows"]["evaluation"]["count"] == 16
    assert detail["base"]["tensor_count"] == 21
    assert detail["resources"]["process_peak_host_rss_bytes"] > 1 << 20
    before = (job.out / "validate.json").read_bytes()
    again = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stdout) == (1, "")
    assert "validate.json is there already" in again.stderr
    assert (job.out / "validate.json").read_bytes() == before
    assert [path.name for path in job.out.iterdir()] == ["validate.json"]


def test_training_leaves_an_adapter_checkpoints_and_all_losses(trained: Trained, world: World) -> None:
    detail = parsed(trained.job, Phase.TRAIN)
    assert detail["candidate"]["adapter_sha256"] == identity(trained.adapter)
    assert detail["candidate"]["files"] == digests(trained.adapter)
    assert [entry["step"] for entry in detail["checkpoints"]] == [2 * INTERVAL, 3 * INTERVAL]
    assert detail["resume"] is None
    log = (trained.job.out / "loss-log.json").read_bytes()
    assert digest(log) == detail["loss_log_sha256"]
    losses = json.loads(log)
    assert losses["steps"] == list(range(1, STEPS + 1))
    assert losses["losses"][-1] < losses["losses"][0] - 0.2
    assert sorted(path.name for path in trained.job.out.iterdir()) == [
        "adapter",
        "checkpoint.json",
        "checkpoints",
        "loss-log.json",
        "train.json",
    ]
    config = json.loads((trained.adapter / "adapter_config.json").read_bytes())
    assert config["base_model_name_or_path"] == world.profile.stack.base.source
    # Nobody's directory is part of what names an adapter.
    assert str(trained.job.path) not in json.dumps(config)


def test_checkpoints_hold_no_pickle_of_the_trainer(trained: Trained) -> None:
    newest = (trained.job.out / "checkpoint.json").read_bytes()
    published = trained.job.out / "checkpoints"
    assert digest(newest) in {path.name for path in published.iterdir()}
    for directory in published.iterdir():
        names = {path.name for path in directory.iterdir()}
        assert names == set(json.loads(newest)["files"])
        assert "training_args.bin" not in names


def test_training_twice_gives_the_same_adapter(lab: Lab, tmp_path: Path) -> None:
    job = prepare(tmp_path / "job", lab.world, Entry.TRAIN)
    lab.worker.phase("train", job.path)
    assert digests(job.out / "adapter") == digests(lab.trained.adapter)


@pytest.mark.parametrize("entry", Entry)
def test_a_candidate_to_its_evaluation(entry: Entry, lab: Lab, tmp_path: Path) -> None:
    if entry is Entry.IMPORT:
        # An import is validated before anybody knows its identity.
        first = prepare(tmp_path / "first", lab.world, entry, adapter=lab.trained.adapter, named=False)
        lab.worker.phase("validate", first.path)
        told = parsed(first, Phase.VALIDATE)
        assert told["candidate"]["adapter_sha256"] == identity(lab.trained.adapter)
        assert told["training_provenance"] == "unknown"
    job = prepare(tmp_path / "job", lab.world, entry, adapter=lab.trained.adapter)
    lab.worker.phase("evaluate", job.path)
    lab.worker.phase("scan", job.path)
    baseline, candidate, paired = evaluations(job)
    assert baseline.artifact_sha256 == lab.world.profile.base
    assert candidate.artifact_sha256 == identity(lab.trained.adapter)
    assert paired.mean_difference < -0.2
    effect = parsed(job, Phase.EVALUATE)["effect"]
    assert effect["matched_tensors"] == 8
    assert effect["changed_prompts"] == 4
    assert effect["largest_logit_difference"] > effect["noise"]
    behaviour = Behaviour.parse((job.out / "behaviour.json").read_bytes())
    assert behaviour.changed == parsed(job, Phase.EVALUATE)["answers_unlike_baseline"] > 0
    assert all(1 < sum(map(bool, answer.pieces)) <= 8 for answer in behaviour.candidate)
    assert (
        digest((job.out / "behaviour.json").read_bytes()) == parsed(job, Phase.EVALUATE)["behaviour_sha256"]
    )
    scanned = parsed(job, Phase.SCAN)
    assert (scanned["adapter_sha256"], scanned["tensor_count"]) == (candidate.artifact_sha256, 8)
    compare(
        candidate,
        baseline,
        policy=job.request.evaluation_policy,
        accepted=job.request.baseline,
        now_unix_ms=candidate.completed_unix_ms,
    )


def test_a_regression_against_the_incumbent_is_seen(lab: Lab, tmp_path: Path) -> None:
    worse = edited(lab.trained.adapter, tmp_path / "worse", tensors=scaled(-1.0))
    job = prepare(tmp_path / "job", lab.world, Entry.IMPORT, adapter=worse, incumbent=lab.trained.adapter)
    lab.worker.phase("evaluate", job.path)
    baseline, candidate, paired = evaluations(job)
    assert baseline.artifact_sha256 == identity(lab.trained.adapter)
    assert paired.mean_difference > 0.2
    with pytest.raises(ComparisonRefusedError, match="eval_loss"):
        compare(
            candidate,
            baseline,
            policy=job.request.evaluation_policy,
            accepted=job.request.baseline,
            now_unix_ms=candidate.completed_unix_ms,
        )


def test_the_incumbent_itself_again_is_no_regression(lab: Lab, tmp_path: Path) -> None:
    adapter = lab.trained.adapter
    job = prepare(
        tmp_path / "job", lab.world, Entry.IMPORT, adapter=adapter, incumbent=adapter, by_reference=True
    )
    assert not [path for path in job.inputs.iterdir() if path.is_dir()]
    for phase in ("validate", "scan", "evaluate"):
        lab.worker.phase(phase, job.path)
        parsed(job, Phase(phase))
    _, _, paired = evaluations(job)
    assert paired.differences == (0.0,) * 16


@pytest.mark.parametrize(
    ("name", "phase"), [("adapter", "scan"), ("incumbent", "evaluate"), ("base", "validate")]
)
def test_a_directory_elsewhere_has_its_files_and_no_other_one(
    name: str, phase: str, lab: Lab, tmp_path: Path
) -> None:
    places = {"adapter": lab.trained.adapter, "incumbent": lab.trained.adapter, "base": lab.world.base}
    copy = tmp_path / "copy"
    shutil.copytree(places[name], copy)
    (copy / "more.json").write_text("{}")
    job = prepare(
        tmp_path / "job",
        lab.world,
        Entry.IMPORT,
        adapter=lab.trained.adapter,
        incumbent=lab.trained.adapter,
        by_reference=True,
    )
    facts = JobFacts.parse((job.inputs / "job.json").read_bytes())
    moved = replace(facts, places=dict(facts.places) | {name: str(copy)})
    (job.inputs / "job.json").write_bytes(moved.encode())
    lab.worker.phase(phase, job.path)
    found = job.observed(phase)
    assert found["succeeded"] is False
    assert name in found["detail"]["reason"]
