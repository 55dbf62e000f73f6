"""Each control phase on a real root with real server processes: what it leaves, and what it refuses."""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from control_scene import NEW, OLD, OPERATION, ControlScene, now, scene, slow_to_die

from ticket_agent.peft.release.bundle import ADAPTER_CONFIG, ADAPTER_WEIGHTS, parse_bundle
from ticket_agent.peft.release.confine import Unconfined
from ticket_agent.peft.release.control import main
from ticket_agent.peft.release.launcher import ConfinedLauncher
from ticket_agent.peft.release.observation import parse_observation
from ticket_agent.peft.release.phase_command import PhaseCommand
from ticket_agent.peft.release.phases import Phase
from ticket_agent.peft.release.request import Entry
from ticket_agent.peft.release.running_phase import Finished
from ticket_agent.peft.release.serving_pointer import ServingPointer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


STOP_S = 30.0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ControlScene]:
    """The incumbent serves."""
    with scene(tmp_path) as made:
        made.point(made.start_old())
        made.ready(OLD)
        yield made


def test_a_release_goes_all_the_way(served: ControlScene, capsys: pytest.CaptureFixture[str]) -> None:
    with served.somebody_asks() as caller:
        staged = served.run(Phase.STAGE)
        assert staged.succeeded, staged.detail
        assert staged.detail["serving_bundle_sha256"] == served.new_bundle
        served.start_new()
        for phase in (Phase.LOAD, Phase.CANARY, Phase.PROMOTE):
            found = served.run(phase)
            assert found.succeeded, found.detail
    with capsys.disabled():
        print(f"\n{len(caller.answers)} answers, longest gap {caller.longest_gap_ms():.0f} ms")
    assert caller.failures == []
    assert found.detail["incumbent_gone"] is True
    assert served.deployed() == ("g2", 2, True, True)
    assert served.server(OLD).running() is False
    assert served.server(NEW).running() is True


def test_a_rollback_takes_a_whole_promotion_back(served: ControlScene) -> None:
    served.run(Phase.STAGE)
    served.start_new()
    with served.somebody_asks() as caller:
        caller.hear(1)
        for phase in (Phase.LOAD, Phase.CANARY, Phase.PROMOTE):
            assert served.run(phase).succeeded
        caller.hear(2)
        served.start_old("again.server")
        found = served.run(Phase.ROLLBACK, incumbent="again.server")
        caller.hear(1)
    assert found.succeeded, found.detail
    assert caller.failures == []
    assert caller.generations() == [1, 2]
    assert served.deployed() == ("g1", 1, True, True)
    assert served.server(NEW).running() is False
    assert found.detail["candidate_gone"] is True
    assert found.detail["accepted"] == served.baseline.members()
    again = served.run(Phase.ROLLBACK, incumbent="again.server")
    assert again.succeeded, again.detail


# -- stage -------------------------------------------------------------------------------------------------


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[ControlScene]:
    """No server runs."""
    with scene(tmp_path) as made:
        yield made


def trained(made: ControlScene, extra: str | None = None, weights: bytes = b"weights 2") -> None:
    """What ``train`` leaves."""
    folder = made.path / "operations" / OPERATION / "train" / "out" / "adapter"
    folder.mkdir(parents=True)
    (folder / ADAPTER_CONFIG).write_bytes(b"{}")
    (folder / ADAPTER_WEIGHTS).write_bytes(weights)
    if extra is not None:
        (folder / extra).write_bytes(b"{}")


def test_a_trained_adapter_becomes_a_bundle(tmp_path: Path) -> None:
    with scene(tmp_path, entry=Entry.TRAIN) as made:
        trained(made)
        first, second = made.run(Phase.STAGE), made.run(Phase.STAGE)
        assert first.succeeded, first.detail
        assert second.detail["serving_bundle_sha256"] == first.detail["serving_bundle_sha256"]
        folder = Path(first.detail["path"])
        assert sorted(path.name for path in folder.iterdir()) == [ADAPTER_CONFIG, ADAPTER_WEIGHTS]
        assert (folder / ADAPTER_WEIGHTS).read_bytes() == b"weights 2"
        manifest = parse_bundle(made.root.objects.load(first.detail["serving_bundle_sha256"]))
        assert (manifest.source, manifest.license_ref) == ("ticket-agent/release-one", "Apache-2.0")


@pytest.mark.parametrize(
    ("left", "rule"),
    [
        ({"weights": b"weights 3"}, "candidate-changed-after-evaluation"),
        ({"extra": "README.md"}, "candidate-changed-after-evaluation"),
        ({"extra": "more.bin"}, "candidate-changed-after-evaluation"),
        (None, "peft-root"),
    ],
)
def test_another_trained_adapter_is_not_staged(
    left: dict[str, Any] | None, rule: str, tmp_path: Path
) -> None:
    with scene(tmp_path, entry=Entry.TRAIN) as made:
        if left is not None:
            trained(made, **left)
        found = made.run(Phase.STAGE)
        assert (found.succeeded, found.detail["rule"]) == (False, rule)
        assert not Path(made.root.bundle_path(made.new_bundle)).exists()


def owned_by_another(made: ControlScene) -> None:
    other = replace(made.owner, operation_id="release-two")
    with made.root.locked():
        made.root.control.disclaim(made.owner)
        made.root.control.claim(other)


def object_lost(made: ControlScene) -> None:
    (made.path / "objects" / made.new_bundle).unlink()


def object_changed(made: ControlScene) -> None:
    manifest = parse_bundle(made.root.objects.load(made.new_bundle))
    (made.path / "objects" / manifest.file(ADAPTER_WEIGHTS)).write_bytes(b"weights X")


def nothing(_: ControlScene) -> None:
    pass


@pytest.mark.parametrize(
    ("spoil", "facts", "rule"),
    [
        (nothing, {"candidate_sha256": None}, "control-job"),
        (nothing, {"candidate_sha256": "0" * 64}, "candidate-changed-after-evaluation"),
        (nothing, {"expires_unix_ms": 1}, "release-authority-expired"),
        (owned_by_another, {}, "release-owned"),
        (object_lost, {}, "peft-absent"),
        (object_changed, {}, "release-object"),
    ],
)
def test_what_is_not_the_candidate_is_not_staged(
    spoil: Callable[[ControlScene], None], facts: dict[str, Any], rule: str, quiet: ControlScene
) -> None:
    spoil(quiet)
    found = quiet.run(Phase.STAGE, **facts)
    assert (found.succeeded, found.detail["rule"]) == (False, rule)
    assert not Path(quiet.root.bundle_path(quiet.new_bundle)).exists()


# -- load --------------------------------------------------------------------------------------------------


def test_load_tells_what_it_found(quiet: ControlScene) -> None:
    server = quiet.start_new()
    found = quiet.run(Phase.LOAD)
    assert found.succeeded, found.detail
    assert found.detail["name"] == server.instance.name
    assert found.detail["port"] == server.instance.port
    assert (found.detail["matched_tensors"], found.detail["bundle_sha256"]) == (8, quiet.new_bundle)


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ("ends-at-once", "serving-unreachable"),
        ("never-ready", "serving-timeout"),
        ("half-matched", "load-tensors"),
        ("other-list", "serving-name"),
        ("more-names", "serving-name"),
        ("open", "serving-answer"),
    ],
)
def test_a_candidate_that_is_not_as_it_must_be_is_not_loaded(
    fault: str, rule: str, quiet: ControlScene
) -> None:
    quiet.config = replace(quiet.config, ready_s=0.5 if fault == "never-ready" else 60.0)
    quiet.fault(2, fault)
    quiet.start_new()
    found = quiet.run(Phase.LOAD)
    assert (found.succeeded, found.detail["rule"]) == (False, rule)
    if fault == "ends-at-once":
        assert found.detail["log"] == ["out of memory; the token was (token)"]
        assert "ended by itself with code 1" in found.detail["reason"]


@pytest.mark.parametrize(
    ("facts", "rule"),
    [
        ({"candidate": None}, "control-job"),
        ({"candidate": "nobody.server"}, "control-server"),
        ({"candidate": OLD}, "candidate-changed-after-evaluation"),
        ({"candidate_bundle_sha256": "0" * 64}, "candidate-changed-after-evaluation"),
        ({"candidate_sha256": "0" * 64}, "candidate-changed-after-evaluation"),
        ({"expires_unix_ms": 1}, "release-authority-expired"),
    ],
)
def test_what_was_not_staged_is_not_loaded(facts: dict[str, Any], rule: str, served: ControlScene) -> None:
    served.start_new()
    found = served.run(Phase.LOAD, **facts)
    assert (found.succeeded, found.detail["rule"]) == (False, rule)


# -- canary ------------------------------------------------------------------------------------------------


@pytest.fixture
def loaded(served: ControlScene) -> ControlScene:
    """Both serve."""
    served.start_new()
    served.ready(NEW)
    return served


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ("base-output", "canary-output"),
        ("stale-cache", "canary-output"),
        ("wrong-under-load", "canary-output"),
        ("wrong-name", "serving-name"),
        ("crash-on-first-use", "serving-unreachable"),
    ],
)
def test_a_candidate_that_answers_in_another_way_fails_its_canary(
    fault: str, rule: str, loaded: ControlScene
) -> None:
    loaded.fault(2, fault)
    found = loaded.run(Phase.CANARY)
    assert (found.succeeded, found.detail["rule"]) == (False, rule)
    assert found.detail["healthy"] is False
    assert loaded.deployed() == ("g1", 1, True, True)


def test_a_canary_needs_what_was_evaluated(loaded: ControlScene) -> None:
    none = loaded.run(Phase.CANARY, evaluate_out=None, behaviour_sha256=None)
    assert none.detail["rule"] == "control-job"
    other = loaded.run(Phase.CANARY, behaviour_sha256="0" * 64)
    assert "the evaluation left 000" in other.detail["reason"]


@pytest.mark.parametrize(("fault", "rule"), [(None, None), ("base-output", "canary-output")])
def test_a_server_that_does_not_count_tensors(fault: str | None, rule: str | None, tmp_path: Path) -> None:
    with scene(tmp_path, backend="vllm-local", generation=0) as made:
        made.point(made.start_old())
        made.start_new()
        made.ready(OLD, NEW)
        assert made.run(Phase.LOAD).detail["matched_tensors"] is None
        if fault is not None:
            made.fault(2 if made.generation else 1, fault)
        found = made.run(Phase.CANARY)
        assert found.detail.get("rule") == rule, found.detail
        if fault is None:
            assert found.detail["effect"]["changed"] == {"base model": 4}
            assert made.run(Phase.PROMOTE).succeeded
            assert made.deployed() == ("g1", 1, True, True)


# -- promote -----------------------------------------------------------------------------------------------


def newer_deployed(made: ControlScene) -> None:
    with made.root.locked():
        made.root.control.promote(
            made.baseline, replace(made.promoted, adapter_sha256="9" * 64, served_artifact_sha256="9" * 64)
        )


def pointer_elsewhere(made: ControlScene) -> None:
    pointer = ServingPointer.of(made.server(OLD).instance)
    with made.root.locked():
        made.root.pointer.move(pointer, replace(pointer, port=pointer.port + 1))


@pytest.mark.parametrize(
    ("spoil", "facts", "rule"),
    [
        (newer_deployed, {}, "release-accepted"),
        (pointer_elsewhere, {}, "serving-pointer"),
        (nothing, {"lives_ms": 1500}, "release-authority-expired"),
        (nothing, {"incumbent": NEW}, "control-server"),
        (nothing, {"incumbent": None}, "control-job"),
    ],
)
def test_a_promotion_that_may_not_begin_changes_nothing(
    spoil: Callable[[ControlScene], None], facts: dict[str, Any], rule: str, loaded: ControlScene
) -> None:
    spoil(loaded)
    if "lives_ms" in facts:
        facts = {"expires_unix_ms": now() + facts["lives_ms"]}
    before = (loaded.root.control.accepted(), loaded.root.control.runtime(), loaded.root.pointer.read())
    found = loaded.run(Phase.PROMOTE, **facts)
    assert (found.succeeded, found.detail["rule"]) == (False, rule)
    after = (loaded.root.control.accepted(), loaded.root.control.runtime(), loaded.root.pointer.read())
    assert after == before
    assert loaded.server(OLD).usable()
    assert loaded.server(NEW).usable()


def test_somebody_elses_root_is_not_switched(loaded: ControlScene) -> None:
    owned_by_another(loaded)
    found = loaded.run(Phase.PROMOTE)
    assert not found.succeeded
    assert loaded.deployed() == ("g1", 1, True, True)
    assert loaded.server(OLD).usable()


@pytest.mark.parametrize(
    ("what", "rule"),
    [
        ("killed", "serving-unreachable"),
        ("other-list", "serving-name"),
        ("open", "serving-answer"),
    ],
)
def test_nobody_is_sent_to_a_candidate_that_failed_since_its_canary(
    what: str, rule: str, loaded: ControlScene
) -> None:
    if what == "killed":
        loaded.server(NEW).phase.stop(timeout_s=STOP_S)
    else:
        loaded.fault(2, what)
    with loaded.somebody_asks() as caller:
        found = loaded.run(Phase.PROMOTE)
    assert (found.succeeded, found.detail["rule"]) == (False, rule)
    assert "ended" not in found.detail, "the pointer was moved"
    assert caller.failures == []
    assert set(caller.generations()) <= {1}
    assert loaded.deployed() == ("g1", 1, True, True)
    assert loaded.server(OLD).usable()


def restored(made: ControlScene) -> None:
    assert made.deployed() == ("g1", 1, True, True)
    assert made.server(NEW).running() is False
    assert made.server(OLD).usable()


def test_a_candidate_that_fails_after_the_switch_is_taken_back(loaded: ControlScene) -> None:
    loaded.fault(2, "base-output")
    with loaded.somebody_asks() as caller:
        found = loaded.run(Phase.PROMOTE)
    assert (found.succeeded, found.detail["rule"]) == (False, "canary-output")
    assert found.detail["ended"] == "restored"
    # What it answered wrongly in between is what it was taken back for; nobody was turned away.
    assert [text for text in caller.failures if not text.startswith("generation 2 says")] == []
    restored(loaded)
    assert loaded.run(Phase.ROLLBACK).succeeded


@pytest.mark.parametrize(
    ("what", "rules"),
    [
        ("base-output", {"soak-output"}),
        # Found by the look at its process, or by a question before, after or within whose answer it died.
        ("killed", {"soak-identity", "serving-unreachable", "serving-answer"}),
        ("open", {"serving-answer"}),
    ],
)
def test_a_candidate_that_fails_while_it_is_watched_is_taken_back(
    what: str, rules: set[str], loaded: ControlScene
) -> None:
    loaded.config = replace(loaded.config, soak_s=20.0)

    def spoil() -> None:
        while loaded.root.control.accepted() != loaded.promoted:
            time.sleep(0.01)
        if what == "killed":
            loaded.server(NEW).phase.stop(timeout_s=STOP_S)
        else:
            loaded.fault(2, what)

    spoiler = threading.Thread(target=spoil)
    spoiler.start()
    found = loaded.run(Phase.PROMOTE)
    spoiler.join()
    assert not found.succeeded
    assert found.detail["rule"] in rules, found.detail
    assert found.detail["soak"]["looks"] >= 1
    restored(loaded)


def test_an_old_server_that_does_not_end_by_itself_is_ended(loaded: ControlScene) -> None:
    loaded.config = replace(loaded.config, gone_s=0.3)
    loaded.fault(1, "unstoppable")
    found = loaded.run(Phase.PROMOTE)
    assert found.succeeded, found.detail
    assert found.detail["incumbent_gone"] is True
    assert loaded.server(OLD).running() is False


# -- rollback ----------------------------------------------------------------------------------------------


def test_a_rollback_leaves_what_is_newer(loaded: ControlScene) -> None:
    newer_deployed(loaded)
    pointer = loaded.root.pointer.read()
    found = loaded.run(Phase.ROLLBACK)
    assert (found.succeeded, found.detail["rule"]) == (False, "release-accepted")
    assert loaded.root.pointer.read() == pointer
    assert loaded.server(NEW).usable()


def test_a_rollback_leaves_a_pointer_that_is_not_of_this_release(loaded: ControlScene) -> None:
    pointer = ServingPointer.of(loaded.server(OLD).instance)
    other = replace(pointer, name="assistant-g7-000000000000", generation=7)
    with loaded.root.locked():
        loaded.root.pointer.move(pointer, other)
    found = loaded.run(Phase.ROLLBACK)
    assert (found.succeeded, found.detail["rule"]) == (False, "serving-pointer")
    assert loaded.root.pointer.read() == other


@pytest.mark.parametrize(
    ("fault", "facts", "rule"),
    [
        ("base-output", {}, "canary-output"),
        ("other-list", {}, "serving-name"),
        (None, {"expires_unix_ms": 1}, "release-authority-expired"),
        (None, {"incumbent": "nobody.server"}, "control-server"),
        (None, {"incumbent": None}, "control-job"),
    ],
)
def test_a_rollback_without_its_incumbent_leaves_the_candidate_alone(
    fault: str | None, facts: dict[str, Any], rule: str, loaded: ControlScene
) -> None:
    if fault is not None:
        loaded.fault(1, fault)
    found = loaded.run(Phase.ROLLBACK, **facts)
    assert (found.succeeded, found.detail["rule"]) == (False, rule)
    assert loaded.server(NEW).usable()


def test_a_rollback_without_an_evaluation_takes_readiness_for_enough(loaded: ControlScene) -> None:
    loaded.fault(1, "base-output")
    changes = {"evaluate_out": None, "behaviour_sha256": None}
    found = loaded.run(Phase.ROLLBACK, candidate_sha256=None, candidate_bundle_sha256=None, **changes)
    assert found.succeeded, found.detail
    assert found.detail["canary"] is None
    restored(loaded)


@pytest.mark.parametrize("candidate", [None, "never.started"])
def test_a_rollback_of_what_never_ran(candidate: str | None, served: ControlScene) -> None:
    found = served.run(Phase.ROLLBACK, candidate=candidate)
    assert found.succeeded, found.detail
    assert found.detail["candidate_gone"] is True
    assert served.deployed() == ("g1", 1, True, True)


def test_an_unwilling_candidate_is_ended(loaded: ControlScene) -> None:
    loaded.config = replace(loaded.config, gone_s=0.3)
    loaded.fault(2, "unstoppable")
    found = loaded.run(Phase.ROLLBACK)
    assert found.succeeded, found.detail
    restored(loaded)


def test_a_candidate_that_takes_long_to_die_is_waited_for(loaded: ControlScene) -> None:
    """One with much memory, say: it dies, but not within the time that killing waits."""
    with slow_to_die() as dying:
        found = loaded.run(Phase.ROLLBACK)
    assert found.succeeded, found.detail
    assert len(dying) == 1
    restored(loaded)


def test_a_new_incumbent_may_have_the_port_of_the_dead_candidate(loaded: ControlScene) -> None:
    loaded.server(NEW).phase.stop(timeout_s=STOP_S)
    loaded.server(OLD).phase.stop(timeout_s=STOP_S)
    port = loaded.server(NEW).instance.port
    made = loaded.room.again(loaded.server(OLD), "again.server", port=port)
    old = loaded.server(OLD)
    loaded.room.start("again.server", made, backend=old.backend, caps=old.caps)
    found = loaded.run(Phase.ROLLBACK, incumbent="again.server")
    assert found.succeeded, found.detail
    assert loaded.deployed() == ("g1", 1, True, True)


# -- as processes ------------------------------------------------------------------------------------------


def test_a_phase_as_the_agent_runs_it(loaded: ControlScene) -> None:
    job = loaded.prepare(Phase.PROMOTE)
    command = PhaseCommand(
        launch_id="release-one.promote",
        argv=(sys.executable, "-I", "-m", "ticket_agent.peft.release.control", "promote", "--job", str(job)),
        run_dir=loaded.folder / "promote.run",
        working_dir=job,
        deadline_s=100,
    )
    phase = ConfinedLauncher(Unconfined()).start(command)
    state = phase.wait(100)
    assert isinstance(state, Finished)
    assert state.record.succeeded, phase.log().lines()
    assert phase.log().lines() == ["promote succeeded"]
    found = parse_observation((job / "out" / "promote.json").read_bytes())
    assert found.succeeded
    assert json.loads((job / "out" / "switch.json").read_bytes())["history"][-1] == ["old-gone", "done"]
    assert loaded.server(NEW).usable()
    assert main(["promote", "--job", str(job)]) == 1


@pytest.mark.parametrize("phase", ["stage", "load"])
def test_a_job_of_another_phase_or_of_none_leaves_nothing(phase: str, quiet: ControlScene) -> None:
    job = quiet.prepare(Phase.CANARY)
    assert main([phase, "--job", str(job)]) == 1
    (job / "in" / "control.json").write_bytes(b"{}")
    assert main(["canary", "--job", str(job)]) == 1
    assert list((job / "out").iterdir()) == []
