"""What `release init` and `release prepare` make really runs: every native phase, from training on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from release_jobs import job_of
from release_lab import Lab

from ticket_agent.peft.release.profile import EVAL_LOSS
from ticket_agent.peft.release.skeleton_base import TINY_GEOMETRY, base_files

if TYPE_CHECKING:
    from pathlib import Path

    from native_jobs import Prepared
    from native_worker import Worker

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def skeleton(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab.make(tmp_path_factory.mktemp("skeleton") / "release")


@dataclass(frozen=True, kw_only=True)
class Run:
    """Phases of one release."""

    worker: Worker
    job: Prepared

    def observed(self, phase: str) -> dict[str, Any]:
        self.worker.phase(phase, self.job.path)
        found = self.job.observed(phase)
        assert found["succeeded"], found
        detail: dict[str, Any] = found["detail"]
        return detail


@pytest.fixture(scope="module")
def adapter(worker: Worker, skeleton: Lab) -> Path:
    """What the skeleton's training makes."""
    run = Run(worker=worker, job=job_of(skeleton, skeleton.prepare("train"), skeleton.folder.parent / "job"))
    assert run.observed("validate")["rows"]["training"]["count"] == 24
    run.observed("train")
    return run.job.out / "adapter"


def test_the_libraries_load_the_base_model(worker: Worker, tmp_path: Path) -> None:
    for name, data in base_files().items():
        (tmp_path / name).write_bytes(data)
    told = worker.call("release_jobs:load_base_model", tmp_path)
    assert told["exit"] == 0, told["output"]
    found = told["returned"]
    assert found["class"] == TINY_GEOMETRY.architecture
    assert (found["vocabulary"], found["keys"], found["unknown"]) == (TINY_GEOMETRY.vocab_size, [], False)
    assert found["decoded"] == found["row"]
    assert found["asked"] == "the sea and"


def _evaluated(run: Run) -> None:
    told = run.observed("evaluate")
    before, after = (told[who]["metrics"][EVAL_LOSS] for who in ("baseline", "candidate"))
    assert after < before
    # All four questions are answered otherwise, so that a server without the adapter is noticed.
    assert told["answers_unlike_baseline"] == 4
    run.observed("scan")


def test_the_skeletons_training_makes_the_model_better(worker: Worker, skeleton: Lab, adapter: Path) -> None:
    job = job_of(skeleton, skeleton.prepare("train"), skeleton.folder.parent / "evaluate", candidate=adapter)
    _evaluated(Run(worker=worker, job=job))


def test_the_trained_adapter_can_be_imported(worker: Worker, skeleton: Lab, adapter: Path) -> None:
    prepared = skeleton.prepare("import", adapter=adapter)
    run = Run(worker=worker, job=job_of(skeleton, prepared, skeleton.folder.parent / "import"))
    assert run.observed("validate")["candidate"]["adapter_sha256"] == prepared.adapter_sha256
    _evaluated(run)
