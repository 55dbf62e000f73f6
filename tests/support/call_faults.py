"""Failing, or dying, at a chosen call into the operating system."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from ticket_agent.peft import directory
from ticket_agent.peft.renaming import rename_new

if TYPE_CHECKING:
    from collections.abc import Iterator

CALLS = (
    "open",
    "close",
    "stat",
    "fstat",
    "scandir",
    "mkdir",
    "write",
    "pread",
    "preadv",
    "fsync",
    "rename",
    "unlink",
    "rmdir",
)


_CHANGES = frozenset({"close", "mkdir", "write", "fsync", "rename", "rename_new", "unlink", "rmdir"})

Fault = Callable[[str, Callable[[], Any]], Any]
"""Takes the name of a call, and the call itself."""


class Calls:
    """Counts the calls of the body; the n-th one, from 0, goes through ``fault`` instead.

    Attributes:
        seen: the names of the calls that were made.
    """

    def __init__(self, at: int | None, fault: Fault) -> None:
        self.seen: list[str] = []
        self._at = at
        self._fault = fault

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            number = len(self.seen)
            self.seen.append(name)

            def perform() -> Any:
                # Nobody pulls the plug here, so nothing needs to reach the disk.
                return None if name == "fsync" else function(*arguments, **options)

            return self._fault(name, perform) if number == self._at else perform()

        return call


@contextmanager
def calls(at: int | None, fault: Fault) -> Iterator[Calls]:
    """Watch the calls of the body, and let the one with the number ``at`` go through ``fault``."""
    counted = Calls(at, fault)
    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, counted.wrap(name, getattr(os, name)))
        patch.setattr(fcntl, "flock", counted.wrap("flock", fcntl.flock))
        patch.setattr(directory, "rename_new", counted.wrap("rename_new", rename_new))
        yield counted


def fail_before(name: str, perform: Callable[[], Any]) -> Any:
    """The call does nothing and fails. Only a failed ``close`` closes nevertheless."""
    if name == "close":
        perform()
    raise OSError(errno.EIO, "Input/output error")


def fail_after(name: str, perform: Callable[[], Any]) -> Any:
    """A call that changes something does so, and fails nevertheless, as on network file systems."""
    if name in _CHANGES:
        perform()
    raise OSError(errno.EIO, "Input/output error")


def full(name: str, perform: Callable[[], Any]) -> Any:
    """The disk is full."""
    if name == "close":
        perform()
    raise OSError(errno.ENOSPC, "No space left on device")


def die_before(name: str, perform: Callable[[], Any]) -> Any:
    """SIGKILL before the call."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(name: str, perform: Callable[[], Any]) -> Any:
    """SIGKILL right after the call."""
    try:
        perform()
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


def in_child(body: Callable[[], object]) -> int:
    """Run ``body`` in a forked process; return what ``os.waitpid`` says of it."""
    with warnings.catch_warnings():
        # Newer Pythons warn when other threads exist; the child uses none of them and leaves by a signal.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1]
