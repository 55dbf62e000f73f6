"""One tiny base model, one process with the libraries, and one trained adapter for all tests of this folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from native_jobs import Prepared, World, prepare
from native_worker import Worker, missing

from ticket_agent.peft.release.request import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    if missing():
        pytest.skip("needs the extra train")
    with Worker() as started:
        yield started


@pytest.fixture(scope="session")
def world(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> World:
    base = tmp_path_factory.mktemp("native") / "base"
    base.mkdir()
    made = worker.call("native_worker:make_base", base)
    assert made["exit"] == 0, made["output"]
    return World.of(base)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A training that has ended."""

    job: Prepared
    observed: dict[str, Any]

    @property
    def adapter(self) -> Path:
        return self.job.out / "adapter"


@pytest.fixture(scope="session")
def trained(worker: Worker, world: World, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    job = prepare(tmp_path_factory.mktemp("trained") / "job", world, Entry.TRAIN)
    worker.phase("train", job.path)
    return Trained(job=job, observed=job.observed("train"))
