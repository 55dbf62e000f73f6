"""One registry, two tools: the published Python client and ours read what the other wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from peft_support import root, snapshot
from published_client import JOB, Published, cohesix_client, cohesix_errors
from registry_support import add_model

from ticket_agent.peft.control import Control, Progress, commit, decide, read_control, roll_forward
from ticket_agent.peft.gc import collect
from ticket_agent.peft.locks import RootLock
from ticket_agent.peft.manifest import Manifest, parse, render
from ticket_agent.peft.registry import Registry
from ticket_agent.peft.verify import require_intact, verify

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def published(tmp_path: Path) -> Published:
    found = Published(tmp_path)
    found.import_model("m1")
    found.import_model("m2", metrics=False)
    return found


def state(registry: Path) -> Control:
    with root(registry) as opened:
        return read_control(opened)


def test_its_registry_is_read_and_verified(published: Published) -> None:
    published.activate("m1")
    published.activate("m2")
    before = snapshot(published.registry)
    with root(published.registry) as opened, Registry.open(opened) as registry:
        first, second = registry.contents().models
        assert [verdict.file for verdict in verify(registry) if not verdict.ok] == []
        assert require_intact(registry, "m1").manifest == first.manifest
    assert isinstance(first.manifest, Manifest)
    assert (first.manifest.job, first.manifest.base, first.rank) == (JOB, "vision-base-v1", 8)
    assert first.manifest.metrics is not None
    assert isinstance(second.manifest, Manifest)
    assert (second.manifest.metrics, second.manifest.newest) == (None, False)
    assert state(published.registry) == Control(pointer="m2", current="m2", previous="m1")
    assert snapshot(published.registry) == before


@pytest.mark.parametrize("model", ["m1", "m2"])
def test_its_manifests_are_written_back_byte_for_byte(published: Published, model: str) -> None:
    data = (published.registry / "available" / model / "manifest.toml").read_bytes()
    manifest = parse(data)
    assert isinstance(manifest, Manifest)
    assert render(manifest) == data


def test_its_control_files_are_read_at_every_stage(published: Published) -> None:
    stages = []
    published.activate("m1")
    stages.append(state(published.registry))
    published.activate("m2")
    published.rollback()
    stages.append(state(published.registry))
    published.activate("m1")
    stages.append(state(published.registry))
    assert stages == [
        Control(pointer="m1", current="m1"),
        Control(pointer="m1", current="m1", previous="m2"),
        Control(pointer="m1", current="m1", previous="m1"),
    ]


def test_it_goes_on_from_a_commit_of_ours(published: Published) -> None:
    before, after = Control(), Control(pointer="m1", current="m1")
    then = Control(pointer="m2", current="m2", previous="m1")
    with root(published.registry) as opened:
        commit(opened, before, after)
        commit(opened, after, then)
    published.rollback()
    assert state(published.registry) == Control(pointer="m1", current="m1", previous="m2")
    published.activate("m2")
    assert state(published.registry) == then


def test_it_activates_a_model_of_ours(published: Published) -> None:
    add_model(published.registry, "ours")
    published.activate("ours")
    assert state(published.registry).pointer == "ours"


def test_the_commit_that_it_calls_irreconcilable_is_finished_from_our_record(published: Published) -> None:
    published.activate("m1")
    before = state(published.registry)
    after = Control(pointer="m2", current="m2", previous="m1")
    (published.registry / "active_state.toml").write_text('current = "m2"\nprevious = "m1"\n')
    with pytest.raises(cohesix_errors.CohesixError, match="reconcile the interrupted commit"):
        published.activate("m2")
    with root(published.registry) as opened:
        assert roll_forward(opened, before, after).progress is Progress.HALF
    assert decide(before, after, state(published.registry)).progress is Progress.APPLIED
    published.rollback()
    assert state(published.registry).pointer == "m1"


def test_what_its_interrupted_import_leaves_goes(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(path: Path, data: bytes) -> None:
        path.with_suffix(path.suffix + ".partial").write_bytes(data)
        raise Killed

    monkeypatch.setattr(cohesix_client, "write_atomic", killed)
    with pytest.raises(Killed):
        published.import_model("m3")
    assert (published.registry / "available" / "m3" / "manifest.toml.partial").exists()
    with root(published.registry) as opened:
        removals = collect(opened, RootLock.REGISTRY, now_ms=2**53)
    (only,) = removals
    assert (only.choice.leftover.path, only.choice.stays, only.problem) == (("available", "m3"), None, None)
    assert sorted(path.name for path in (published.registry / "available").iterdir()) == ["m1", "m2"]
