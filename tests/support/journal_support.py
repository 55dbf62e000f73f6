"""A store in a temporary directory, and file systems that record, fail or hold everything in memory."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ticket_agent.journal.fs import FreeSpace, RealFs
from ticket_agent.journal.outcome import Plan
from ticket_agent.journal.record import ProviderResult, Record, StagedResult
from ticket_agent.journal.store import JournalStore
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ticket_agent.journal.space import Limits

BOOT_ID = "2f1c7d0e-5a3b-4c77-9d10-7e8b6a5f4c3d"
VERSION = "0.1.0"
FAMILY = "ticket-v2"
KEY = "9:ticket-v2:idem-v2"
REQUEST = b'{"schema":"host-ticket/v2","id":"ticket-v2","idempotency_key":"idem-v2"}'
PLAN = Plan(before={"lease": None, "seen": ["a", "b"]}, intent={"line": '{"op":"grant"}', "seq": 4})
RESULT = ProviderResult(outcome="confirmed", message="committed", evidence={"seq": 5})
REFUSAL = ProviderResult(outcome="rejected", message="no such GPU")
STAGED = StagedResult(
    path="/host/tickets/status", line='{"schema":"host-ticket-result/v2","state":"succeeded"}'
)
ORDER = list(State)


class Clock:
    """Unix milliseconds that move only when told to."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def open_store(
    path: Path,
    *,
    fs: RealFs | None = None,
    limits: Limits | None = None,
    clock: Callable[[], int] | None = None,
) -> JournalStore:
    return JournalStore.open(
        path, clock=clock or Clock(), boot_id=BOOT_ID, agent_version=VERSION, fs=fs, limits=limits
    )


def prepare(
    store: JournalStore, key: str = KEY, sequence: int = 1, epoch: int = 1, family: str = FAMILY
) -> Record:
    return store.prepare(key=key, family=family, epoch=epoch, sequence=sequence, request=REQUEST)


def steps(store: JournalStore, key: str = KEY, sequence: int = 1) -> list[Callable[[], Record]]:
    """The five transitions of an ordinary life, in order."""
    return [
        lambda: prepare(store, key, sequence),
        lambda: store.dispatch(key, PLAN),
        lambda: store.settle(key, RESULT, STAGED),
        lambda: store.publish(key),
        lambda: store.finish(key),
    ]


def walk(store: JournalStore, key: str = KEY, sequence: int = 1, *, upto: State = State.TERMINAL) -> Record:
    """Bring an operation from nothing to a state."""
    record = None
    for step in steps(store, key, sequence)[: ORDER.index(upto) + 1]:
        record = step()
    assert record is not None
    return record


def resume(store: JournalStore, key: str = KEY, sequence: int = 1) -> Record:
    """Bring an operation from wherever it is to its end, without dispatching it a second time."""
    known = store.records.get(key)
    done = -1 if known is None else ORDER.index(known.state)
    for step in steps(store, key, sequence)[done + 1 :]:
        known = step()
    assert known is not None
    return known


def record_file(path: Path) -> Path:
    (found,) = (path / "ops").glob("*.rec")
    return found


@dataclass(frozen=True)
class Op:
    """One call at the seam; ``folder`` is the directory's name."""

    name: str
    folder: str = ""
    file: str = ""
    target: str = ""
    data: bytes = b""


class RecordingFs(RealFs):
    """The real file system, and a log of what was asked of it.

    ``lose`` names operations that are neither done nor logged: a program that forgot them.
    """

    def __init__(self, *, lose: Iterable[str] = ()) -> None:
        self.log: list[Op] = []
        self.lose = frozenset(lose)
        self._files: dict[int, tuple[str, str]] = {}

    def count(self, *names: str) -> int:
        return sum(op.name in names for op in self.log)

    def note(self, name: str) -> None:
        """Put a mark of the test between the operations."""
        self.log.append(Op(name))

    def _add(self, name: str, folder: str, file: str = "", target: str = "", data: bytes = b"") -> None:
        self.log.append(Op(name, folder, file, target, data))

    def create_new(self, dir_fd: int, name: str) -> int:
        fd = super().create_new(dir_fd, name)
        self._files[fd] = (_folder(dir_fd), name)
        self._add("create", *self._files[fd])
        return fd

    def open_kept(self, dir_fd: int, name: str) -> int:
        fd = super().open_kept(dir_fd, name)
        self._files[fd] = (_folder(dir_fd), name)
        return fd

    def write(self, fd: int, data: bytes) -> None:
        super().write(fd, data)
        self._add("write", *self._files[fd], data=data)

    def fsync(self, fd: int) -> None:
        if "fsync" not in self.lose:
            super().fsync(fd)
            self._add("fsync", *self._files[fd])

    def rename(self, dir_fd: int, src: str, dst: str) -> None:
        super().rename(dir_fd, src, dst)
        self._add("rename", _folder(dir_fd), src, dst)

    def rename_new(self, dir_fd: int, src: str, dst: str) -> None:
        super().rename_new(dir_fd, src, dst)
        self._add("link", _folder(dir_fd), src, dst)
        self._add("unlink", _folder(dir_fd), src)

    def fsync_dir(self, dir_fd: int) -> None:
        if "fsync_dir" not in self.lose:
            super().fsync_dir(dir_fd)
            self._add("fsync_dir", _folder(dir_fd))

    def unlink(self, dir_fd: int, name: str) -> None:
        super().unlink(dir_fd, name)
        self._add("unlink", _folder(dir_fd), name)


def _folder(dir_fd: int) -> str:
    return Path(f"/proc/self/fd/{dir_fd}").readlink().name


class FailingFs(RealFs):
    """The real file system, where calls fail on demand.

    Args:
        at: the call with this number, from 0, fails; None lets none fail by number.
        error: its error number.
        names: only calls of these operations are counted; None counts all.
        persistent: every counted call from that one on fails.
    """

    def __init__(
        self,
        *,
        at: int | None = None,
        error: int = errno.EIO,
        names: Iterable[str] | None = None,
        persistent: bool = False,
    ) -> None:
        self.at = at
        self.error = error
        self.names = None if names is None else frozenset(names)
        self.persistent = persistent
        self.calls: list[str] = []
        self.failed: str | None = None
        self.armed = True

    def _check(self, name: str) -> None:
        if not self.armed or (self.names is not None and name not in self.names):
            return
        number = len(self.calls)
        self.calls.append(name)
        if self.at is not None and (number == self.at or (self.persistent and number > self.at)):
            self.failed = name
            raise OSError(self.error, os.strerror(self.error))

    def create_new(self, dir_fd: int, name: str) -> int:
        self._check("create_new")
        return super().create_new(dir_fd, name)

    def open_kept(self, dir_fd: int, name: str) -> int:
        self._check("open_kept")
        return super().open_kept(dir_fd, name)

    def write(self, fd: int, data: bytes) -> None:
        try:
            self._check("write")
        except OSError:
            # A disk fills up in the middle of a file, not before it.
            super().write(fd, data[: len(data) // 2])
            raise
        super().write(fd, data)

    def fsync(self, fd: int) -> None:
        self._check("fsync")
        super().fsync(fd)

    def close(self, fd: int) -> None:
        # The descriptor is gone even when close fails.
        super().close(fd)
        self._check("close")

    def rename(self, dir_fd: int, src: str, dst: str) -> None:
        self._check("rename")
        super().rename(dir_fd, src, dst)

    def rename_new(self, dir_fd: int, src: str, dst: str) -> None:
        self._check("rename_new")
        super().rename_new(dir_fd, src, dst)

    def fsync_dir(self, dir_fd: int) -> None:
        self._check("fsync_dir")
        super().fsync_dir(dir_fd)

    def unlink(self, dir_fd: int, name: str) -> None:
        self._check("unlink")
        super().unlink(dir_fd, name)

    def reserve(self, fd: int, nbytes: int) -> None:
        self._check("reserve")
        super().reserve(fd, nbytes)

    def free_space(self, dir_fd: int) -> FreeSpace:
        self._check("free_space")
        return super().free_space(dir_fd)


@dataclass
class MemoryFs(RealFs):
    """One directory in memory, for reading only; the descriptor means nothing."""

    files: dict[str, bytes] = field(default_factory=dict)

    def read(self, dir_fd: int, name: str, limit: int) -> bytes:
        if name not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return self.files[name]

    def list(self, dir_fd: int) -> list[str]:
        return [*self.files]
