"""Roots in a temporary directory, a second process that holds a lock, and checks that nothing leaks."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ticket_agent.peft.roots import open_root

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.locks import RootLock

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
