from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from peft_support import (
    Canary,
    held_elsewhere,
    in_own_mounts,
    make_device,
    make_fifo,
    make_socket,
    needs_mounts,
    needs_root,
    no_descriptor_leaks,
    root,
    snapshot,
)

from ticket_agent.peft.errors import FileRefusedError, LockHeldError, PeftIoError
from ticket_agent.peft.locks import RootLock, lock_holder, locked
from ticket_agent.peft.mounts import devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ticket_agent.peft.directory import Directory

REGISTRY = {RootLock.REGISTRY: ".cohesix-registry.lock"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def here(folder: Path) -> Iterator[Directory]:
    with no_descriptor_leaks(), root(folder) as directory:
        yield directory


_TRY = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("held")
else:
    print("free")
"""


def others_find_it(path: Path) -> str:
    """What another program that uses the same lock finds."""
    done = subprocess.run([sys.executable, "-c", _TRY, str(path)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_names_are_the_agreed_ones() -> None:
    assert [str(lock) for lock in RootLock] == [
        ".cohesix-registry.lock",
        ".cohesix-adapter.lock",
        ".cohesix-export.lock",
        "lock",
    ]


@pytest.mark.parametrize("lock", list(RootLock))
def test_other_programs_are_kept_out_exactly_for_the_body(
    here: Directory, folder: Path, lock: RootLock
) -> None:
    with locked({lock: here}):
        assert others_find_it(folder / lock) == "held"
    assert others_find_it(folder / lock) == "free"
    with pytest.raises(ZeroDivisionError), locked({lock: here}):
        _ = 1 // 0
    assert others_find_it(folder / lock) == "free"
    assert here.names() == [lock]


@pytest.mark.parametrize("lock", list(RootLock))
def test_the_holder_is_named(here: Directory, folder: Path, lock: RootLock) -> None:
    with held_elsewhere(folder, lock) as other:
        with pytest.raises(LockHeldError) as refused, locked({lock: here}):
            pytest.fail("the body ran without the lock")
        command = Path(f"/proc/{other.pid}/comm").read_text().strip()
    assert (refused.value.pid, refused.value.command) == (other.pid, command)
    assert str(refused.value) == (
        f"registry root {folder} is in use by process {other.pid} ({command}); try again when it has finished"
    )
    with locked({lock: here}):
        pass


def test_our_own_process_excludes_itself(here: Directory) -> None:
    with locked({RootLock.REGISTRY: here}):
        with pytest.raises(LockHeldError) as refused, locked({RootLock.REGISTRY: here}):
            pytest.fail("the body ran without the lock")
        assert refused.value.pid == os.getpid()
        with locked({RootLock.EXPORT: here}):
            pass


def test_a_waiting_process_is_not_the_holder(here: Directory, folder: Path) -> None:
    wait = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX)"
    with held_elsewhere(folder, RootLock.EXPORT) as other:
        path = folder / RootLock.EXPORT
        waiting = subprocess.Popen([sys.executable, "-c", wait, str(path)])
        while f"-> FLOCK  ADVISORY  WRITE {waiting.pid} " not in Path("/proc/locks").read_text():
            assert waiting.poll() is None
        assert lock_holder(here, RootLock.EXPORT)[0] == other.pid
    assert waiting.wait(timeout=20) == 0


def test_a_killed_holder_holds_nothing(here: Directory, folder: Path) -> None:
    with held_elsewhere(folder, RootLock.REGISTRY) as other:
        other.kill()
        other.wait()
        with locked({RootLock.REGISTRY: here}):
            pass


def test_a_holder_that_the_kernel_does_not_name(
    here: Directory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_elsewhere(folder, RootLock.REGISTRY):
        monkeypatch.setattr("ticket_agent.peft.locks.devices", lambda _: frozenset())
        with pytest.raises(LockHeldError, match="in use by another process;") as refused:
            locked({RootLock.REGISTRY: here}).__enter__()
    assert (refused.value.pid, refused.value.command) == (None, None)


@pytest.mark.parametrize("lock", list(RootLock))
def test_nobody_holds_a_free_lock(here: Directory, lock: RootLock) -> None:
    assert lock_holder(here, lock) == (None, None)
    with locked({lock: here}):
        assert lock_holder(here, lock)[0] == os.getpid()
    assert lock_holder(here, lock) == (None, None)


_HOLDER = """
import os, sys
from ticket_agent.peft.locks import RootLock, lock_holder, locked
from ticket_agent.peft.roots import open_root
with open_root(sys.argv[1], label="root", owner_uid=os.geteuid(), create=False) as root:
    with locked({RootLock.REGISTRY: root}):
        print(lock_holder(root, RootLock.REGISTRY)[0] == os.getpid())
"""


_OVERLAY = """
mount -t tmpfs -o mode=755 tmpfs {base} && mkdir {base}/lower {base}/upper {base}/work {base}/root || exit 1
mount -t overlay -o lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work overlay {base}/root
"""
_SUBVOLUME = """
truncate -s 120M {base}/image && mkfs.btrfs -q {base}/image >&2 && mkdir {base}/top {base}/root || exit 1
mount -o loop {base}/image {base}/top && rmdir {base}/root || exit 1
btrfs subvolume create {base}/top/sub >&2 && ln -s top/sub {base}/root
"""


@needs_mounts
@pytest.mark.parametrize(
    ("mount", "needs"), [(_OVERLAY, "mount"), (_SUBVOLUME, "mkfs.btrfs")], ids=["overlay", "btrfs"]
)
def test_the_holder_is_named_where_a_file_seems_to_have_two_devices(
    tmp_path: Path, mount: str, needs: str
) -> None:
    if shutil.which(needs) is None:
        pytest.skip(f"{needs} is not installed")
    base = tmp_path / "base"
    base.mkdir()
    program = _HOLDER.replace('"', '\\"')
    made = f"( {mount.format(base=base)} ) || {{ echo unsupported; exit 0; }}"
    script = f'{made}\nplace=$(readlink -f {base}/root)\n{sys.executable} -c "{program}" "$place"'
    output = in_own_mounts(script).strip()
    if output == "unsupported":
        pytest.skip("this kernel does not offer that file system")
    assert output == "True"


def test_the_devices_of_a_mount(here: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subvolume, say: ``stat`` shows one device and the kernel's tables show that of the mount."""
    status = os.fstat(here.fd)
    own = (os.major(status.st_dev), os.minor(status.st_dev))
    assert own in devices(here.fd)
    tables = {
        "/proc/self/mountinfo": ["9 1 8:1 / / rw - ext4 x rw", "64 43 250:39 / /b rw - btrfs /dev/x rw"],
        f"/proc/self/fdinfo/{here.fd}": ["pos:\t0", "mnt_id:\t64", "ino:\t3"],
    }
    monkeypatch.setattr("ticket_agent.peft.mounts._lines", lambda path: tables.get(path, []))
    assert devices(here.fd) == {own, (250, 39)}
    tables.clear()
    assert devices(here.fd) == {own}


# -- several roots ----------------------------------------------------------------------------------------


def test_locks_are_taken_in_one_order(
    here: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    real = fcntl.flock

    def spy(fd: int, operation: int) -> None:
        real(fd, operation)
        taken.append(Path(f"/proc/self/fd/{fd}").readlink().name)

    monkeypatch.setattr(fcntl, "flock", spy)
    with root(tmp_path / "b") as other:
        roots = {
            RootLock.RELEASE: other,
            RootLock.EXPORT: other,
            RootLock.ADAPTER: here,
            RootLock.REGISTRY: here,
        }
        with locked(roots):
            pass
    assert taken == [str(lock) for lock in RootLock]


@pytest.mark.parametrize("lock", list(RootLock))
def test_all_or_none(here: Directory, folder: Path, lock: RootLock) -> None:
    with held_elsewhere(folder, lock):
        with pytest.raises(LockHeldError), locked(dict.fromkeys(RootLock, here)):
            pytest.fail("the body ran without all locks")
        for other in RootLock:
            if (folder / other).exists() and other is not lock:
                assert others_find_it(folder / other) == "free"


# -- waiting ----------------------------------------------------------------------------------------------


class Time:
    """A clock that only pauses move; ``then`` runs after so many of them."""

    def __init__(self, *, after: int = -1, then: Callable[[], object] = lambda: None) -> None:
        self.now = 100.0
        self.pauses: list[float] = []
        self._after = after
        self._then = then

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        if len(self.pauses) == self._after:
            self._then()


def test_looking_does_not_wait(here: Directory, folder: Path) -> None:
    time = Time()
    with held_elsewhere(folder, RootLock.REGISTRY), pytest.raises(LockHeldError):
        locked({RootLock.REGISTRY: here}, clock=time, pause=time.pause).__enter__()
    assert time.pauses == []


def test_waiting_ends_in_time(here: Directory, folder: Path) -> None:
    time = Time()
    with held_elsewhere(folder, RootLock.REGISTRY), pytest.raises(LockHeldError):
        locked({RootLock.REGISTRY: here}, wait_s=1.0, clock=time, pause=time.pause).__enter__()
    assert 1.0 <= sum(time.pauses) < 1.1


def test_waiting_ends_when_the_holder_goes(here: Directory, folder: Path) -> None:
    with held_elsewhere(folder, RootLock.REGISTRY) as other:

        def end() -> None:
            other.kill()
            other.wait()

        time = Time(after=3, then=end)
        with locked({RootLock.REGISTRY: here}, wait_s=1.0, clock=time, pause=time.pause):
            pass
    assert len(time.pauses) == 3


# -- the lock file ----------------------------------------------------------------------------------------


def test_a_lock_file_is_private_and_stays(here: Directory, folder: Path) -> None:
    old = os.umask(0)
    try:
        with locked({RootLock.REGISTRY: here}):
            pass
    finally:
        os.umask(old)
    assert stat.S_IMODE((folder / RootLock.REGISTRY).stat().st_mode) == 0o600
    first = (folder / RootLock.REGISTRY).stat().st_ino
    with locked({RootLock.REGISTRY: here}):
        pass
    assert (folder / RootLock.REGISTRY).stat().st_ino == first


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666, 0o400])
def test_another_tools_lock_file_is_used_and_not_touched(here: Directory, folder: Path, mode: int) -> None:
    path = folder / RootLock.REGISTRY
    path.write_bytes(b"pid 12345\n")
    path.chmod(mode)
    if not os.access(path, os.W_OK):
        pytest.skip("only root opens this file for writing")
    before = snapshot(folder)
    with locked({RootLock.REGISTRY: here}):
        assert others_find_it(path) == "held"
    assert snapshot(folder) == before


def _link_to_secret(path: Path) -> None:
    path.symlink_to("../outside/secret")


def _dangling(path: Path) -> None:
    path.symlink_to("../outside/new")


def _link_inside(path: Path) -> None:
    (path.parent / "target").write_bytes(b"x")
    path.symlink_to("target")


def _hard_link(path: Path) -> None:
    (path.parent / "other").write_bytes(b"x")
    path.hardlink_to(path.parent / "other")


def _directory(path: Path) -> None:
    path.mkdir()


HOSTILE = [
    (_link_to_secret, "is a symlink"),
    (_dangling, "is a symlink"),
    (_link_inside, "is a symlink"),
    (_hard_link, "is known by a second name"),
    (_directory, "is a directory"),
    (make_fifo, "is a device, FIFO or socket"),
    (make_socket, "is a device, FIFO or socket"),
    pytest.param(make_device, "is a device, FIFO or socket", marks=needs_root),
]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("make", "reason"), HOSTILE)
def test_what_is_no_lock_file(
    here: Directory,
    folder: Path,
    tmp_path: Path,
    *,
    make: Callable[[Path], None],
    reason: str,
    swapped: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    canary = Canary(tmp_path / "outside")
    make(folder / RootLock.REGISTRY)
    if swapped:  # it came after the look
        monkeypatch.setattr(type(here), "kind", lambda *_: None)
        reason = ""
    before = snapshot(folder)
    with pytest.raises(FileRefusedError) as refused:
        locked({RootLock.REGISTRY: here}).__enter__()
    assert f"registry root {folder}/.cohesix-registry.lock {reason}" in str(refused.value)
    assert "remove" in str(refused.value)
    assert snapshot(folder) == before
    canary.check()


def test_a_lock_file_removed_in_between_is_made_again(
    here: Directory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock
    calls = 0

    def remove_first(fd: int, operation: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            (folder / RootLock.REGISTRY).unlink()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with locked({RootLock.REGISTRY: here}):
        assert others_find_it(folder / RootLock.REGISTRY) == "held"
    assert calls == 2


def test_a_file_system_that_cannot_lock(here: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(PeftIoError, match=r"locking .* failed: No locks available"):
        locked({RootLock.REGISTRY: here}).__enter__()
