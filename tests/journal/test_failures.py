"""Every call at the seam fails once, with every errno that matters."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from journal_support import (
    KEY,
    ORDER,
    PLAN,
    REFUSAL,
    RESULT,
    STAGED,
    FailingFs,
    open_store,
    prepare,
    record_file,
    resume,
    steps,
    walk,
)

from ticket_agent.journal.atomic import ReplaceError
from ticket_agent.journal.cursor import Cursor
from ticket_agent.journal.errors import JournalIoError, JournalPoisonedError, StorageFullError
from ticket_agent.journal.fs import FreeSpace
from ticket_agent.journal.space import Limits
from ticket_agent.journal.transitions import State
from ticket_agent.journal.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ticket_agent.journal.store import JournalStore

FULL = (errno.ENOSPC, errno.EDQUOT)
# The calls of one ordinary life, as (transition, operation), found by the test below to be complete.
PREPARE = ["free_space", "create_new", "write", "fsync", "close", "rename_new", "fsync_dir"]
DISPATCH = [
    "free_space",
    "open_kept",
    "reserve",
    "close",
    "create_new",
    "write",
    "fsync",
    "close",
    "rename",
    "fsync_dir",
]
OUTCOME = ["create_new", "write", "fsync", "close", "rename", "fsync_dir"]
CALLS = [
    (state, name)
    for state, names in zip(ORDER, [PREPARE, DISPATCH, OUTCOME, OUTCOME, OUTCOME], strict=True)
    for name in names
]
RESERVE_CLOSED = len(PREPARE) + DISPATCH.index("close")


def test_the_list_of_calls_is_complete(tmp_path: Path) -> None:
    fs = FailingFs()
    with open_store(tmp_path, fs=fs) as store:
        fs.calls.clear()
        walk(store)
    assert fs.calls == [name for _, name in CALLS]


@pytest.mark.parametrize(
    "number", range(len(CALLS)), ids=lambda number: f"{CALLS[number][0].name}-{number}-{CALLS[number][1]}"
)
@pytest.mark.parametrize("error", [errno.EIO, *FULL], ids=lambda error: errno.errorcode[error])
def test_one_failing_call(tmp_path: Path, number: int, error: int) -> None:
    state, name = CALLS[number]
    fs = FailingFs()
    store = open_store(tmp_path, fs=fs)
    fs.calls.clear()
    fs.at, fs.error = number, error
    full = error in FULL
    of_reserve = name in ("open_kept", "reserve") or number == RESERVE_CLOSED
    refusable = full and (of_reserve or (name == "create_new" and state in (State.PREPARED, State.EXECUTING)))
    emergency = full and name in ("create_new", "write") and state not in (State.PREPARED, State.EXECUTING)
    done = run_until_failure(store)
    assert fs.failed == name
    before = None if done == 0 else ORDER[done - 1]
    if refusable:
        assert done == ORDER.index(state)
        assert store.poisoned is None
        assert resume(store).state is State.TERMINAL
    elif emergency:
        assert done == len(ORDER)
        assert store.records[KEY].state is State.TERMINAL
        assert store.poisoned is not None
        assert "reserve" in store.poisoned
        assert_nothing_new(store)
    else:
        assert done == ORDER.index(state)
        assert store.poisoned is not None
        assert (store.records[KEY].state if KEY in store.records else None) is before
        assert_nothing_at_all(store)
    store.close()
    with open_store(tmp_path) as store:
        assert store.poisoned is None
        assert store.quarantined == ()
        assert not list((tmp_path / "ops").glob(".*"))
        found = store.records[KEY].state if KEY in store.records else None
        if not refusable and not emergency:
            assert found in (before, state)
            if name != "fsync_dir":
                assert found is before
        assert resume(store).state is State.TERMINAL


def run_until_failure(store: JournalStore) -> int:
    """How many of the five transitions were done."""
    for done, step in enumerate(steps(store)):
        try:
            step()
        except (StorageFullError, JournalPoisonedError):
            return done
    return len(ORDER)


def assert_nothing_new(store: JournalStore) -> None:
    with pytest.raises(JournalPoisonedError, match="start it again"):
        prepare(store, "other", 2)
    with pytest.raises(JournalPoisonedError, match="start it again"):
        store.retire(keep=())


def assert_nothing_at_all(store: JournalStore) -> None:
    assert_nothing_new(store)
    events: list[Callable[[], object]] = [
        lambda: store.dispatch(KEY, PLAN),
        lambda: store.note_uncertain(KEY, "x"),
        lambda: store.settle(KEY, RESULT, STAGED),
        lambda: store.refuse(KEY, REFUSAL, STAGED),
        lambda: store.adopt(KEY, RESULT, STAGED),
        lambda: store.publish(KEY),
        lambda: store.withdraw(KEY, "x"),
        lambda: store.finish(KEY),
        lambda: store.save_cursor(Cursor()),
    ]
    for event in events:
        with pytest.raises(JournalPoisonedError):
            event()


def test_a_failed_fsync_is_final_although_the_next_would_succeed(tmp_path: Path) -> None:
    fs = FailingFs(names=["fsync"])
    with open_store(tmp_path, fs=fs) as store:
        walk(store, upto=State.EXECUTING)
        fs.at = len(fs.calls)
        with pytest.raises(JournalPoisonedError, match="fsync of"):
            store.settle(KEY, RESULT, STAGED)
        tried = len(fs.calls)
        with pytest.raises(JournalPoisonedError):
            store.settle(KEY, RESULT, STAGED)
        assert len(fs.calls) == tried
        assert store.records[KEY].state is State.EXECUTING


def test_a_refusal_or_adoption_before_dispatch_waits_for_space(tmp_path: Path) -> None:
    fs = FailingFs(names=["create_new"], error=errno.ENOSPC, persistent=True)
    with open_store(tmp_path, fs=fs) as store:
        prepare(store)
        fs.at = 0
        for event in (store.refuse, store.adopt):
            with pytest.raises(StorageFullError):
                event(KEY, REFUSAL, STAGED)
        assert store.poisoned is None
        assert (tmp_path / "reserve").exists()
        fs.armed = False
        assert store.refuse(KEY, REFUSAL, STAGED).state is State.PERSISTED


def test_in_an_emergency_further_outcomes_are_still_stored(tmp_path: Path) -> None:
    fs = FailingFs(names=["write"], error=errno.ENOSPC)
    with open_store(tmp_path, fs=fs) as store:
        prepare(store, "waiting", 9)
        for number in (1, 2):
            walk(store, f"k{number}", number, upto=State.EXECUTING)
        assert (tmp_path / "reserve").stat().st_size == 64 * 1024 + 2 * 32 * 1024
        fs.at = len(fs.calls)
        store.settle("k1", RESULT, STAGED)
        assert not (tmp_path / "reserve").exists()
        store.settle("k2", RESULT, STAGED)
        store.publish("k1")
        assert_nothing_new(store)
        with pytest.raises(JournalPoisonedError, match="start it again"):
            store.dispatch("waiting", PLAN)
        fs.at = len(fs.calls)
        with pytest.raises(JournalPoisonedError, match="No space left"):
            store.publish("k2")
        with pytest.raises(JournalPoisonedError):
            store.finish("k1")
    with open_store(tmp_path) as store:
        assert store.records["k1"].state is State.PUBLISHED
        assert store.records["k2"].state is State.PERSISTED
        assert (tmp_path / "reserve").exists()


def test_a_note_of_uncertainty_never_spends_the_reserve(tmp_path: Path) -> None:
    fs = FailingFs(names=["create_new"], error=errno.ENOSPC, persistent=True)
    with open_store(tmp_path, fs=fs) as store:
        walk(store, upto=State.EXECUTING)
        fs.at = len(fs.calls)
        with pytest.raises(StorageFullError, match="make room"):
            store.note_uncertain(KEY, "connection lost")
        assert store.poisoned is None
        assert (tmp_path / "reserve").exists()
        assert store.records[KEY].uncertain is None
        fs.armed = False
        assert store.settle(KEY, RESULT, STAGED).state is State.PERSISTED


def test_a_store_can_be_closed_twice_without_closing_what_others_opened(tmp_path: Path) -> None:
    store = open_store(tmp_path / "state")
    numbers = {store._dirs.root, store._dirs.ops, store._dirs.archive, store._dirs.gaps}
    store.close()
    opened: list[int] = []
    try:
        while not numbers <= set(opened):
            opened.append(os.open(os.devnull, os.O_RDONLY))
        store.close()
        assert all(os.fstat(number) for number in numbers)
    finally:
        for number in opened:
            os.close(number)


def test_when_even_the_reserve_does_not_help_the_store_is_poisoned(tmp_path: Path) -> None:
    fs = FailingFs(names=["write"], error=errno.ENOSPC, persistent=True)
    with open_store(tmp_path, fs=fs) as store:
        walk(store, upto=State.EXECUTING)
        fs.at = len(fs.calls)
        with pytest.raises(JournalPoisonedError):
            store.settle(KEY, RESULT, STAGED)
        assert store.records[KEY].state is State.EXECUTING
    with open_store(tmp_path) as store:
        assert store.records[KEY].state is State.EXECUTING


@pytest.mark.parametrize("failing", ["open_kept", "reserve"])
def test_dispatch_waits_for_its_reserve_and_goes_on_without_a_restart(tmp_path: Path, failing: str) -> None:
    fs = FailingFs(names=[failing], error=errno.ENOSPC, persistent=True)
    with open_store(tmp_path, fs=fs) as store:
        prepare(store)
        fs.at = 0
        for _ in range(3):
            with pytest.raises(StorageFullError, match="make room"):
                store.dispatch(KEY, PLAN)
            assert store.records[KEY].state is State.PREPARED
            assert store.poisoned is None
        fs.armed = False
        assert store.dispatch(KEY, PLAN).state is State.EXECUTING


class NearlyFullFs(FailingFs):
    """A disk with little left; what is asked for is counted."""

    left = FreeSpace(bytes=10**9, inodes=10**6)

    def free_space(self, dir_fd: int) -> FreeSpace:
        return self.left


@pytest.mark.parametrize("left", [FreeSpace(bytes=262_143, inodes=999), FreeSpace(bytes=10**9, inodes=15)])
def test_a_nearly_full_disk_is_met_before_anything_is_written(tmp_path: Path, left: FreeSpace) -> None:
    fs = NearlyFullFs()
    with open_store(tmp_path, fs=fs) as store:
        prepare(store)
        walk(store, "dispatched", 2, upto=State.EXECUTING)
        fs.left = left
        fs.calls.clear()
        for event in (
            lambda: prepare(store, "b", 3),
            lambda: store.dispatch(KEY, PLAN),
            lambda: store.save_cursor(Cursor()),
        ):
            with pytest.raises(StorageFullError, match="free"):
                event()
        assert fs.calls == []
        # What was dispatched is not held up.
        store.settle("dispatched", RESULT, STAGED)
        store.publish("dispatched")
        store.finish("dispatched")
        fs.left = FreeSpace(bytes=262_144, inodes=None)
        assert store.dispatch(KEY, PLAN).state is State.EXECUTING


def test_the_reserve_grows_with_what_is_executing_and_is_restored(tmp_path: Path) -> None:
    limits = Limits(reserve_base=4_096, reserve_per_operation=8_192)
    reserve = tmp_path / "reserve"
    with open_store(tmp_path, limits=limits) as store:
        sizes = [reserve.stat().st_size]
        for number in (1, 2, 3):
            walk(store, f"k{number}", number, upto=State.EXECUTING)
            sizes.append(reserve.stat().st_size)
        assert sizes == [4_096, 12_288, 20_480, 28_672]
        assert reserve.stat().st_blocks * 512 >= 28_672
        # Only what is executing counts, not what was dispatched before.
        store.settle("k1", RESULT, STAGED)
        reserve.unlink()
        walk(store, "k5", 5, upto=State.EXECUTING)
        assert reserve.stat().st_size == 28_672
        store.settle("k5", RESULT, STAGED)
        # A file that only has the length holds nothing.
        reserve.unlink()
        with reserve.open("wb") as file:
            file.truncate(1_000_000)
        walk(store, "k6", 6, upto=State.EXECUTING)
        assert reserve.stat().st_blocks * 512 >= 28_672
        # An operator who removed it to make room gets it back with the next dispatch.
        reserve.unlink()
        walk(store, "k4", 4, upto=State.EXECUTING)
        assert reserve.stat().st_size == 36_864
    reserve.unlink()
    with open_store(tmp_path, limits=limits):
        assert reserve.stat().st_size == 36_864
    reserve.unlink()
    full = FailingFs(at=0, names=["reserve"], error=errno.ENOSPC)
    with open_store(tmp_path, limits=limits, fs=full) as store:
        assert store.poisoned is None
        assert store.settle("k2", RESULT, STAGED).state is State.PERSISTED


def test_memory_that_did_not_follow_the_disk_counts_as_poisoned(tmp_path: Path) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        writer = Writer(FailingFs(), fd, Limits())
        with pytest.raises(KeyboardInterrupt):
            writer.put(fd, "file", b"content", interrupted)
        assert writer.poisoned is not None
        with pytest.raises(JournalPoisonedError, match="interrupted"):
            writer.put(fd, "file", b"content", lambda: None)
    finally:
        os.close(fd)


def test_a_reserve_that_is_a_symlink_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    with open_store(tmp_path / "s") as store:
        prepare(store)
        (tmp_path / "s" / "reserve").unlink()
        (tmp_path / "s" / "reserve").symlink_to(victim)
        with pytest.raises(JournalPoisonedError, match="reserve"):
            store.dispatch(KEY, PLAN)
    assert victim.read_bytes() == b"precious"


def test_an_interrupt_in_the_middle_of_a_write_poisons(tmp_path: Path) -> None:
    class InterruptedFs(FailingFs):
        def fsync_dir(self, dir_fd: int) -> None:
            super().fsync_dir(dir_fd)
            if self.at is not None:
                raise KeyboardInterrupt

    fs = InterruptedFs()
    with open_store(tmp_path, fs=fs) as store:
        walk(store, upto=State.EXECUTING)
        fs.at = 10**9
        with pytest.raises(KeyboardInterrupt):
            store.settle(KEY, RESULT, STAGED)
        assert store.poisoned is not None
        assert "interrupted" in store.poisoned
        assert_nothing_at_all(store)
    with open_store(tmp_path) as store:
        assert store.records[KEY].state is State.PERSISTED


@pytest.mark.parametrize("name", ["create_new", "write", "fsync", "close", "rename", "fsync_dir"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=lambda error: errno.errorcode[error])
def test_a_cursor_that_cannot_be_saved(tmp_path: Path, name: str, error: int) -> None:
    fs = FailingFs(names=[name], error=error)
    with open_store(tmp_path, fs=fs) as store:
        store.save_cursor(Cursor(consumed_sequence=1))
        fs.at = len(fs.calls)
        expected = StorageFullError if (name, error) == ("create_new", errno.ENOSPC) else JournalPoisonedError
        with pytest.raises(expected):
            store.save_cursor(Cursor(consumed_sequence=2))
        assert store.cursor == Cursor(consumed_sequence=1)
        assert (store.poisoned is None) is (expected is StorageFullError)
    with open_store(tmp_path) as store:
        assert store.cursor.consumed_sequence in ((1, 2) if name == "fsync_dir" else (1,))


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    sizes: list[int] = []

    def short(fd: int, data: bytes) -> int:
        sizes.append(len(data))
        return real(fd, data[:100])

    with open_store(tmp_path) as store:
        monkeypatch.setattr(os, "write", short)
        record = prepare(store)
    assert len(sizes) > 3
    with open_store(tmp_path) as store:
        assert store.records[KEY] == record


def test_the_replace_error_names_step_and_file(tmp_path: Path) -> None:
    fs = FailingFs(names=["write"])
    with open_store(tmp_path, fs=fs) as store:
        fs.at = len(fs.calls)
        with pytest.raises(JournalPoisonedError) as caught:
            prepare(store)
        assert isinstance(caught.value.__cause__, ReplaceError)
        assert caught.value.__cause__.step == "write"
        assert store.poisoned == str(caught.value.__cause__)
        assert ".rec failed: Input/output error" in store.poisoned
        assert not list((tmp_path / "ops").iterdir())


@pytest.mark.parametrize("name", ["fsync_dir", "open_kept"])
def test_a_start_that_fails_gives_the_fence_back(tmp_path: Path, name: str) -> None:
    for number in range(2):
        fs = FailingFs(names=[name], at=number)
        with pytest.raises((JournalIoError, JournalPoisonedError)):
            open_store(tmp_path, fs=fs)
        assert fs.failed == name
    with open_store(tmp_path) as store:
        walk(store)
        assert record_file(tmp_path).exists()
