from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from cli_support import contents
from release_host import HOW, ReleaseHost, put
from release_scene import RESCUE, SCENES, TICKET, Scene

from ticket_agent.peft.errors import RootRefusedError
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.layout import OperationFiles
from ticket_agent.peft.release.markers import Blocker
from ticket_agent.peft.release.phases import Phase, ReleaseState, forward_phases
from ticket_agent.peft.release.release_reader import ReleaseReader
from ticket_agent.peft.release.release_view import ReleaseView, Stage, Standing
from ticket_agent.peft.release.request import Entry
from ticket_agent.peft.release.spelled import spell

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def host(tmp_path: Path) -> ReleaseHost:
    return ReleaseHost(tmp_path)


def view(host: ReleaseHost, scene: Scene, **options: int) -> ReleaseView:
    with ReleaseReader(host.place) as reader:
        return reader.release(scene.operation_id, **options)


@pytest.mark.parametrize("name", SCENES)
def test_a_release_that_ended_is_told_as_it_went(host: ReleaseHost, name: str) -> None:
    scene = host.scene(**HOW[name])
    host.end(scene)
    found = view(host, scene)
    assert (found.stage, found.state, found.end) == (Stage.ENDED, scene.state, scene.record)
    assert found.bundle
    assert found.problems == ()
    assert found.request == scene.request
    standings = {
        entry.phase: Standing.LOST
        if entry.result is None
        else (Standing.SUCCEEDED if entry.result.succeeded else Standing.FAILED)
        for entry in scene.phases
    }
    wanted = [*forward_phases(scene.entry), *([Phase.ROLLBACK] if scene.rolled_back is not None else [])]
    assert [seen.phase for seen in found.phases] == wanted
    for each in found.phases:
        assert each.standing is standings.get(each.phase, Standing.NOT_STARTED)
    for entry in scene.phases:
        seen = found.phase(entry.phase)
        assert seen is not None
        assert seen.observation == entry.result
        if entry.result is not None:
            assert seen.ended_unix_ms == entry.result.completed_unix_ms
            assert seen.started_unix_ms == scene.time_of(entry.phase) - 900
        if entry.result is not None and not entry.result.succeeded:
            assert seen.reason == "it did not work"


@pytest.mark.parametrize("phase", forward_phases(Entry.TRAIN))
def test_a_phase_that_runs_is_running_and_one_that_is_lost_is_lost(host: ReleaseHost, phase: Phase) -> None:
    scene = host.scene(entry=Entry.TRAIN, stops_before=phase, state=ReleaseState.RUNNING)
    files = host.play(scene)
    with host.running(files, phase, at=7, lines=b"one\ntwo\rthree\x1b\n"):
        found = view(host, scene, log_lines=2)
        assert found.stage is Stage.RUNNING
        assert found.current is not None
        assert (found.current.phase, found.current.standing) == (phase, Standing.RUNNING)
        assert found.current.started_unix_ms == 7
        assert found.stopped is None
        assert (found.log_phase, found.log) == (phase, ("two", "three\\x1b"))
        assert view(host, scene, log_lines=0).log == ()
    found = view(host, scene)
    assert found.stopped is not None
    assert (found.stopped.phase, found.stopped.standing) == (phase, Standing.LOST)
    assert found.stopped.reason == "its process and its supervisor are gone"
    lost_before_load = phase in forward_phases(Entry.TRAIN)[:5]
    assert found.stage is (Stage.AMBIGUOUS if lost_before_load else Stage.RUNNING)


def test_an_observation_counts_while_its_process_is_still_there(host: ReleaseHost) -> None:
    scene = host.scene(stops_before=Phase.EVALUATE, state=ReleaseState.RUNNING)
    files = host.begin(scene)
    with host.running(files, Phase.VALIDATE):
        put(files.observation(Phase.VALIDATE), scene.observation(Phase.VALIDATE).encode())
        current = view(host, scene).current
    assert current is not None
    assert current.standing is Standing.SUCCEEDED


def test_one_that_has_not_begun_is_pending(host: ReleaseHost) -> None:
    scene = host.scene()
    assert view(host, scene).stage is Stage.PENDING
    assert view(host, scene).phases == ()
    with ReleaseReader(host.place) as reader, pytest.raises(DocumentError):
        reader.release("../objects")


def test_one_whose_evidence_is_not_kept_yet_has_not_ended(host: ReleaseHost) -> None:
    scene = host.scene()
    host.end(scene, conclude=False)
    assert view(host, scene).stage is Stage.RUNNING
    assert view(host, scene).state is ReleaseState.SUCCEEDED


@pytest.mark.parametrize(
    ("ended", "stage", "state"),
    [
        (None, Stage.RUNNING, None),
        (ReleaseState.RECOVERED_FAILURE, Stage.ENDED, ReleaseState.RECOVERED_FAILURE),
        (ReleaseState.ROLLBACK_FAILED, Stage.ENDED, ReleaseState.ROLLBACK_FAILED),
    ],
)
def test_a_recovery_is_what_counts(
    host: ReleaseHost, ended: ReleaseState | None, stage: Stage, state: ReleaseState | None
) -> None:
    lost = host.scene(**HOW["rescued"] | {"rolled_back": None, "state": "ambiguous", "recovery": None})
    host.play(lost)
    assert view(host, lost).stage is Stage.AMBIGUOUS
    rescued = replace(lost, rolled_back=True, recovery=RESCUE, state=ended or ReleaseState.RUNNING)
    files = OperationFiles(root=host.place, operation_id=lost.operation_id, recovery="ticket-2")
    put(files.path / "begun.json", host.begun(rescued).encode())
    if ended is not None:
        put(files.observation(Phase.ROLLBACK), rescued.observation(Phase.ROLLBACK).encode())
        put(files.path / "release.json", spell(rescued.record.members()))
        with host.root() as root, root.locked():
            root.control.disclaim(host.owner(lost))
    found = view(host, lost)
    assert (found.stage, found.state) == (stage, state)
    (attempt,) = found.attempts
    assert attempt.ticket_id == "ticket-2"
    assert attempt.rollback.standing is (Standing.NOT_STARTED if ended is None else Standing.SUCCEEDED)
    assert found.begun is not None
    assert found.begun.authority == TICKET


def test_what_is_damaged_is_told_and_the_rest_is_shown(host: ReleaseHost) -> None:
    scene = host.scene()
    files = host.end(scene)
    put(files.path / "begun.json", b"{}")
    put(files.observation(Phase.SCAN), scene.observation(Phase.STAGE).encode())
    put(files.run(Phase.STAGE) / "exit.json", b"damaged")
    put(host.place / "accepted.json", b"damaged")
    found = view(host, scene)
    assert [line for line in found.problems if "begun.json" in line]
    assert {seen.phase for seen in found.phases if seen.standing is Standing.UNKNOWN} == {
        Phase.SCAN,
        Phase.STAGE,
    }
    assert found.end == scene.record
    with ReleaseReader(host.place) as reader:
        deployment = reader.deployment()
    assert deployment.accepted is None
    assert "accepted" in deployment.problems[0] or "JSON" in deployment.problems[0]
    assert deployment.runtime is not None


def test_the_deployment_is_told_with_owner_and_blocker(host: ReleaseHost) -> None:
    with ReleaseReader(host.place) as reader:
        assert reader.deployment().members() == {
            "accepted": host.bare.members(),
            "serving": None,
            "owner": None,
            "blocked_by": None,
            "blocked_because": None,
            "problems": [],
        }
    scene = host.scene(**HOW["rollback failed"])
    host.end(scene)
    owner = host.owner(scene)
    with host.root() as root, root.locked():
        root.control.block(
            Blocker(
                operation_id=owner.operation_id,
                request_sha256=owner.request_sha256,
                reason="the server did not come back",
                since_unix_ms=1,
            )
        )
    with ReleaseReader(host.place) as reader:
        members = reader.deployment().members()
        assert reader.operations() == [scene.operation_id]
    assert (members["owner"], members["blocked_by"]) == (scene.operation_id, scene.operation_id)
    assert members["blocked_because"] == "the server did not come back"
    found = view(host, scene)
    assert (found.stage, found.owns_root, found.blocks_root) == (Stage.ENDED, True, True)


def test_looking_changes_nothing_and_needs_no_lock(host: ReleaseHost) -> None:
    scene = host.scene(**HOW["trained"])
    host.end(scene)
    before = contents(host.place)
    with host.root() as root, root.locked():
        assert view(host, scene).members()["state"] == "succeeded"
    assert contents(host.place) == before


def test_there_must_be_a_root(tmp_path: Path) -> None:
    with pytest.raises(RootRefusedError):
        ReleaseReader(tmp_path / "absent")


def test_a_program_that_could_not_be_started_is_no_lost_phase(host: ReleaseHost) -> None:
    scene = host.scene(stops_before=Phase.EVALUATE, state=ReleaseState.RUNNING)
    files = host.play(scene)
    host.started(files, Phase.EVALUATE, ended=True)
    run = files.run(Phase.EVALUATE) / "exit.json"
    told = run.read_bytes().replace(b'"exited","code":0', b'"not-started","code":null')
    put(run, told.replace(b'"error":null', b'"error":"no such interpreter"'))
    found = view(host, scene)
    assert found.stopped is not None
    assert (found.stopped.standing, found.stopped.reason) == (
        Standing.FAILED,
        "it could not be started: no such interpreter",
    )
    assert found.stage is Stage.RUNNING
