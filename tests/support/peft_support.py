"""Roots in a temporary directory, a second process that holds a lock, and checks that nothing leaks."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ticket_agent.peft.roots import open_root

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.locks import RootLock

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to make this")

_MAX_HASHED = 1 << 20
_COARSE_CLOCK = 5
"""Linux's CLOCK_REALTIME_COARSE: many kernels stamp files by it, and it ticks every 1 to 10 ms."""

_HOLD = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(fd, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def root(path: Path, *, label: str = "registry root", create: bool = True) -> Directory:
    """Open a root for the account that runs the tests."""
    return open_root(path, label=label, owner_uid=os.geteuid(), create=create)


@contextmanager
def held_elsewhere(folder: Path, lock: RootLock) -> Iterator[subprocess.Popen[str]]:
    """A second process that holds a lock for the body."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(folder / lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.communicate()


def open_descriptors() -> dict[str, str]:
    """Every descriptor of this process and what it is open on."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that this listing used
            found[link.name] = str(link.readlink())
    return found


@contextmanager
def no_descriptor_leaks() -> Iterator[None]:
    """The body leaves as many descriptors open as it found."""
    before = open_descriptors()
    yield
    assert open_descriptors() == before


def synced_directories(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that every fsync from now on adds its file or directory to."""
    synced: list[str] = []
    real = os.fsync

    def spy(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        real(fd)

    monkeypatch.setattr(os, "fsync", spy)
    return synced


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """The body, and what it starts, cannot write beyond that many bytes: EFBIG.

    Nor does it write bytecode: some Pythons take the beginning of a file for the whole, and everybody who
    imports that module later fails.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = writes


def make_file(path: Path) -> None:
    path.write_bytes(b"x")


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    """Bound from its directory, because the path of a socket must be short."""
    here = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


def make_device(path: Path) -> None:
    """The null device: opening it would work, and reading it would find it empty."""
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a folder with what would show a change: kind, mode, names, size, time, content."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted([folder, *folder.rglob("*")]):
        status = path.lstat()
        content: object = None
        if stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_HASHED:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        elif stat.S_ISLNK(status.st_mode):
            content = str(path.readlink())
        found[str(path)] = (status.st_mode, status.st_nlink, status.st_size, status.st_mtime_ns, content)
    return found


def until_a_change_shows(path: Path) -> None:
    """Return when the next change of a file will have another time stamp than its last one."""
    last = path.stat().st_ctime_ns
    while time.clock_gettime_ns(_COARSE_CLOCK) <= last:
        pass


class Canary:
    """A folder outside every root, with a secret in it, that shows whether anybody read or changed it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.secret = folder / "secret"
        self.secret.write_bytes(b"secret of the canary")
        self.fifo = folder / "fifo"
        os.mkfifo(self.fifo)
        self._before = snapshot(folder)
        # Long ago, and before the last change: the kernel then notes the next reading.
        for path in (folder, self.secret):
            os.utime(path, ns=(1_000_000_000, path.stat().st_mtime_ns))
        self._before_atime = self._atimes()

    def _atimes(self) -> list[int]:
        return [path.stat().st_atime_ns for path in (self.folder, self.secret)]

    def check(self) -> None:
        """Fail if the folder or its secret was read, or anything in it changed."""
        assert self._atimes() == self._before_atime, "something outside the root was read"
        assert snapshot(self.folder) == self._before, "something outside the root was changed"


def _own_mounts(script: str) -> subprocess.CompletedProcess[str]:
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _can_mount() -> bool:
    return shutil.which("unshare") is not None and _own_mounts("mount -t tmpfs tmpfs /mnt").returncode == 0


needs_mounts = pytest.mark.skipif(not _can_mount(), reason="needs the right to mount")


def in_own_mounts(script: str) -> str:
    """Output of a shell script whose mounts nobody else sees and that vanish with it."""
    done = _own_mounts(script)
    assert done.returncode == 0, done.stderr
    return done.stdout
