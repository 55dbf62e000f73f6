"""A publisher in this process that dies at any one of its steps, and what must hold of its numbers then.

Every operation on the file system and every append is a step. A death leaves what a killed process leaves,
or what a power cut does: names that were not made durable come back as they were, bytes vanish.
"""

from __future__ import annotations

import base64
import errno
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from ticket_agent.hive.reference import ReferenceHive
from ticket_agent.hive.reference.errors import RefusalError
from ticket_agent.journal.fs import RealFs
from ticket_agent.protocol.collecting import fact
from ticket_agent.protocol.namespace import Acked, Refusal, RefusalKind, Refused
from ticket_agent.protocol.snapshot_enrolment import DEFAULT_ENROLMENT, SnapshotPublisher
from ticket_agent.snapshots import publisher as publishing
from ticket_agent.snapshots.looking import Seen
from ticket_agent.snapshots.publish_errors import PublishError
from ticket_agent.snapshots.source_place import open_state_root
from ticket_agent.snapshots.source_state import SourceState

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.protocol.namespace import AppendAnswer

SOURCE = "linux-reference"
PROVIDERS = ("systemd", "docker")
EPOCH = 1
PART = f"{SOURCE}-epoch-{EPOCH}"
ENROLMENT = replace(DEFAULT_ENROLMENT, publishers=(SnapshotPublisher(source_id=SOURCE, providers=PROVIDERS),))
CUTS = ("killed", "names undone", "bytes lost")
"""What a death costs: nothing; every name that no fsync of its directory followed, and bytes; bytes alone."""
_SEQUENCE = re.compile(rb'"sequence":(\d+)')


class Death(BaseException):
    """The process is gone. Not an Exception, as no SIGKILL is one."""


@dataclass
class Steps:
    """The steps of one life.

    Attributes:
        at: the step with this number, from 0, is the last, and is not done; None lets it live.
        fails: this one fails with an error of the file system instead.
        error: that error's number.
        lasting: all later ones fail as well.
    """

    at: int | None = None
    fails: int | None = None
    error: int = errno.EIO
    lasting: bool = False
    count: int = 0
    dead: bool = False

    def step(self, *, file: bool = False) -> None:
        number = self.count
        self.count += 1
        if self.dead or number == self.at:
            self.dead = True
            raise Death
        later = self.fails is not None and self.lasting and number > self.fails
        if file and (number == self.fails or later):
            raise OSError(self.error, os.strerror(self.error))


class MortalFs(RealFs):
    """The real file system, as one process sees it, and what of it a power cut would leave."""

    def __init__(self, root: Path, steps: Steps) -> None:
        self.root = root
        self.steps = steps
        self.numbers: list[int] = []
        """What was written into cursors, in order."""
        self._unsynced: dict[tuple[int, int], None] = {}
        self._renamed: list[tuple[int, str, bytes | None]] = []
        self._part_durable = (root / PART).exists()

    def create_new(self, dir_fd: int, name: str) -> int:
        self.steps.step(file=True)
        fd = super().create_new(dir_fd, name)
        self._unsynced[_identity(fd)] = None
        return fd

    def write(self, fd: int, data: bytes) -> None:
        try:
            self.steps.step(file=True)
        except (Death, OSError):
            super().write(fd, data[: len(data) // 2])
            raise
        super().write(fd, data)
        self.numbers += [int(found) for found in _SEQUENCE.findall(data)]

    def fsync(self, fd: int) -> None:
        self.steps.step(file=True)
        super().fsync(fd)
        self._unsynced.pop(_identity(fd), None)

    def close(self, fd: int) -> None:
        super().close(fd)
        self.steps.step(file=True)

    def rename(self, dir_fd: int, src: str, dst: str) -> None:
        self.steps.step(file=True)
        before = None
        with suppress(FileNotFoundError):
            before = super().read(dir_fd, dst, 1 << 20)
        super().rename(dir_fd, src, dst)
        self._renamed.append((_identity(dir_fd)[1], dst, before))

    def fsync_dir(self, dir_fd: int) -> None:
        self.steps.step(file=True)
        super().fsync_dir(dir_fd)
        folder = _identity(dir_fd)[1]
        self._renamed = [each for each in self._renamed if each[0] != folder]
        if folder == self.root.stat().st_ino:
            self._part_durable = (self.root / PART).exists()

    def read(self, dir_fd: int, name: str, limit: int) -> bytes:
        self.steps.step()
        return super().read(dir_fd, name, limit)

    def list(self, dir_fd: int) -> list[str]:
        self.steps.step()
        return super().list(dir_fd)

    def unlink(self, dir_fd: int, name: str) -> None:
        self.steps.step()
        super().unlink(dir_fd, name)

    def cut(self, kind: str) -> None:
        """Leave the directory as a death of this kind does."""
        if kind == "killed":
            return
        for path in self.root.rglob("*"):
            status = path.stat()
            if (status.st_dev, status.st_ino) in self._unsynced:
                path.write_bytes(b"")
        if kind == "names undone":
            folders = {path.stat().st_ino: path for path in self.root.rglob("*") if path.is_dir()}
            for folder, name, before in reversed(self._renamed):
                if folder in folders:
                    _restore(folders[folder] / name, before)
            if not self._part_durable:
                shutil.rmtree(self.root / PART, ignore_errors=True)


def _restore(path: Path, before: bytes | None) -> None:
    if before is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(before)


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


class MortalNamespace:
    """The hive without a wire; before and after each append its client may die."""

    session = 1

    def __init__(self, scene: Scene, steps: Steps) -> None:
        self._scene = scene
        self._steps = steps

    def ls(self, path: str) -> list[str]:
        return self._scene.hive.ls(path)

    def read(self, path: str) -> list[str]:
        return self._scene.hive.cat(path)

    def tail(self, path: str) -> list[str]:
        return self._scene.hive.tail(path)

    def append(self, path: str, line: str, *, session: int | None = None) -> AppendAnswer:
        del session
        self._steps.step()
        self._scene.saw(line)
        try:
            self._scene.hive.echo(path, line)
        except RefusalError as error:
            return Refused(Refusal(kind=RefusalKind.INVALID_PAYLOAD, text=str(error)))
        self._steps.step()
        return Acked("")

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Scene:
    """One state directory, one hive, and every number that anybody outside ever saw."""

    root: Path
    hive: ReferenceHive = field(
        default_factory=lambda: ReferenceHive(
            clock=lambda: 1_790_000_000_000, snapshots=ENROLMENT, monotonic=lambda: 1000
        )
    )
    seen: list[tuple[int, str]] = field(default_factory=list)
    now_s: float = 100.0
    _digest: str = ""

    def saw(self, line: str) -> None:
        """The hive saw a line; with its first piece it knows a record's number."""
        if line.startswith("begin "):
            self._digest = line.rpartition("sha256=")[2]
        elif line.startswith("b64:") and self.seen[-1:] != [(self._number(line), self._digest)]:
            self.seen.append((self._number(line), self._digest))

    @staticmethod
    def _number(line: str) -> int:
        found = _SEQUENCE.search(base64.b64decode(line.removeprefix("b64:")))
        assert found is not None, "a record begins with its number"
        return int(found[1])

    def open(self, fs: MortalFs) -> SourceState:
        fd = open_state_root(self.root)
        try:
            return SourceState.open(fs, fd, source_id=SOURCE, epoch=EPOCH)
        finally:
            os.close(fd)

    def publisher(self, state: SourceState, steps: Steps) -> publishing.SnapshotPublisher:
        return publishing.SnapshotPublisher(
            MortalNamespace(self, steps),
            ENROLMENT,
            state,
            clock=lambda: 1_790_000_000_000 + round(self.now_s * 1000),
            monotonic=lambda: self.now_s,
        )

    def publish(self, publisher: publishing.SnapshotPublisher) -> None:
        """A record of each provider."""
        for provider in PROVIDERS:
            self.now_s += 1.0
            look = publisher.begin_look(provider)
            publisher.publish(Seen(look=look, entries=(fact("at", self.now_s),)))

    def live(self, steps: Steps) -> MortalFs:
        """One life: it publishes a record of each provider twice, whatever single ones come to."""
        fs = MortalFs(self.root, steps)
        with suppress(Death):
            state = self.open(fs)
            try:
                publisher = self.publisher(state, steps)
                for _ in range(2):
                    with suppress(PublishError):
                        self.publish(publisher)
            finally:
                # As the kernel does it; nothing is written.
                state.close()
        return fs

    def restart(self) -> list[str]:
        """Start it again, as a service manager does; what goes wrong needs somebody."""
        steps = Steps()
        before = len(self.seen)
        try:
            with self.open(MortalFs(self.root, steps)) as state:
                self.publish(self.publisher(state, steps))
        except PublishError as error:
            return [f"the restart needs somebody: {error}"]
        if len(self.seen) - before != len(PROVIDERS):
            return [f"the restart published {len(self.seen) - before} records"]
        names = sorted(path.name for path in self.root.rglob("*"))
        return [] if names == ["cursor.json", PART, "owner.lock"] else [f"left behind: {names}"]

    def repeated(self) -> list[str]:
        """Numbers that were seen twice, or out of order."""
        numbers = [number for number, _ in self.seen]
        if all(before < after for before, after in pairwise(numbers)):
            return []
        return [f"numbers repeat or go back: {numbers}"]


__all__ = ["CUTS", "PART", "Death", "MortalFs", "Scene", "Steps"]
