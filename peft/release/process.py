"""Processes that can be named durably and are never confused with a later one of the same number.

A process id alone says nothing: the kernel gives it to somebody else as soon as it is free. With the time at
which the process began and the boot in which that time counts, it names one process for ever. A signal goes
through a descriptor that was opened first and compared afterwards, so it reaches that process or nobody.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ticket_agent.peft.release.launch_errors import RunFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "ProcessIdentity",
    "descendants",
    "marked",
    "open_process",
    "running_tasks",
    "send_signal",
    "wait_gone",
]

_DEAD = frozenset("ZXx")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process among all that ever ran on this host.

    Attributes:
        pid: its number.
        start_ticks: when it began, in the kernel's ticks since boot.
        boot_id: the boot that this counts from.
    """

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Identity of a process that exists, or None."""
        found = _status(pid)
        return None if found is None else cls(pid=pid, start_ticks=found.start_ticks, boot_id=_boot_id())

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read what :meth:`to_json` wrote.

        Raises:
            RunFileError: it is anything else.
        """
        match value:
            case {"pid": int(pid), "start_ticks": int(ticks), "boot_id": str(boot), **rest} if not rest:
                return cls(pid=pid, start_ticks=ticks, boot_id=boot)
        raise RunFileError("a process identity needs pid, start_ticks and boot_id, and nothing else")

    def to_json(self) -> Mapping[str, int | str]:
        """The members by name."""
        return {"pid": self.pid, "start_ticks": self.start_ticks, "boot_id": self.boot_id}

    def is_running(self) -> bool:
        """This very process exists and is not a zombie."""
        found = _status(self.pid)
        return (
            found is not None
            and found.state not in _DEAD
            and found.start_ticks == self.start_ticks
            and self.boot_id == _boot_id()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Status:
    state: str
    parent: int
    threads: int
    start_ticks: int


def _status(pid: int) -> _Status | None:
    try:
        data = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name stands in brackets and may hold brackets and blanks itself.
    fields = data[data.rindex(b")") + 2 :].split()
    return _Status(
        state=fields[0].decode(), parent=int(fields[1]), threads=int(fields[17]), start_ticks=int(fields[19])
    )


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _pids() -> Iterator[int]:
    for name in os.listdir("/proc"):  # noqa: PTH208 - no path objects for hundreds of entries
        if name.isdigit():
            yield int(name)


def open_process(identity: ProcessIdentity) -> int | None:
    """A descriptor of that very process, for the caller to close; None when it is gone."""
    try:
        fd = os.pidfd_open(identity.pid)
    except (ProcessLookupError, OSError):
        return None
    # Compared after opening: whoever has the number now is the one that the descriptor holds on to.
    if identity.is_running():
        return fd
    os.close(fd)
    return None


def send_signal(identity: ProcessIdentity, number: signal.Signals) -> bool:
    """Send a signal to that very process; False when it is gone or not ours to signal."""
    fd = open_process(identity)
    if fd is None:
        return False
    try:
        signal.pidfd_send_signal(fd, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(fd)
    return True


def wait_gone(pidfd: int, timeout_s: float) -> bool:
    """Wait until the process of an open descriptor has ended; False when it has not in that time."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(max(0, timeout_s) * 1000))


def descendants(pid: int) -> list[ProcessIdentity]:
    """Everything below a process, at all depths, zombies left out."""
    children: dict[int, list[tuple[int, _Status]]] = {}
    for other in _pids():
        if (status := _status(other)) is not None:
            children.setdefault(status.parent, []).append((other, status))
    found: list[ProcessIdentity] = []
    boot_id, todo = _boot_id(), [pid]
    while todo:
        for child, status in children.pop(todo.pop(), ()):
            todo.append(child)
            if status.state not in _DEAD:
                found.append(ProcessIdentity(pid=child, start_ticks=status.start_ticks, boot_id=boot_id))
    return found


def marked(variable: str, value: str) -> list[ProcessIdentity]:
    """Processes that were started with an environment variable of that value, as far as we may look."""
    wanted = f"{variable}={value}".encode()
    found = []
    for pid in _pids():
        identity = ProcessIdentity.of(pid)
        if identity is None or not identity.is_running():
            continue
        with suppress(OSError):  # gone meanwhile, or of another account
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(identity)
    return found


def running_tasks(uid: int) -> int:
    """Threads and processes of an account, which is what its process limit counts."""
    total = 0
    for pid in _pids():
        with suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == uid and (status := _status(pid)):  # noqa: PTH116 - as above
                total += status.threads
    return total
