"""Job directories, logs of losses, and how any end of the work becomes an observation; without libraries."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from release_support import tiny_stack

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.geometry import adapter_tensors
from ticket_agent.peft.release.native.base_model import base_tensors
from ticket_agent.peft.release.native.command import main
from ticket_agent.peft.release.native.job import Job, JobFacts
from ticket_agent.peft.release.native.loss_log import LossLog, logging_interval
from ticket_agent.peft.release.native.native_errors import TrainingError
from ticket_agent.peft.release.observation import max_detail_bytes, parse_observation
from ticket_agent.peft.release.observing import observe
from ticket_agent.peft.release.phases import Phase
from ticket_agent.peft.release.qualified import QUALIFIED_STACK
from ticket_agent.peft.release.spelled import spell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FACTS = JobFacts(
    operation_id="release-one",
    request_sha256="ab" * 32,
    native_identity="unit:one",
    candidate_sha256=None,
)


@pytest.fixture(autouse=True)
def _mask() -> Iterator[None]:
    """The command sets the mask of its process, which here is the tests'."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A job directory with nothing but ``job.json``."""
    job = tmp_path / "job"
    (job / "in").mkdir(parents=True)
    (job / "out").mkdir()
    (job / "in" / "job.json").write_bytes(FACTS.encode())
    return job


def test_facts_have_one_spelling() -> None:
    assert JobFacts.parse(FACTS.encode()) == FACTS
    named = replace(FACTS, candidate_sha256="cd" * 32, places={"base": "/models/base"})
    assert JobFacts.parse(named.encode()) == named


@pytest.mark.parametrize(
    "places", [{"base": "models"}, {"base": "/a/../b"}, {"base": ""}, {"rows": "/a"}, {"base": "/a\nb"}]
)
def test_places_that_are_none(places: dict[str, str]) -> None:
    with pytest.raises(DocumentError, match="places"):
        replace(FACTS, places=places)


def test_an_input_is_where_the_facts_say(path: Path, tmp_path: Path) -> None:
    (path / "in" / "adapter").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_bytes(b"x")
    (path / "in" / "job.json").write_bytes(replace(FACTS, places={"base": str(elsewhere)}).encode())
    with Job(path, now_unix_ms=lambda: 5) as job:
        assert job.input_path("adapter") == path / "in" / "adapter"
        assert job.input_path("base") == elsewhere
        with job.open_input("base") as opened:
            assert opened.names() == ["file"]
        with job.open_input("adapter") as opened:
            assert opened.names() == []


@pytest.mark.parametrize(
    "change",
    [
        lambda members: members | {"more": 1},
        lambda members: members | {"schema": "ticket-agent-native-job/v2"},
        lambda members: members | {"operation_id": "../one"},
        lambda members: members | {"native_identity": ""},
        lambda members: members | {"native_identity": "x" * 257},
        lambda members: members | {"candidate_sha256": "CD" * 32},
        lambda members: {name: value for name, value in members.items() if name != "candidate_sha256"},
    ],
)
def test_other_facts_are_refused(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    data = json.dumps(change(json.loads(FACTS.encode())), sort_keys=True, separators=(",", ":"))
    with pytest.raises(DocumentError):
        JobFacts.parse(data.encode())


def test_without_a_request_the_phase_fails_and_says_so(path: Path) -> None:
    assert main(["validate", "--job", str(path)]) == 0
    found = parse_observation((path / "out" / "validate.json").read_bytes())
    assert (found.succeeded, found.native_identity) == (False, "unit:one")
    assert found.detail["error"] == "AbsentError"
    assert "request.json" in found.detail["reason"]


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda path: (path / "in" / "job.json").unlink(), "job.json"),
        (lambda path: (path / "in" / "job.json").write_bytes(b"{}"), "job.json"),
        (lambda path: (path / "out").rmdir(), "out"),
        (lambda path: (path / "out").chmod(0o777), "out"),
        (lambda path: (path / "out" / "validate.json").write_bytes(b"old"), "is there already"),
    ],
)
def test_without_a_usable_job_nothing_is_written(
    break_it: Callable[[Path], object], reason: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    break_it(path)
    before = sorted((entry.name, entry.read_bytes()) for entry in path.glob("out/*"))
    assert main(["validate", "--job", str(path)]) == 1
    assert reason in capsys.readouterr().err
    assert sorted((entry.name, entry.read_bytes()) for entry in path.glob("out/*")) == before


def test_links_are_not_followed(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_bytes(b"{}")
    (path / "in" / "request.json").symlink_to(elsewhere)
    assert main(["validate", "--job", str(path)]) == 0
    assert "symlink" in json.loads((path / "out" / "validate.json").read_bytes())["detail"]["reason"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PeftError("no"), {"error": "PeftError", "reason": "no", "rule": "peft"}),
        (DocumentError("no", rule="pins"), {"error": "DocumentError", "reason": "no", "rule": "pins"}),
        (MemoryError(), {"error": "MemoryError", "reason": ""}),
        (ValueError("a\nb\x1b[31m\ud800"), {"error": "ValueError", "reason": r"a\nb\x1b[31m\ud800"}),
        (OSError(28, "No space left on device"), {"error": "OSError"}),
        (RuntimeError("x" * 100_000), {"error": "RuntimeError"}),
    ],
)
def test_every_error_fits_into_an_observation(error: Exception, told: dict[str, str], path: Path) -> None:
    def work(_: Job) -> dict[str, Any]:
        raise error

    with Job(path, now_unix_ms=lambda: 5) as job:
        found = observe(Phase.TRAIN, job.facts, lambda: work(job), now_unix_ms=job.now_unix_ms)
    assert not found.succeeded
    assert found.completed_unix_ms == 5
    assert parse_observation(found.encode()) == found
    assert told.items() <= dict(found.detail).items()


def test_a_detail_that_does_not_fit_is_a_failure_and_not_a_silence(path: Path) -> None:
    with Job(path, now_unix_ms=lambda: 5) as job:
        found = observe(Phase.SCAN, job.facts, lambda: {"text": "x" * 6000}, now_unix_ms=job.now_unix_ms)
    assert (found.succeeded, found.detail["error"]) == (False, "DocumentError")


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_not_finite_ends_it(loss: float) -> None:
    with pytest.raises(TrainingError, match="the loss of step 3 is"):
        LossLog().add(3, loss)


@pytest.mark.parametrize("steps", [1, 12, 32, 33, 1024, 1025, 99_999, 100_000])
def test_losses_fit_whatever_the_number_of_steps(steps: int) -> None:
    log = LossLog()
    interval = logging_interval(steps)
    logged = range(interval, steps + 1, interval)
    for step in logged:
        log.add(step, 1234.567_891_234)
    told = log.told()
    assert told == sorted(told)
    assert len(told) <= 32
    assert (told[0][0], told[-1][0]) == (logged[0], logged[-1])
    assert json.loads(spell(log.members()))["steps"] == list(logged)
    # With room for everything else that a training tells.
    assert len(spell({"losses": told})) < max_detail_bytes(Phase.TRAIN) / 2


@pytest.mark.parametrize(("stack", "tensors"), [(QUALIFIED_STACK, 273), (tiny_stack(), 21)])
def test_tensors_of_a_base_model(stack: Any, tensors: int) -> None:
    found = base_tensors(stack.geometry)
    assert len(found) == tensors
    # An adapter's matrices fit to the weights that they change.
    for name, (rows, columns) in adapter_tensors(stack.geometry, 2).items():
        module = name.removeprefix("base_model.model.").partition(".lora_")[0]
        outputs, inputs = found[f"{module}.weight"]
        assert (rows, columns) in {(2, inputs), (outputs, 2)}
