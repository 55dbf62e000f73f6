from __future__ import annotations

import fcntl
import os
import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from cli_support import contents
from peft_support import held_elsewhere
from private_roots import deaths
from release_host import HOW, ReleaseHost, adapter, put
from release_scene import SCENES, Scene, successor
from release_support import sha

from ticket_agent.peft.errors import LockHeldError, PeftError
from ticket_agent.peft.locks import RootLock
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.checkpoint import CheckpointManifest, encode_checkpoint
from ticket_agent.peft.release.gc_removal import Item, What
from ticket_agent.peft.release.inputs import encode_input, parse_input
from ticket_agent.peft.release.markers import Blocker
from ticket_agent.peft.release.phases import Phase
from ticket_agent.peft.release.profile import ProfileSchema
from ticket_agent.peft.release.release_gc import GcLimits, collect, survey
from ticket_agent.peft.release.request import Entry
from ticket_agent.peft.release.root_errors import RootBlockedError, RootOwnedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LIMITS = GcLimits(keep=1, older_than_s=3600)


@pytest.fixture
def host(tmp_path: Path) -> ReleaseHost:
    return ReleaseHost(tmp_path)


def age(host: ReleaseHost, *, seconds: int = 7200) -> None:
    """Everything in the root was changed long ago."""
    then = time.time() - seconds
    for path in host.place.rglob("*"):
        os.utime(path, (then, then), follow_symlinks=False)


def look(host: ReleaseHost, limits: GcLimits = LIMITS) -> list[Item]:
    return survey(host.config, limits, now_ms=time.time_ns() // 1_000_000)


def clean(host: ReleaseHost, limits: GcLimits = LIMITS) -> list[Item]:
    found: list[Item] = []
    collect(host.config, limits, now_ms=time.time_ns() // 1_000_000, told=found.append)
    return found


def going(items: list[Item], what: What) -> set[str]:
    return {item.name for item in items if item.what is what and item.stays is None}


def staying(items: list[Item]) -> dict[str, str | None]:
    return {item.name: item.stays for item in items if item.stays is not None}


def generations(host: ReleaseHost, count: int) -> list[Scene]:
    """That many releases that succeeded, one after the other, long ago."""
    made: list[Scene] = []
    baseline = host.bare
    for number in range(1, count + 1):
        scene = host.scene(f"g{number}", baseline=baseline)
        host.end(scene)
        baseline = successor(baseline, scene.candidate)
        made.append(scene)
    age(host)
    return made


def documents(scene: Scene) -> set[str]:
    """Objects that belong to one release of an adapter alone."""
    word = scene.operation_id.removeprefix("release-")
    bundle = scene.details[Phase.STAGE]["serving_bundle_sha256"]
    return {
        digest(scene.request_bytes),
        scene.input_sha256,
        bundle,
        *(digest(data) for data in adapter(word).values()),
    }


def objects(host: ReleaseHost) -> set[str]:
    return {path.name for path in (host.place / "objects").iterdir()}


def test_what_is_deployed_and_the_generations_before_it_stay(host: ReleaseHost) -> None:
    made = generations(host, 4)
    items = look(host)
    assert going(items, What.OPERATION) == {"release-g1", "release-g2"}
    assert staying(items) == {
        "release-g3": "deployed generation 3",
        "release-g4": "deployed generation 4",
    }
    gone = documents(made[0]) | documents(made[1])
    assert gone <= going(items, What.OBJECT)
    assert not going(items, What.OBJECT) & (documents(made[2]) | documents(made[3]) | {host.profile.base})
    assert going(items, What.BUNDLE) == {
        scene.details[Phase.STAGE]["serving_bundle_sha256"] for scene in made[:2]
    }


@pytest.mark.parametrize(("keep", "left"), [(0, 1), (1, 2), (3, 4), (9, 4)])
def test_as_many_generations_stay_as_were_asked_for(host: ReleaseHost, keep: int, left: int) -> None:
    generations(host, 4)
    items = clean(host, replace(LIMITS, keep=keep))
    assert len(staying(items)) == left
    assert len(list((host.place / "operations").iterdir())) == left


def test_it_removes_what_it_has_listed_and_nothing_else(host: ReleaseHost) -> None:
    made = generations(host, 3)
    before = contents(host.place)
    listed = look(host)
    assert contents(host.place) == before
    assert clean(host) == listed
    assert look(host) == [item for item in listed if item.stays is not None]
    removed = {item.name for item in listed if item.stays is None}
    for name in before.keys() - contents(host.place).keys():
        assert removed & set(name.split("/")), name
    with host.root() as root:
        for scene in made[1:]:
            root.materialise(scene.details[Phase.STAGE]["serving_bundle_sha256"])
            for name in documents(scene):
                root.objects.load(name)
    assert sum(item.bytes for item in listed if item.what is What.OBJECT) > 0
    assert host.config.evidence.is_dir()
    assert len(list(host.config.evidence.iterdir())) == 3


def test_failures_go_when_they_are_old_and_their_evidence_is_kept(host: ReleaseHost) -> None:
    bad = host.scene("bad", **HOW["regression"])
    host.end(bad)
    assert staying(look(host)) == {"release-bad": "is young"}
    age(host)
    assert going(look(host), What.OPERATION) == {"release-bad"}
    for path in host.config.evidence.iterdir():
        path.unlink()
    (reason,) = staying(look(host)).values()
    assert reason is not None
    assert reason.startswith("its evidence is not kept: ")
    assert not going(look(host), What.OBJECT) & documents(bad)


def test_prepared_requests_stay_with_all_they_name_while_they_are_young(host: ReleaseHost) -> None:
    prepared = host.scene("next")
    age(host)
    assert documents(prepared) <= going(look(host), What.OBJECT)
    os.utime(host.place / "objects" / digest(prepared.request_bytes))
    items = look(host)
    assert not documents(prepared) & going(items, What.OBJECT)
    assert going(items, What.BUNDLE) == set()
    assert host.profile.train_data in objects(host) - going(items, What.OBJECT)


def test_an_operation_whose_checkpoint_is_named_stays(host: ReleaseHost) -> None:
    source = host.scene("source", **HOW["training failed"])
    host.end(source)
    manifest = CheckpointManifest(
        source_operation="release-source",
        request_sha256=digest(source.request_bytes),
        profile_sha256=source.profile_sha256,
        input_sha256=source.input_sha256,
        step=8,
        files=tuple(
            (name, sha(name))
            for name in (
                "adapter_model.safetensors",
                "adapter_config.json",
                "optimizer.pt",
                "scheduler.pt",
                "rng_state.pth",
                "trainer_state.json",
            )
        ),
    )
    resumed = host.scene("resumed", entry=Entry.TRAIN)
    with host.root() as root, root.locked():
        checkpoint = root.objects.store(encode_checkpoint(manifest))
        value = parse_input(
            root.objects.load(resumed.input_sha256), entry=Entry.TRAIN, schema=ProfileSchema.OURS
        )
        named = root.objects.store(encode_input(replace(value, checkpoint=checkpoint)))
    resumed = replace(resumed, input_sha256=named)
    with host.root() as root, root.locked():
        root.objects.store(resumed.request_bytes)
    age(host)
    assert going(look(host), What.OPERATION) == {"release-source"}
    os.utime(host.place / "objects" / digest(resumed.request_bytes))
    items = look(host)
    assert staying(items) == {"release-source": "another release goes on from its checkpoint"}
    assert not {checkpoint, digest(source.request_bytes)} & going(items, What.OBJECT)


def _owned(host: ReleaseHost) -> None:
    host.begin(host.scene("busy"))


def _blocked(host: ReleaseHost) -> None:
    owner = host.owner(host.scene("stuck"))
    with host.root() as root, root.locked():
        root.control.block(
            Blocker(
                operation_id=owner.operation_id,
                request_sha256=owner.request_sha256,
                reason="no",
                since_unix_ms=1,
            )
        )


def _damaged(name: str) -> Callable[[ReleaseHost], None]:
    return lambda host: put(host.place / name, b"damaged")


@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        (_owned, RootOwnedError, "release release-busy is not finished"),
        (_blocked, RootBlockedError, "rollback of release release-stuck failed"),
        (_damaged("active-release.json"), RootBlockedError, "what is needed is not known"),
        (_damaged("release-blocked.json"), RootBlockedError, "what is needed is not known"),
        (_damaged("accepted.json"), RootBlockedError, "what is needed is not known"),
        (_damaged("runtime.json"), RootBlockedError, "what is needed is not known"),
        (_damaged("serving.json"), RootBlockedError, "what is needed is not known"),
    ],
)
def test_it_is_refused_while_it_is_not_known_what_is_needed(
    host: ReleaseHost, state: Callable[[ReleaseHost], None], error: type[PeftError], words: str
) -> None:
    generations(host, 3)
    state(host)
    before = contents(host.place)
    for action in (look, clean):
        with pytest.raises(error, match=words):
            action(host)
    assert {key: value for key, value in contents(host.place).items() if key != "lock"} == {
        key: value for key, value in before.items() if key != "lock"
    }


def test_a_damaged_object_that_is_named_stops_it(host: ReleaseHost) -> None:
    made = generations(host, 3)
    bundle = made[2].details[Phase.STAGE]["serving_bundle_sha256"]
    put(host.place / "objects" / bundle, b"{}")
    with pytest.raises(PeftError, match=bundle):
        clean(host)
    assert len(list((host.place / "operations").iterdir())) == 3


def test_operations_that_nobody_can_read_stay(host: ReleaseHost) -> None:
    made = generations(host, 3)
    put(host.files(made[0]).path / "release.json", b"damaged")
    (host.files(made[1]).path / "release.json").unlink()
    (host.place / "operations" / "not an id").mkdir(0o700)
    age(host)
    kept = staying(look(host, replace(LIMITS, keep=0)))
    assert kept["release-g1"] is not None
    assert kept["release-g1"].startswith("cannot be read: ")
    assert kept["release-g2"] == "has not ended"
    clean(host, replace(LIMITS, keep=0))
    assert (host.place / "operations" / "not an id").is_dir()


def test_somebody_who_works_in_the_root_keeps_it_out(host: ReleaseHost) -> None:
    generations(host, 3)
    with held_elsewhere(host.place, RootLock.RELEASE), pytest.raises(LockHeldError):
        clean(host)


def server(host: ReleaseHost, launch_id: str, *, running: bool = False, record: bytes = b"{}") -> Any:
    """A server's three entries; dead since before the last boot unless it runs."""
    files = host.files(host.scene("one"))
    host.started(files, Phase.LOAD)
    run = host.place / "servers" / f"{launch_id}.run"
    run.parent.mkdir(mode=0o700, exist_ok=True)
    files.run(Phase.LOAD).rename(run)
    told = (run / "running.json").read_bytes().replace(b"release-one.load", launch_id.encode())
    put(run / "running.json", told)
    (run.parent / launch_id).mkdir(0o700)
    put(run.parent / f"{launch_id}.json", record)
    shutil.rmtree(host.files(host.scene("one")).path)
    return run


def test_dead_servers_go_and_running_ones_keep_their_bundle(host: ReleaseHost) -> None:
    scene = host.scene("spare")
    bundle = scene.details[Phase.STAGE]["serving_bundle_sha256"]
    server(host, "release-old.server")
    run = server(host, "serve-1", record=f'{{"bundle":"{host.place}/bundles/{bundle}"}}'.encode())
    assert set(staying(look(host)).values()) == {"is young"}
    age(host)
    with (run / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        items = clean(host)
    assert going(items, What.SERVER) == {"release-old.server"}
    assert staying(items) == {"serve-1": "running"}
    assert sorted(path.name for path in (host.place / "servers").iterdir()) == [
        "serve-1",
        "serve-1.json",
        "serve-1.run",
    ]
    assert (host.place / "bundles" / bundle).is_dir()
    assert bundle in objects(host)


def test_servers_of_operations_that_stay_stay(host: ReleaseHost) -> None:
    generations(host, 1)
    server(host, "release-g1.server")
    age(host)
    assert staying(look(host))["release-g1.server"] == "belongs to release-g1, which stays"


def test_it_can_die_at_every_change(host: ReleaseHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("private_roots._CALLS", ("rename", "unlink", "rmdir", "fsync"))
    made = generations(host, 3)
    server(host, "serve-1")
    age(host)
    limits = replace(LIMITS, keep=0)
    wanted = {item.name for item in look(host, limits) if item.stays is None}
    needed = documents(made[2]) | {host.profile.base, host.profile.train_data, host.profile.eval_data}
    accepted = (host.place / "accepted.json").read_bytes()
    for _ in deaths(lambda: clean(host, limits)):
        assert needed <= objects(host)
        for path in (host.place / "operations").iterdir():
            whole = {"begun.json", "release.json", "bundle.tar", "card.md"} <= {
                p.name for p in path.iterdir()
            }
            assert whole or path.name.startswith(".cohesix-import-"), path
    clean(host, limits)
    assert (host.place / "accepted.json").read_bytes() == accepted
    assert [item for item in look(host, limits) if item.stays is None] == []
    left = {path.name for path in host.place.rglob("*")}
    assert not left & wanted
    assert not [name for name in left if name.startswith(".cohesix-import-")]


@pytest.mark.parametrize("name", SCENES)
def test_every_end_can_be_cleaned(host: ReleaseHost, name: str) -> None:
    scene = host.scene(**HOW[name])
    host.end(scene)
    age(host)
    if scene.state == "rollback_failed":
        with pytest.raises(RootOwnedError):
            look(host)
        return
    assert (going(look(host), What.OPERATION) == set()) is (scene.state == "succeeded")
