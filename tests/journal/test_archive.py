from __future__ import annotations

import errno
import functools
import operator
from typing import TYPE_CHECKING

import pytest
from journal_support import FAMILY, REFUSAL, STAGED, Clock, FailingFs, RecordingFs, open_store, prepare, walk

from ticket_agent.journal.archive import read_segment
from ticket_agent.journal.errors import JournalPoisonedError, StorageFullError
from ticket_agent.journal.record import decode_record
from ticket_agent.journal.space import Limits
from ticket_agent.journal.transitions import State
from ticket_agent.journal.view import read_archive, verify

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.journal.fs import RealFs
    from ticket_agent.journal.store import JournalStore

DAY_MS = 24 * 3_600 * 1_000
LIMITS = Limits(retain_ms=7 * DAY_MS, retain_records=4, retire_batch=3)


def filled(
    path: Path, clock: Clock, count: int = 10, *, fs: RealFs | None = None, limits: Limits = LIMITS
) -> JournalStore:
    store = open_store(path, clock=clock, limits=limits, fs=fs)
    for sequence in range(1, count + 1):
        walk(store, f"k{sequence}", sequence)
    return store


def keys(store: JournalStore) -> list[int]:
    return sorted(int(key[1:]) for key in store.records)


def archived(path: Path) -> list[list[str]]:
    return [[record.key for record in segment.records] for segment in read_archive(path)]


def test_old_terminal_records_move_byte_for_byte(tmp_path: Path) -> None:
    clock = Clock()
    with filled(tmp_path, clock) as store:
        files = {path.name: path.read_bytes() for path in (tmp_path / "ops").iterdir()}
        records = dict(store.records)
        clock.now += 7 * DAY_MS
        assert store.retire(keep=()) == 6
        assert keys(store) == [7, 8, 9, 10]
        left = sorted(path.name for path in (tmp_path / "ops").iterdir())
        assert left == sorted(files)[6:]
        segment = tmp_path / "archive" / "00000001.seg"
        assert segment.read_bytes() == b"".join(files[name] for name in sorted(files)[:6])
        assert segment.stat().st_mode & 0o777 == 0o600
        (found,) = read_archive(tmp_path)
        assert found.problems == ()
        assert {record.key: record for record in found.records} == {
            f"k{n}": records[f"k{n}"] for n in range(1, 7)
        }
        assert store.completed_through(FAMILY, 1) == 10
        assert store.retire(keep=()) == 0
    with open_store(tmp_path, limits=LIMITS) as store:
        assert keys(store) == [7, 8, 9, 10]
        assert store.completed_through(FAMILY, 1) == 10


def test_a_retirement_is_three_fsyncs(tmp_path: Path) -> None:
    clock, fs = Clock(), RecordingFs()
    with filled(tmp_path, clock, fs=fs) as store:
        clock.now += 7 * DAY_MS
        fs.log.clear()
        store.retire(keep=())
        order = [(op.name, op.folder) for op in fs.log if op.name.startswith("fsync")]
        assert order == [("fsync", "archive"), ("fsync_dir", "archive"), ("fsync_dir", "ops")]
        assert [op.name for op in fs.log].index("fsync_dir") < [op.folder for op in fs.log].index("ops")


def test_what_is_young_stays(tmp_path: Path) -> None:
    clock = Clock()
    with filled(tmp_path, clock) as store:
        clock.now += 7 * DAY_MS - 1
        assert store.retire(keep=()) == 0
        clock.now -= 30 * DAY_MS
        assert store.retire(keep=()) == 0
        assert len(keys(store)) == 10


def test_too_few_are_not_worth_a_segment(tmp_path: Path) -> None:
    clock = Clock()
    with filled(tmp_path, clock, 6) as store:
        clock.now += 8 * DAY_MS
        assert store.retire(keep=()) == 0
        walk(store, "k7", 7)
        assert store.retire(keep=()) == 3
        assert keys(store) == [4, 5, 6, 7]


def test_what_is_kept_by_name_stays(tmp_path: Path) -> None:
    clock = Clock()
    with filled(tmp_path, clock) as store:
        clock.now += 8 * DAY_MS
        assert store.retire(keep={"k1", "k5", "k9"}) == 4
        assert keys(store) == [1, 5, 7, 8, 9, 10]


def test_nothing_above_the_completion_fence_leaves_a_fenced_family(tmp_path: Path) -> None:
    clock = Clock()
    fenced = Limits(retain_ms=0, retain_records=1, retire_batch=1, fenced_families=frozenset({FAMILY}))
    with open_store(tmp_path, clock=clock, limits=fenced) as store:
        for sequence in (1, 2, 4, 5, 6):
            walk(store, f"k{sequence}", sequence)
        prepare(store, "k3", 3)
        assert store.retire(keep=()) == 2
        assert keys(store) == [3, 4, 5, 6]
        for sequence in (11, 12, 14):
            prepare(store, f"k{sequence}", sequence, family="ticket-v1")
            store.refuse(f"k{sequence}", REFUSAL, STAGED)
            store.withdraw(f"k{sequence}", "gone")
        prepare(store, "k10", 10, family="ticket-v1")
        assert store.retire(keep=()) == 2
        assert keys(store) == [3, 4, 5, 6, 10, 14]


def test_the_highest_sequence_of_a_family_stays(tmp_path: Path) -> None:
    clock = Clock()
    limits = Limits(retain_ms=0, retain_records=2, retire_batch=1)
    with open_store(tmp_path, clock=clock, limits=limits) as store:
        for sequence in (1, 2):
            prepare(store, f"k{sequence}", sequence, family="ticket-v1")
            store.refuse(f"k{sequence}", REFUSAL, STAGED)
            store.withdraw(f"k{sequence}", "gone")
        for sequence in (5, 6, 7):
            walk(store, f"k{sequence}", sequence)
        assert store.retire(keep=()) == 2
        assert keys(store) == [2, 6, 7]
    with open_store(tmp_path, limits=limits) as store:
        assert store.highest_sequence("ticket-v1", 1) == 2


def test_a_crash_before_the_removal_leaves_duplicates_that_the_next_call_clears(tmp_path: Path) -> None:
    clock = Clock()
    fs = FailingFs(names=["unlink"], persistent=True)
    with filled(tmp_path, clock, fs=fs) as store:
        clock.now += 8 * DAY_MS
        fs.at = 2
        assert store.retire(keep=()) == 2
        assert keys(store) == [3, 4, 5, 6, 7, 8, 9, 10]
        assert store.poisoned is None
    assert archived(tmp_path) == [["k1", "k2", "k3", "k4", "k5", "k6"]]
    with open_store(tmp_path, clock=clock, limits=LIMITS) as store:
        for sequence in (11, 12):
            walk(store, f"k{sequence}", sequence)
        assert store.retire(keep=()) == 6
        assert keys(store) == [9, 10, 11, 12]
    assert archived(tmp_path) == [["k1", "k2", "k3", "k4", "k5", "k6"], ["k7", "k8"]]


def test_only_duplicates_need_no_new_segment(tmp_path: Path) -> None:
    clock = Clock()
    fs = FailingFs(names=["unlink"], persistent=True, at=0)
    with filled(tmp_path, clock, fs=fs) as store:
        clock.now += 8 * DAY_MS
        assert store.retire(keep=()) == 0
        fs.armed = False
        assert store.retire(keep=()) == 6
    assert archived(tmp_path) == [["k1", "k2", "k3", "k4", "k5", "k6"]]


@pytest.mark.parametrize("name", ["create_new", "write", "fsync", "close", "rename_new", "fsync_dir"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=lambda error: errno.errorcode[error])
def test_a_segment_that_cannot_be_written_takes_nothing_away(tmp_path: Path, name: str, error: int) -> None:
    clock = Clock()
    fs = FailingFs(names=[name], error=error)
    with filled(tmp_path, clock, fs=fs) as store:
        clock.now += 8 * DAY_MS
        fs.at = len(fs.calls)
        expected = StorageFullError if (name, error) == ("create_new", errno.ENOSPC) else JournalPoisonedError
        with pytest.raises(expected):
            store.retire(keep=())
        assert len(store.records) == 10
        assert len(list((tmp_path / "ops").iterdir())) == 10
    with open_store(tmp_path, clock=clock, limits=LIMITS) as store:
        assert store.retire(keep=()) == 6
    assert functools.reduce(operator.iadd, archived(tmp_path), []) == [f"k{n}" for n in range(1, 7)]


def test_a_failed_sync_after_the_removal_poisons(tmp_path: Path) -> None:
    clock = Clock()
    fs = FailingFs(names=["fsync_dir"])
    with filled(tmp_path, clock, fs=fs) as store:
        clock.now += 8 * DAY_MS
        fs.at = len(fs.calls) + 1
        with pytest.raises(JournalPoisonedError):
            store.retire(keep=())
        assert store.poisoned is not None


def test_a_record_that_changed_on_disk_stays(tmp_path: Path) -> None:
    clock = Clock()
    with filled(tmp_path, clock) as store:
        first = min((tmp_path / "ops").iterdir())
        first.write_bytes(bytes(100))
        clock.now += 8 * DAY_MS
        assert store.retire(keep=()) == 5
        assert first.read_bytes() == bytes(100)
    assert archived(tmp_path) == [["k2", "k3", "k4", "k5", "k6"]]
    with open_store(tmp_path, limits=LIMITS) as store:
        assert [entry.name for entry in store.quarantined] == [first.name]


def test_a_damaged_segment_gives_what_is_whole_and_names_the_rest(tmp_path: Path) -> None:
    clock = Clock()
    with filled(tmp_path, clock) as store:
        clock.now += 8 * DAY_MS
        store.retire(keep=())
    data = (tmp_path / "archive" / "00000001.seg").read_bytes()
    length = len(data) // 6
    assert decode_record(data[:length]).key == "k1"
    flipped = bytearray(data)
    flipped[length + 200] ^= 1
    segment = read_segment("x", bytes(flipped))
    assert [record.key for record in segment.records] == ["k1", "k3", "k4", "k5", "k6"]
    assert [problem.reason.split()[-1] for problem in segment.problems] == ["changed"]
    assert length < segment.problems[0].offset < 2 * length
    cut = read_segment("x", data[:-5])
    assert [record.key for record in cut.records] == ["k1", "k2", "k3", "k4", "k5"]
    assert [problem.offset for problem in cut.problems] == [5 * length]
    (tmp_path / "archive" / "00000001.seg").write_bytes(bytes(flipped))
    (bad,) = [verdict for verdict in verify(tmp_path) if not verdict.ok]
    assert (bad.file, bad.offset) == ("archive/00000001.seg", segment.problems[0].offset)


def test_a_symlink_as_newest_segment_is_not_followed(tmp_path: Path) -> None:
    clock = Clock()
    with filled(tmp_path / "s", clock) as store:
        (tmp_path / "victim").write_bytes(b"precious")
        (tmp_path / "s" / "archive" / "00000001.seg").symlink_to(tmp_path / "victim")
        clock.now += 8 * DAY_MS
        with pytest.raises(Exception, match="archive cannot be read"):
            store.retire(keep=())
        assert len(store.records) == 10
        assert walk(store, "k11", 11).state is State.TERMINAL
    assert (tmp_path / "victim").read_bytes() == b"precious"
