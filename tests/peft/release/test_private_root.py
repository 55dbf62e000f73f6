from __future__ import annotations

import fcntl
import os
import shutil
import stat
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from peft_support import (
    Canary,
    held_elsewhere,
    make_fifo,
    needs_root,
    no_descriptor_leaks,
    snapshot,
)
from peft_support import root as source_root
from private_roots import deaths, opened, store_bundle
from release_support import base_state, promoted, sha

from ticket_agent.peft.errors import (
    AbsentError,
    FileRefusedError,
    LockHeldError,
    PeftError,
    RootRefusedError,
)
from ticket_agent.peft.locks import RootLock
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.markers import MAX_MARKER_BYTES, Blocker, Owner, RuntimeSelection
from ticket_agent.peft.release.private_root import MAX_OPERATIONS, PrivateRoot
from ticket_agent.peft.release.root_errors import (
    AcceptedConflictError,
    CapacityError,
    RootBlockedError,
    RootOwnedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BASE = base_state()
NEXT = promoted(BASE, sha("one"))
THIRD = promoted(NEXT, sha("two"))
ONE = Owner(operation_id="release-one", request_sha256=sha("request one"))
TWO = Owner(operation_id="release-two", request_sha256=sha("request two"))


def blocker(owner: Owner, reason: str = "the server did not come back") -> Blocker:
    return Blocker(
        operation_id=owner.operation_id,
        request_sha256=owner.request_sha256,
        reason=reason,
        since_unix_ms=1_700_000_000_000,
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "private"


@pytest.fixture
def here(place: Path) -> Iterator[PrivateRoot]:
    canary = Canary(place.parent / "outside")
    with no_descriptor_leaks(), opened(place) as made:
        yield made
    canary.check()


# -- the root ---------------------------------------------------------------------------------------------


def test_a_root_is_made_private_whatever_the_umask(place: Path) -> None:
    old = os.umask(0)
    try:
        with opened(place) as here:
            here.control.initialise(BASE)
            here.operation("release-one", create=True).close()
    finally:
        os.umask(old)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [place, *place.rglob("*")]}
    assert modes == {
        "private": 0o700,
        "objects": 0o700,
        "bundles": 0o700,
        "operations": 0o700,
        "release-one": 0o700,
        "accepted.json": 0o600,
    }


def test_a_root_is_not_made_unless_asked(place: Path) -> None:
    with pytest.raises(RootRefusedError, match="does not exist"):
        opened(place, create=False)
    place.mkdir(mode=0o700)
    with pytest.raises(AbsentError, match="objects"):
        opened(place, create=False)


@pytest.mark.parametrize("mode", [0o701, 0o704, 0o710, 0o740, 0o750, 0o755, 0o770, 0o777])
@pytest.mark.parametrize("part", ["", "objects", "bundles", "operations"])
def test_open_to_others(place: Path, mode: int, part: str) -> None:
    opened(place).close()
    (place / part).chmod(mode)
    with no_descriptor_leaks(), pytest.raises((RootRefusedError, FileRefusedError), match="chmod"):
        opened(place)


@needs_root
@pytest.mark.parametrize("part", ["", "objects", "bundles", "operations"])
def test_somebody_elses(place: Path, part: str) -> None:
    opened(place).close()
    os.chown(place / part, 12345, 12345)
    with no_descriptor_leaks(), pytest.raises((RootRefusedError, FileRefusedError), match="belongs to user"):
        opened(place)


@pytest.mark.parametrize("part", ["", "objects", "bundles", "operations"])
def test_links(place: Path, part: str) -> None:
    opened(place).close()
    shutil.move(place / part, place.parent / "moved")
    (place / part).symlink_to(place.parent / "moved", target_is_directory=True)
    with no_descriptor_leaks(), pytest.raises((RootRefusedError, FileRefusedError), match="symlink"):
        opened(place)


@pytest.mark.parametrize("part", ["objects", "bundles", "operations"])
def test_no_directories(place: Path, part: str) -> None:
    opened(place).close()
    (place / part).rmdir()
    (place / part).write_bytes(b"x")
    with no_descriptor_leaks(), pytest.raises(FileRefusedError, match="not a directory"):
        opened(place)


def test_a_path_says_where_the_root_is(place: Path) -> None:
    opened(place).close()
    good = str(place)
    for bad in (
        f"{good}/",
        f"/{good}",
        good.replace("/private", "//private"),
        f"{good}/../private",
        "private",
        "",
    ):
        with pytest.raises(RootRefusedError):
            PrivateRoot.open(bad, create=False)


def test_the_lock_is_advice_that_the_kernel_keeps(here: PrivateRoot, place: Path) -> None:
    with here.locked():
        assert (place / "lock").exists()
        with (place / "lock").open("r+b") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with held_elsewhere(place, RootLock.RELEASE), pytest.raises(LockHeldError, match="in use by process"):
        here.locked().__enter__()
    with here.locked():
        pass


def test_a_hostile_lock(here: PrivateRoot, place: Path) -> None:
    (place / "lock").symlink_to(place.parent / "outside" / "secret")
    with pytest.raises(FileRefusedError, match="symlink"):
        here.locked().__enter__()


# -- operations -------------------------------------------------------------------------------------------


def test_operations(here: PrivateRoot, place: Path) -> None:
    with pytest.raises(AbsentError):
        here.operation("release-one")
    for _ in range(2):
        with here.operation("release-one", create=True) as directory:
            directory.write_file("validate.json", b"{}")
    with here.operation("release-one") as directory:
        assert directory.names() == ["validate.json"]
    for bad in ("", "..", "a/b", "a.b", "-a", "x" * 65):
        with pytest.raises(DocumentError):
            here.operation(bad, create=True)
    (place / "operations" / "linked").symlink_to(place.parent / "outside", target_is_directory=True)
    with pytest.raises(FileRefusedError, match="symlink"):
        here.operation("linked", create=True)


def test_the_number_of_operations_is_bounded(here: PrivateRoot, place: Path) -> None:
    for number in range(MAX_OPERATIONS):
        (place / "operations" / f"op-{number}").mkdir()
    with pytest.raises(CapacityError, match="256 operations"):
        here.operation("one-more", create=True)
    here.operation("op-7", create=True).close()


# -- what is deployed -------------------------------------------------------------------------------------


def test_a_deployment_moves_by_compare_and_set(here: PrivateRoot) -> None:
    control = here.control
    with pytest.raises(AbsentError):
        control.accepted()
    control.initialise(BASE)
    control.initialise(BASE)
    assert control.promote(BASE, NEXT)
    assert control.accepted() == NEXT
    assert not control.promote(BASE, NEXT), "the same promotion again finds that it is done"
    assert control.restore(BASE, NEXT)
    assert not control.restore(BASE, NEXT)
    assert control.accepted() == BASE


def test_a_deployment_of_somebody_else_is_left_alone(here: PrivateRoot, place: Path) -> None:
    control = here.control
    control.initialise(NEXT)
    before = snapshot(place)
    other = promoted(BASE, sha("other"))
    calls: list[Callable[[], object]] = [
        lambda: control.initialise(BASE),
        lambda: control.promote(BASE, other),
        lambda: control.promote(other, promoted(other, sha("x"))),
        lambda: control.restore(BASE, None),
        lambda: control.restore(BASE, other),
        lambda: control.restore(BASE, THIRD),
    ]
    for call in calls:
        with pytest.raises(AcceptedConflictError) as caught:
            call()
        assert caught.value.found == NEXT
    assert snapshot(place) == before


@pytest.mark.parametrize(
    "change",
    [
        {"generation": 3},
        {"generation": 1},
        {"runtime_sha256": sha("other runtime")},
        {"healthy": False},
        {"rollback_verified": False},
    ],
)
def test_what_is_no_promotion(here: PrivateRoot, change: dict[str, Any]) -> None:
    here.control.initialise(NEXT)
    with pytest.raises(DocumentError) as caught:
        here.control.promote(NEXT, replace(THIRD, **change))
    assert caught.value.rule == "promotion-postcondition"
    assert here.control.accepted() == NEXT


def _instead(path: Path, make: Callable[[], None]) -> None:
    path.unlink()
    make()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(b"\0" * 300),
    "half": lambda path: path.write_bytes(path.read_bytes()[:50]),
    "large": lambda path: path.write_bytes(b" " * (MAX_MARKER_BYTES + 1)),
    "link": lambda path: _instead(path, lambda: path.symlink_to(path.parents[1] / "outside" / "secret")),
    "fifo": lambda path: _instead(path, lambda: make_fifo(path)),
    "directory": lambda path: _instead(path, path.mkdir),
    "second name": lambda path: os.link(path, path.with_name("second")),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_deployment_decides_nothing(here: PrivateRoot, place: Path, kind: str) -> None:
    control = here.control
    control.initialise(BASE)
    DAMAGE[kind](place / "accepted.json")
    calls: list[Callable[[], object]] = [
        control.accepted,
        lambda: control.initialise(BASE),
        lambda: control.promote(BASE, NEXT),
        lambda: control.restore(BASE, NEXT),
    ]
    for call in calls:
        with pytest.raises(PeftError) as caught:
            call()
        assert not isinstance(caught.value, AcceptedConflictError | AbsentError)


# -- markers ----------------------------------------------------------------------------------------------


def test_one_release_at_a_time(here: PrivateRoot) -> None:
    control = here.control
    assert control.owner() is None
    control.claim(ONE)
    control.claim(ONE)
    assert control.owner() == ONE
    for other in (TWO, replace(ONE, request_sha256=sha("other"))):
        with pytest.raises(RootOwnedError):
            control.claim(other)
        with pytest.raises(RootOwnedError):
            control.disclaim(other)
    control.disclaim(ONE)
    control.disclaim(ONE)
    control.claim(TWO)


def test_a_failed_rollback_blocks_everybody(here: PrivateRoot) -> None:
    control = here.control
    control.claim(ONE)
    control.require_unblocked()
    control.block(blocker(ONE))
    control.block(blocker(ONE, "later and less telling"))
    assert control.blocker() == blocker(ONE)
    for owner in (ONE, TWO):
        with pytest.raises(RootBlockedError, match="the rollback of release release-one failed"):
            control.claim(owner)
    with pytest.raises(RootBlockedError):
        control.block(blocker(TWO))
    with pytest.raises(RootBlockedError):
        control.unblock(TWO)
    control.unblock(ONE)
    control.unblock(ONE)
    control.claim(ONE)


def test_the_longest_marker_can_be_read_back(here: PrivateRoot) -> None:
    longest = Blocker(
        operation_id="x" * 64, request_sha256=sha("r"), reason="\U0001f600" * 256, since_unix_ms=2**64 - 1
    )
    assert len(longest.encode()) <= MAX_MARKER_BYTES
    here.control.block(longest)
    assert here.control.blocker() == longest
    with pytest.raises(DocumentError, match="reason"):
        blocker(ONE, "x" * 1025)


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_block_is_a_block(here: PrivateRoot, place: Path, kind: str) -> None:
    here.control.block(blocker(ONE))
    DAMAGE[kind](place / "release-blocked.json")
    for call in (here.control.require_unblocked, lambda: here.control.claim(ONE)):
        with pytest.raises(PeftError):
            call()
    assert here.control.owner() is None


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_owner_lets_nobody_in(here: PrivateRoot, place: Path, kind: str) -> None:
    here.control.claim(ONE)
    DAMAGE[kind](place / "active-release.json")
    for owner in (ONE, TWO):
        for call in (here.control.claim, here.control.disclaim):
            with pytest.raises(PeftError):
                call(owner)


def test_what_the_server_loads(here: PrivateRoot, place: Path) -> None:
    with pytest.raises(AbsentError):
        here.control.runtime()
    for adapter in (None, sha("adapter")):
        selection = RuntimeSelection(bundle_sha256=sha("bundle"), adapter_sha256=adapter)
        here.control.select_runtime(selection)
        assert here.control.runtime() == selection
    (place / "runtime.json").write_bytes(b'{"bundle_sha256":null,"adapter_sha256":null}')
    with pytest.raises(DocumentError, match=r"runtime\.json"):
        here.control.runtime()


def test_markers_have_exact_members() -> None:
    for cls, value in (
        (Owner, ONE),
        (Blocker, blocker(ONE)),
        (RuntimeSelection, RuntimeSelection(bundle_sha256=sha("b"), adapter_sha256=None)),
    ):
        data = value.encode()
        assert cls.parse(data) == value
        for bad in (b"{}", data[:-1] + b',"z":1}', data + b"\n"):
            with pytest.raises(DocumentError):
                cls.parse(bad)


# -- a process that dies at any moment --------------------------------------------------------------------


def _with(place: Path, action: Callable[[PrivateRoot], object]) -> Callable[[], None]:
    def run() -> None:
        with opened(place) as root, root.locked():
            action(root)

    return run


def _ready(place: Path) -> str:
    with opened(place) as root:
        root.control.initialise(BASE)
        return store_bundle(root, {"config.json": b"{}", "model.safetensors": b"w" * 300_000})


def _fresh(place: Path, prepared: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(prepared, place)


@pytest.mark.parametrize(
    "name", ["promote", "restore", "claim", "disclaim", "store", "store file", "materialise", "block"]
)
def test_every_crash_point(place: Path, name: str) -> None:
    prepared = place.with_name("prepared")
    bundle = _ready(prepared)
    with opened(prepared) as root:
        if name == "restore":
            root.control.promote(BASE, NEXT)
        if name == "disclaim":
            root.control.claim(ONE)
    actions: dict[str, Callable[[PrivateRoot], object]] = {
        "promote": lambda root: root.control.promote(BASE, NEXT),
        "restore": lambda root: root.control.restore(BASE, NEXT),
        "claim": lambda root: root.control.claim(ONE),
        "disclaim": lambda root: root.control.disclaim(ONE),
        "store": lambda root: root.objects.store(b"new content"),
        "store file": lambda root: _store_file(root, prepared.with_name("source")),
        "materialise": lambda root: root.materialise(bundle),
        "block": lambda root: root.control.block(blocker(ONE)),
    }
    final = _state(prepared, actions[name])
    run = _with(place, actions[name])
    _fresh(place, prepared)
    points = 0
    seen = set()
    for _ in deaths(run):
        points += 1
        with opened(place) as root, root.locked():
            between = _seen(root, place)
            seen.add(between)
            assert between in {_seen_of(prepared), final}, "a crash shows only before and after"
            root.sweep()
            actions[name](root)
            assert _seen(root, place) == final
            assert not list(place.rglob(".*")), "nothing unfinished stays"
        _fresh(place, prepared)
    assert points >= 5
    assert seen == {_seen_of(prepared), final}, "both sides of the commit were met"


def _store_file(root: PrivateRoot, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "file").write_bytes(b"x" * 300_000)
    with source_root(folder) as source, source.open_file("file", max_bytes=1 << 20) as file:
        root.objects.store_file(file)


def _state(prepared: Path, action: Callable[[PrivateRoot], object]) -> str:
    done = prepared.with_name("done")
    shutil.copytree(prepared, done)
    with opened(done) as root:
        action(root)
    return _seen_of(done)


def _seen_of(place: Path) -> str:
    with opened(place) as root:
        return _seen(root, place)


def _seen(root: PrivateRoot, place: Path) -> str:
    """Everything that a reader can see; unfinished work is not content."""
    objects = {path.name: sha(path.read_bytes().hex()) for path in (place / "objects").glob("[!.]*")}
    bundles = {
        str(path.relative_to(place)): sha(path.read_bytes().hex())
        for path in (place / "bundles").glob("[!.]*/*")
    }
    state = (root.control.accepted(), root.control.owner(), root.control.blocker())
    return repr((state, sorted(objects.items()), sorted(bundles.items())))
