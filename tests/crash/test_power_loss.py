"""Power cuts of a real file system: only what was forced to the disk is there afterwards."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from agent_faults import Killed
from crash_disk import Disk, close_below, missing_power, new_disk
from crash_process import KILL, Call, Launcher, boundaries
from crash_scene import recorded, scene
from crash_sweep import TIMEOUT_S, Run, met, require_clean, sampled, sweep
from journal_support import KEY, ORDER, open_store, resume, steps

from ticket_agent.journal.cursor import Cursor
from ticket_agent.journal.fs import RealFs
from ticket_agent.journal.transitions import State
from ticket_agent.journal.view import Verdict, read_journal, verify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.journal.store import JournalStore

STORE_LIMIT = 40
ATTEMPTS = 5
"""Power cuts of which one must lose what was not synced."""
AGENT_LIMIT = {
    "grant": 36,
    "renew": 20,
    "release": 20,
    "two-lanes": 36,
    "again": 36,
    "v1-grant": 20,
    "v1-renew": 12,
    "v1-release": 12,
}
"""Most power cuts of each kind unless all are asked for."""


@pytest.fixture(scope="module", params=["ext4", "xfs"])
def disk(request: pytest.FixtureRequest, memory: Path) -> Iterator[Disk]:
    tmp = Path(tempfile.mkdtemp(dir=memory))
    missing = missing_power(request.param, tmp)
    if missing is not None:
        pytest.skip(missing)
    with new_disk(request.param, tmp / "disk") as found:
        yield found


class MortalFs(RealFs):
    """The real file system, until the process dies before the call with a certain number, from 0.

    ``lose`` names calls that are not made: a program that forgot them.
    """

    def __init__(self, dies_at: int | None = None, *, lose: str = "") -> None:
        self.calls: list[str] = []
        self._dies_at = dies_at
        self._lose = lose

    def _next(self, name: str) -> None:
        if len(self.calls) == self._dies_at:
            raise Killed
        self.calls.append(name)

    def create_new(self, dir_fd: int, name: str) -> int:
        self._next("create_new")
        return super().create_new(dir_fd, name)

    def write(self, fd: int, data: bytes) -> None:
        self._next("write")
        super().write(fd, data)

    def fsync(self, fd: int) -> None:
        self._next("fsync")
        if self._lose != "fsync":
            super().fsync(fd)

    def rename(self, dir_fd: int, src: str, dst: str) -> None:
        self._next("rename")
        super().rename(dir_fd, src, dst)

    def rename_new(self, dir_fd: int, src: str, dst: str) -> None:
        self._next("rename_new")
        super().rename_new(dir_fd, src, dst)

    def fsync_dir(self, dir_fd: int) -> None:
        self._next("fsync_dir")
        if self._lose != "fsync_dir":
            super().fsync_dir(dir_fd)


@dataclass
class Walked:
    """How far a life came before it died."""

    begun: int = 0
    done: int = 0
    cursors: list[int] = field(default_factory=list)


def _live(state_dir: Path, fs: RealFs, *, upto: int = len(ORDER)) -> Walked:
    """One operation from nothing to its end, with a cursor under a new name and then over the old one."""
    walked = Walked()

    def save(store: JournalStore, sequence: int) -> None:
        store.save_cursor(Cursor(consumed_sequence=sequence))
        walked.cursors.append(sequence)

    try:
        with open_store(state_dir, fs=fs) as store:
            for step in steps(store)[:upto]:
                walked.begun += 1
                step()
                walked.done += 1
                if walked.done in (1, len(ORDER)):
                    save(store, walked.done)
    except Killed:
        close_below(state_dir.parent)
    return walked


def _lost(state_dir: Path, walked: Walked) -> list[str]:
    """What is wrong with the directory after the cut, and with a restart on it."""
    found = [f"{bad.file}: {bad.reason}" for bad in _verdicts(state_dir) if not bad.ok]
    record = read_journal(state_dir).records.get(KEY) if state_dir.is_dir() else None
    reached = 0 if record is None else ORDER.index(record.state) + 1
    if not walked.done <= reached <= walked.begun:
        found.append(f"{walked.done} transitions were durable, {walked.begun} begun, {reached} are left")
    with open_store(state_dir) as store:
        if store.cursor.consumed_sequence < max(walked.cursors, default=0):
            found.append(f"the cursor went back to {store.cursor.consumed_sequence}")
        if not store.quarantined and resume(store).state is not State.TERMINAL:
            found.append("the operation cannot be ended")
    return found


def _verdicts(state_dir: Path) -> list[Verdict]:
    return list(verify(state_dir)) if state_dir.is_dir() else []


def _cut(disk: Disk, name: str, fs: RealFs, *, upto: int = len(ORDER)) -> list[str]:
    state_dir = disk.root / name / "state"
    walked = _live(state_dir, fs, upto=upto)
    disk.cut_power()
    return _lost(state_dir, walked)


@pytest.mark.timeout(TIMEOUT_S)
def test_a_store_loses_nothing(disk: Disk, workspace: Path) -> None:
    counting = MortalFs()
    _live(workspace / "state", counting)
    # Five records and two cursors; what else is synced belongs to the directories.
    assert counting.calls.count("fsync") == 7
    assert {"rename", "rename_new"} < set(counting.calls)
    points = sampled(range(len(counting.calls) + 1), STORE_LIMIT)
    lost = {
        point: found for point in points if (found := _cut(disk, f"store-{point}", MortalFs(point))) != []
    }
    print(f"{disk.kind}: {len(points)} of {len(counting.calls) + 1} power cuts")
    assert lost == {}


@pytest.mark.parametrize("lose", ["fsync", "fsync_dir"])
def test_a_missing_sync_is_noticed(disk: Disk, lose: str) -> None:
    """The same checks find a store that forgets one of its two syncs: with a new name, or over an old one."""
    # Under a new name nothing but the sync saves the data, unless the kernel wrote it by itself meanwhile.
    attempts = (_cut(disk, f"{lose}-{at}", MortalFs(lose=lose), upto=1) for at in range(ATTEMPTS))
    assert any(found != [] for found in attempts)
    # Over an old name a file system may help.
    for upto in range(2, len(ORDER) + 1):
        _cut(disk, f"{lose}-upto-{upto}", MortalFs(lose=lose), upto=upto)


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("kind", AGENT_LIMIT)
def test_an_agent_loses_nothing(disk: Disk, launchers: list[Launcher], workspace: Path, kind: str) -> None:
    """Death at a call of a real agent, and the power goes with it; in `again` every name exists already."""
    launcher = launchers[0]

    def kill(launcher: Launcher, home: Path, point: Call) -> Run:
        place = disk.root / f"{kind}-{home.name}"
        with scene(kind, place) as stage:
            inject = f"{point.name}:{KILL}:when={point.ordinal}"
            dead = launcher.once(stage.state_dir, stage.server.port, inject=inject)
            stage.quiet()
            disk.cut_power()
            stage.oracle.after_power()
            lives = stage.recover(launcher)
            found = stage.oracle.verdict()
            if not stage.oracle.settled() or lives[-1].code != stage.oracle.exit_code():
                found.append(f"not settled: {lives[-1].code} {lives[-1].output}")
        if not found:
            shutil.rmtree(place)
        return Run(met(dead, point), found)

    points = boundaries(recorded(launcher, kind, workspace / "recording").calls)
    first = next(index for index, point in enumerate(points) if point.remote)
    report = sweep(
        f"death and power cut, {disk.kind}, {kind}",
        points[first:],
        kill,
        launchers=[launcher],
        tmp=workspace,
        limit=AGENT_LIMIT[kind],
        faults=("SIGKILL and power cut",),
        shown=lambda point: point.label,
    )
    require_clean(report)
