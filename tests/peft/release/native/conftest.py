"""One tiny base model, one process with the libraries, and one trained adapter for all of these tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from native_jobs import World, prepare
from native_lab import Lab, Trained
from native_worker import Worker

from ticket_agent.peft.release.request import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    with Worker() as started:
        yield started


@pytest.fixture(scope="session")
def world(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> World:
    base = tmp_path_factory.mktemp("native") / "base"
    base.mkdir()
    made = worker.call("native_worker:make_base", base)
    assert made["exit"] == 0, made["output"]
    return World.of(base)


@pytest.fixture(scope="session")
def trained(worker: Worker, world: World, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    job = prepare(tmp_path_factory.mktemp("trained") / "job", world, Entry.TRAIN)
    worker.phase("train", job.path)
    return Trained(job=job, observed=job.observed("train"))


@pytest.fixture(scope="session")
def lab(worker: Worker, world: World, trained: Trained) -> Lab:
    return Lab(worker=worker, world=world, trained=trained)
