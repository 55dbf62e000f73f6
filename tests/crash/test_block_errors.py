"""Writes that a device refuses, through the kernel: a failed fsync is final, whatever the next one says."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from agent_faults import APPENDS
from crash_block import BlockDisk, block_disk, missing_block
from crash_report import SWEEPS, Sweep
from crash_scene import Scene, scene
from crash_sweep import require_clean
from journal_support import KEY, PLAN, open_store, prepare, resume

from ticket_agent.exits import Exit
from ticket_agent.journal.errors import JournalPoisonedError
from ticket_agent.journal.transitions import State
from ticket_agent.journal.view import read_journal, verify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crash_process import Launcher

ATTEMPTS = 10


@pytest.fixture(scope="module")
def able(memory: Path) -> None:
    missing = missing_block(Path(tempfile.mkdtemp(dir=memory)))
    if missing is not None:
        pytest.skip(missing)


@pytest.fixture
def disk(able: None, workspace: Path) -> Iterator[BlockDisk]:
    with block_disk(workspace / "disk") as found:
        yield found


def _synced(fd: int) -> bool:
    try:
        os.fsync(fd)
    except OSError:
        return False
    return True


def test_the_kernel_forgets_a_failed_fsync(disk: BlockDisk) -> None:
    """Why it is final: a later fsync succeeds, the cache shows the new bytes, the device never got them."""
    path = disk.root / "file"
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        os.write(fd, b"old!")
        assert _synced(fd)
        disk.fail()
        os.pwrite(fd, b"new!", 0)
        assert not _synced(fd)
        assert any(_synced(fd) for _ in range(ATTEMPTS)), "this kernel goes on failing"
        assert os.pread(fd, 4, 0) == b"new!"
    finally:
        os.close(fd)
    disk.repair()
    assert path.read_bytes() == b"old!"


def test_a_store_stays_poisoned(disk: BlockDisk) -> None:
    """The store asks only once, writes nothing when the device works again, and the next start is whole."""
    state_dir = disk.root / "state"
    with open_store(state_dir) as store:
        prepare(store)
        disk.fail()
        with pytest.raises(JournalPoisonedError):
            store.dispatch(KEY, PLAN)
        disk.trigger.unlink()
        with pytest.raises(JournalPoisonedError):
            store.dispatch(KEY, PLAN)
        assert store.poisoned is not None
    disk.repair()
    assert all(verdict.ok for verdict in verify(state_dir))
    assert read_journal(state_dir).records[KEY].state is State.PREPARED
    with open_store(state_dir) as store:
        assert resume(store).state is State.TERMINAL


def _fails_after(stage: Scene, disk: BlockDisk, append: int) -> None:
    """Let the device fail right after that append of the agent was applied, before it is answered."""
    seen: list[str] = []

    def look(path: str, line: str) -> None:
        seen.append(path)
        if len(seen) == append + 1:
            disk.fail()

    stage.server.faults.on_applied(look)


@pytest.mark.parametrize("kind", ["grant", "renew", "release"])
def test_an_agent_on_a_failing_device(
    able: None, launchers: list[Launcher], workspace: Path, kind: str
) -> None:
    """After each line to the hive the device fails: exit code 8, nothing more dispatched, nothing lost."""
    report = Sweep(
        name=f"a device fails under an agent, {kind}", faults=("EIO of the device",), possible=len(APPENDS)
    )
    SWEEPS.append(report)
    started = time.monotonic()
    for number, append in enumerate(APPENDS):
        with block_disk(workspace / append) as disk, scene(kind, disk.root / "home") as stage:
            _fails_after(stage, disk, number)
            life = launchers[0].once(stage.state_dir, stage.server.port)
            found = [] if life.code == Exit.POISONED else [f"exit code {life.code}: {life.output}"]
            # The lines are in order: the effect is there from its own line on.
            if stage.oracle.effects() != (number >= APPENDS.index("effect")):
                found.append(f"{stage.oracle.effects()} effects")
            stage.quiet()
            disk.repair()
            stage.oracle.after_power()
            lives = stage.recover(launchers[0])
            found += stage.oracle.verdict()
            if not stage.oracle.settled() or lives[-1].code != 0:
                found.append(f"not repaired: {lives[-1].code} {lives[-1].output}")
        report.runs += 1
        report.violations += [f"after {append}: {text}" for text in found]
    report.seconds = time.monotonic() - started
    require_clean(report)
