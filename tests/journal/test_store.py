from __future__ import annotations

import json
import os
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journal_support import (
    BOOT_ID,
    FAMILY,
    KEY,
    ORDER,
    PLAN,
    REFUSAL,
    REQUEST,
    RESULT,
    STAGED,
    VERSION,
    Clock,
    RecordingFs,
    open_store,
    prepare,
    record_file,
    steps,
    walk,
)

from ticket_agent.journal import atomic
from ticket_agent.journal.cursor import Cursor, EpochMark
from ticket_agent.journal.envelope import Kind, seal
from ticket_agent.journal.errors import (
    CursorError,
    IllegalTransitionError,
    JournalPoisonedError,
    KeyConflictError,
    QuarantinedRecordError,
    RecordError,
    UnknownKeyError,
)
from ticket_agent.journal.outcome import Plan
from ticket_agent.journal.record import Record, decode_record
from ticket_agent.journal.space import Limits
from ticket_agent.journal.store import JournalStore
from ticket_agent.journal.transitions import TRANSITIONS, Event, State
from ticket_agent.journal.values import record_name
from ticket_agent.journal.view import read_journal, verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_an_ordinary_life_is_durable_after_every_step(tmp_path: Path) -> None:
    clock = Clock(10)
    for count, state in enumerate(ORDER, start=1):
        with open_store(tmp_path, clock=clock) as store:
            clock.now += 5
            record = steps(store)[count - 1]()
            assert record.state is state
            assert store.records[KEY] == record
        with open_store(tmp_path) as store:
            assert store.records[KEY] == record
            assert record_file(tmp_path).name == record.name
            assert decode_record(record_file(tmp_path).read_bytes()) == record
    assert [entry.state for entry in record.history] == ORDER
    assert [entry.unix_ms for entry in record.history] == [15, 20, 25, 30, 35]
    assert {(entry.boot_id, entry.agent) for entry in record.history} == {(BOOT_ID, VERSION)}
    assert (record.request, record.plan, record.result, record.staged) == (REQUEST, PLAN, RESULT, STAGED)


def test_a_note_of_uncertainty_can_be_taken_back(tmp_path: Path) -> None:
    """Where the effect stands is known again; the operation goes on as if it had never been in doubt."""
    fs = RecordingFs()
    with open_store(tmp_path, fs=fs) as store:
        prepare(store)
        executing = store.dispatch(KEY, PLAN)
        assert store.note_known(KEY) == executing
        store.note_uncertain(KEY, "lost")
        fs.log.clear()
        assert store.note_known(KEY) == executing
        assert (fs.count("fsync"), fs.count("fsync_dir")) == (1, 1)
    with open_store(tmp_path) as store:
        assert store.records[KEY] == executing
        assert store.note_uncertain(KEY, "lost again").outcome_unknown
        store.settle(KEY, RESULT, STAGED)
        with pytest.raises(IllegalTransitionError):
            store.note_known(KEY)


def test_every_transition_is_exactly_two_fsyncs(tmp_path: Path) -> None:
    fs = RecordingFs()
    with open_store(tmp_path, fs=fs) as store:
        for step in steps(store):
            fs.log.clear()
            step()
            assert (fs.count("fsync"), fs.count("fsync_dir")) == (1, 1)
        prepare(store, "other", 2)
        store.dispatch("other", PLAN)
        others: list[Callable[[], object]] = [
            lambda: store.note_uncertain("other", "connection lost"),
            lambda: store.adopt("other", RESULT, STAGED),
            lambda: store.withdraw("other", "root forgot it"),
            lambda: store.save_cursor(Cursor(consumed_sequence=2)),
        ]
        for other in others:
            fs.log.clear()
            other()
            assert (fs.count("fsync"), fs.count("fsync_dir")) == (1, 1)


def test_a_transition_lists_and_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = RecordingFs()
    with open_store(tmp_path, fs=fs) as store:

        def refuse(*_: object) -> None:
            raise AssertionError("a transition looked into the directory")

        monkeypatch.setattr(fs, "list", refuse)
        monkeypatch.setattr(fs, "read", refuse)
        walk(store)


def test_the_files_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with open_store(tmp_path / "a" / "b") as store:
            walk(store)
            store.save_cursor(Cursor())
    finally:
        os.umask(before)
    paths = [tmp_path / "a", *(tmp_path / "a").rglob("*")]
    assert {path.name for path in paths} >= {
        "b",
        "ops",
        "gaps",
        "archive",
        "agent.lock",
        "reserve",
        "cursor.json",
    }
    for path in paths:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_prepare_again_is_the_same_operation_without_a_write(tmp_path: Path) -> None:
    fs = RecordingFs()
    with open_store(tmp_path, fs=fs) as store:
        first = prepare(store)
        fs.log.clear()
        assert prepare(store) == first
        walk(store, "other", 2)
        terminal = store.records["other"]
        fs.log.clear()
        assert prepare(store, "other", 2) == terminal
        assert fs.log == []


@pytest.mark.parametrize(
    "change",
    [{"epoch": 2}, {"sequence": 2}, {"family": "ticket-v1"}, {"request": REQUEST + b" "}],
    ids=lambda change: str(next(iter(change))),
)
@pytest.mark.parametrize("state", [State.PREPARED, State.TERMINAL])
def test_a_key_is_never_used_for_another_request(
    tmp_path: Path, change: dict[str, Any], state: State
) -> None:
    members: dict[str, Any] = {"key": KEY, "family": FAMILY, "epoch": 1, "sequence": 1, "request": REQUEST}
    with open_store(tmp_path) as store:
        known = walk(store, upto=state)
        before = record_file(tmp_path).read_bytes()
        with pytest.raises(KeyConflictError, match="another admission"):
            store.prepare(**(members | change))
        assert record_file(tmp_path).read_bytes() == before
        assert store.records[KEY] == known


EVENTS: dict[Event, Callable[[JournalStore], Record]] = {
    Event.DISPATCH: lambda store: store.dispatch(KEY, PLAN),
    Event.NOTE: lambda store: store.note_uncertain(KEY, "lost"),
    Event.SETTLE: lambda store: store.settle(KEY, RESULT, STAGED),
    Event.REFUSE: lambda store: store.refuse(KEY, REFUSAL, STAGED),
    Event.ADOPT: lambda store: store.adopt(KEY, RESULT, STAGED),
    Event.PUBLISH: lambda store: store.publish(KEY),
    Event.WITHDRAW: lambda store: store.withdraw(KEY, "gone"),
    Event.FINISH: lambda store: store.finish(KEY),
}


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("event", list(Event))
def test_the_store_does_what_the_table_says(tmp_path: Path, state: State, event: Event) -> None:
    with open_store(tmp_path) as store:
        before = walk(store, upto=state)
        file = record_file(tmp_path).read_bytes()
        expected = TRANSITIONS[state].get(event)
        if expected is None:
            with pytest.raises(IllegalTransitionError):
                EVENTS[event](store)
            assert store.records[KEY] == before
            assert record_file(tmp_path).read_bytes() == file
        else:
            assert EVENTS[event](store).state is expected
            assert decode_record(record_file(tmp_path).read_bytes()) == store.records[KEY]
        assert store.poisoned is None


def test_every_event_is_covered() -> None:
    assert set(EVENTS) == set(Event)


def test_unknown_keys_are_refused(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        for event in EVENTS.values():
            with pytest.raises(UnknownKeyError, match="ticket-v2"):
                event(store)
        assert not list((tmp_path / "ops").iterdir())


def test_the_first_note_keeps_its_time_and_the_same_note_writes_nothing(tmp_path: Path) -> None:
    clock, fs = Clock(10), RecordingFs()
    with open_store(tmp_path, clock=clock, fs=fs) as store:
        walk(store, upto=State.EXECUTING)
        first = store.note_uncertain(KEY, "connection\nlost " + "x" * 300)
        assert first.uncertain is not None
        assert first.uncertain.since_unix_ms == 10
        assert first.uncertain.detail == "connection lost " + "x" * 176
        clock.now = 20
        fs.log.clear()
        assert store.note_uncertain(KEY, "connection\nlost " + "x" * 300) == first
        assert fs.log == []
        second = store.note_uncertain(KEY, "still lost")
        assert second.uncertain == replace(first.uncertain, detail="still lost")
        settled = store.settle(KEY, RESULT, STAGED)
        assert settled.uncertain == second.uncertain


def test_memory_does_not_share_what_the_caller_can_change(tmp_path: Path) -> None:
    before: dict[str, Any] = {"seen": ["a"]}
    with open_store(tmp_path) as store:
        prepare(store)
        store.dispatch(KEY, Plan(before=before, intent={}))
        before["seen"].append("b")
        plan = store.records[KEY].plan
        assert plan is not None
        assert plan.before == {"seen": ["a"]}
        evidence: dict[str, Any] = {"rows": [1]}
        store.settle(KEY, replace(RESULT, evidence=evidence), STAGED)
        evidence["rows"].append(2)
        result = store.records[KEY].result
        assert result is not None
        assert result.evidence == {"rows": [1]}


def test_evidence_that_would_not_come_back_is_refused_and_the_outcome_can_be_stored_without(
    tmp_path: Path,
) -> None:
    evidence: Any = {"rows": (1, 2)}
    with open_store(tmp_path) as store:
        walk(store, upto=State.EXECUTING)
        with pytest.raises(RecordError, match="tuple"):
            store.settle(KEY, replace(RESULT, evidence=evidence), STAGED)
        assert store.poisoned is None
        assert store.settle(KEY, RESULT, STAGED) == store.records[KEY]
    with open_store(tmp_path) as store:
        assert store.records[KEY].result == RESULT


def test_a_plan_that_cannot_be_stored_is_not_dispatched(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        prepare(store)
        for before in ({"a": "x" * 20_000}, {"a": 1.5}):
            with pytest.raises(RecordError):
                store.dispatch(KEY, Plan(before=before, intent={}))  # type: ignore[arg-type]
        assert store.records[KEY].state is State.PREPARED
        assert store.poisoned is None
        assert store.dispatch(KEY, PLAN).state is State.EXECUTING


def test_a_wrong_clock_does_not_keep_an_outcome_from_being_stored(tmp_path: Path) -> None:
    clock = Clock(1_000)
    with open_store(tmp_path, clock=clock) as store:
        walk(store, upto=State.EXECUTING)
        clock.now = -5
        assert store.settle(KEY, RESULT, STAGED).history[-1].unix_ms == 0


@pytest.mark.parametrize(
    ("boot_id", "version"), [("", "1"), ("a b", "1"), (" a", "1"), ("a", ""), ("a", "x" * 65), ("a\n", "1")]
)
def test_what_could_not_stand_in_a_record_is_refused_at_the_start(
    tmp_path: Path, boot_id: str, version: str
) -> None:
    with pytest.raises(RecordError):
        JournalStore.open(tmp_path, clock=Clock(), boot_id=boot_id, agent_version=version)


def test_open_records_are_ordered_by_epoch_and_sequence(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        for number, (epoch, sequence) in enumerate([(2, 1), (1, 9), (1, 2), (2, 3)]):
            prepare(store, f"k{number}", sequence, epoch)
        walk(store, "done", 5)
        store.refuse("k2", REFUSAL, STAGED)
        order = [(record.epoch, record.sequence) for record in store.open_records()]
        assert order == [(1, 2), (1, 9), (2, 1), (2, 3)]
        assert len(store.records) == 5
    with open_store(tmp_path) as store:
        assert [(record.epoch, record.sequence) for record in store.open_records()] == order
        assert {*store.records} == {"done", "k0", "k1", "k2", "k3"}
        assert store.records["done"].terminal
        assert "nobody" not in store.records
        assert store.highest_epoch() == 2
        newest = store.newest(FAMILY, 1)
        assert newest is not None
        assert newest.key == "k1"
        assert store.newest("ticket-v1", 1) is None
        assert [record.key for record in store.between(FAMILY, 1, 2, 9)] == ["done"]


def test_after_close_nothing_is_written(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    prepare(store)
    store.close()
    store.close()
    for refused in (
        lambda: store.dispatch(KEY, PLAN),
        lambda: prepare(store, "b", 2),
        lambda: store.save_cursor(Cursor()),
    ):
        with pytest.raises(JournalPoisonedError, match="closed"):
            refused()
    with open_store(tmp_path) as store:
        assert store.records[KEY].state is State.PREPARED


def test_stale_temporaries_of_any_kind_disturb_nobody(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        prepare(store)
        perfect = record_file(tmp_path).read_bytes()
        name = record_file(tmp_path).name
        store.dispatch(KEY, PLAN)
    executing = record_file(tmp_path).read_bytes()
    ops = tmp_path / "ops"
    (ops / f".{name}.1.0.tmp").write_bytes(perfect)
    unreadable = ops / f".{name}.{os.getpid()}.7.tmp"
    unreadable.write_bytes(b"")
    unreadable.chmod(0o000)
    (ops / ".x.tmp").symlink_to(tmp_path / "victim")
    (ops / ".dir.tmp").mkdir()
    (ops / ".dir.tmp" / "file").write_bytes(b"kept")
    (tmp_path / ".cursor.json.9.9.tmp").write_bytes(b"{}")
    (tmp_path / "archive" / ".00000001.seg.9.9.tmp").write_bytes(b"{}")
    (tmp_path / "gaps" / ".1-1-1.ack.9.9.tmp").write_bytes(b"{}")
    with open_store(tmp_path) as store:
        assert store.records[KEY].state is State.EXECUTING
        assert record_file(tmp_path).read_bytes() == executing
        assert store.quarantined == ()
        left = list(tmp_path.rglob(".*.tmp"))
        assert left == [ops / ".dir.tmp"]
        walk(store, "other", 2)


def test_a_taken_temporary_name_is_not_an_obstacle(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    with open_store(tmp_path / "s") as store:
        following = next(atomic._counter) + 1
        name = record_name(1, KEY)
        for number in range(following, following + 5):
            (tmp_path / "s" / "ops" / f".{name}.{os.getpid()}.{number}.tmp").symlink_to(victim)
        prepare(store)
        assert victim.read_bytes() == b"precious"
        assert (tmp_path / "s" / "ops" / name).is_file()
        assert not (tmp_path / "s" / "ops" / name).is_symlink()


def damage_empty(file: Path) -> None:
    file.write_bytes(b"")


def damage_zeros(file: Path) -> None:
    file.write_bytes(bytes(5_000))


def damage_symlink(file: Path) -> None:
    moved = file.with_name("moved")
    file.rename(moved)
    file.symlink_to(moved)


def damage_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def damage_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def damage_large(file: Path) -> None:
    file.write_bytes(file.read_bytes() + bytes(70_000))


DAMAGES = {
    "empty": (damage_empty, "empty"),
    "zeros": (damage_zeros, "5000 NUL bytes"),
    "symlink": (damage_symlink, "symlink"),
    "directory": (damage_directory, "not a regular file"),
    "fifo": (damage_fifo, "not a regular file"),
    "large": (damage_large, "65536"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_bad_record_is_quarantined_and_the_rest_goes_on(tmp_path: Path, case: str) -> None:
    damage, reason = DAMAGES[case]
    with open_store(tmp_path) as store:
        walk(store, upto=State.EXECUTING)
        bad = record_file(tmp_path)
        walk(store, "good", 2)
        walk(store, "later", 3, upto=State.PREPARED)
    damage(bad)
    before = sorted((path.name, path.lstat().st_size) for path in (tmp_path / "ops").iterdir())
    with open_store(tmp_path) as store:
        entry = next(entry for entry in store.quarantined if entry.name == bad.name)
        assert reason in entry.reason
        assert entry.sequence == 1
        assert KEY not in store.records
        assert [record.key for record in store.open_records()] == ["later"]
        for sequence in (1, 4):
            with pytest.raises(QuarantinedRecordError, match="quarantined"):
                prepare(store, KEY, sequence)
        assert store.completed_through(FAMILY, 1) == 0
        store.dispatch("later", PLAN)
        assert store.poisoned is None
    after = sorted((path.name, path.lstat().st_size) for path in (tmp_path / "ops").iterdir())
    assert [name for name, _ in after] == [name for name, _ in before]
    assert [pair for pair in after if pair[0] == bad.name] == [pair for pair in before if pair[0] == bad.name]


def test_a_foreign_file_is_shown_and_blocks_nothing(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        walk(store)
    (tmp_path / "ops" / "notes.txt").write_text("hello")
    with open_store(tmp_path) as store:
        (entry,) = store.quarantined
        assert (entry.name, entry.sequence) == ("notes.txt", None)
        assert store.completed_through(FAMILY, 1) == 1


def test_two_files_of_one_key_are_both_quarantined(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        walk(store)
    first = record_file(tmp_path)
    members = json.loads(first.read_bytes().split(b"\n", 1)[1])
    for sequence in (2, 3):
        members["sequence"] = sequence
        (tmp_path / "ops" / record_name(sequence, KEY)).write_bytes(seal(Kind.RECORD, members))
    with open_store(tmp_path) as store:
        assert len(store.records) == 0
        assert sorted(entry.sequence or 0 for entry in store.quarantined) == [1, 2, 3]
        with pytest.raises(QuarantinedRecordError):
            prepare(store, KEY, 4)


WRONG_BODIES: dict[str, Callable[[bytes], bytes]] = {
    "no result": lambda body: body.replace(b'"result":', b'"withdrawn":"x","uncertain":', 1),
    "float": lambda body: body.replace(b'"seq":5', b'"seq":5.0'),
    "repeated member": lambda body: body.replace(b'"epoch":1,', b'"epoch":1,"epoch":1,'),
    "history skips": lambda body: body.replace(b'"state":"executing"', b'"state":"result-published"'),
}


@pytest.mark.parametrize("case", WRONG_BODIES)
def test_a_terminal_record_of_another_hand_is_met_at_the_look_up(tmp_path: Path, case: str) -> None:
    with open_store(tmp_path) as store:
        walk(store)
        walk(store, "other", 2)
    file = tmp_path / "ops" / record_name(1, KEY)
    body = file.read_bytes().split(b"\n", 1)[1]
    forged = WRONG_BODIES[case](body)
    assert forged != body
    head = f"ticket-agent-journal/v1 sha256={sha256(forged).hexdigest()} bytes={len(forged)}\n"
    file.write_bytes(head.encode() + forged)
    with open_store(tmp_path) as store:
        with pytest.raises(QuarantinedRecordError, match=file.name):
            prepare(store)
        assert store.poisoned is None
        assert store.completed_through(FAMILY, 1) == 2
    assert [entry.name for entry in read_journal(tmp_path).quarantined] == [file.name]
    assert [verdict.file for verdict in verify(tmp_path) if not verdict.ok] == [f"ops/{file.name}"]


def test_a_terminal_record_with_a_wrong_identity_is_quarantined_at_the_start(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        walk(store)
    record_file(tmp_path).rename(tmp_path / "ops" / record_name(2, KEY))
    with open_store(tmp_path) as store:
        (entry,) = store.quarantined
        assert "name should be" in entry.reason
        assert entry.sequence == 2


def test_a_file_that_appears_after_the_start_is_not_overwritten(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        file = tmp_path / "ops" / record_name(1, KEY)
        file.write_bytes(b"restored from a backup")
        with pytest.raises(QuarantinedRecordError, match="restart"):
            prepare(store)
        assert file.read_bytes() == b"restored from a backup"
        assert store.poisoned is None
        assert list((tmp_path / "ops").iterdir()) == [file]
        walk(store, "other", 2)


def test_the_completion_fence_passes_terminal_records_only(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        assert store.completed_through(FAMILY, 1) == 0
        for sequence in (1, 2, 4, 7):
            prepare(store, f"k{sequence}", sequence)
        fences = []
        for sequence in (2, 1, 7, 4):
            store.refuse(f"k{sequence}", REFUSAL, STAGED)
            store.withdraw(f"k{sequence}", "gone")
            fences.append(store.completed_through(FAMILY, 1))
        assert fences == [0, 2, 2, 7]
        assert store.highest_sequence(FAMILY, 1) == 7
        assert store.completed_through(FAMILY, 2) == 0
        assert store.highest_sequence(FAMILY, 2) == 0
        assert store.completed_through("ticket-v1", 1) == 0
    with open_store(tmp_path) as store:
        assert store.completed_through(FAMILY, 1) == 7


def test_the_fence_is_never_below_the_cursor_in_fenced_families(tmp_path: Path) -> None:
    limits = Limits(fenced_families=frozenset({FAMILY}))
    with open_store(tmp_path, limits=limits) as store:
        walk(store, "v1", 1)
        prepare(store, "own", 1, family="ticket-v1")
        mark = EpochMark(number=1, opened_unix_ms=1, evidence="first contact", completed_through=40)
        store.save_cursor(Cursor(epochs=(mark,)))
        assert store.completed_through(FAMILY, 1) == 40
        assert store.completed_through("ticket-v1", 1) == 0
    with open_store(tmp_path, limits=limits) as store:
        assert store.completed_through(FAMILY, 1) == 40
        assert store.completed_through("ticket-v1", 1) == 0
        prepare(store, "late", 7)
        walk(store, "high", 50)
        assert store.completed_through(FAMILY, 1) == 40


def test_the_cursor_comes_back_and_never_moves_back(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        assert store.cursor == Cursor()
        mark = EpochMark(number=2, opened_unix_ms=9, evidence="sequence restarted", completed_through=5)
        saved = Cursor(epoch=2, epochs=(mark,), consumed_sequence=6)
        store.save_cursor(saved)
        assert store.cursor == saved
    with open_store(tmp_path) as store:
        assert store.cursor == saved
        assert store.cursor_problem is None
        lower = replace(mark, completed_through=4)
        for back in (Cursor(epoch=1), Cursor(epoch=2, epochs=(lower,))):
            with pytest.raises(CursorError, match="move back"):
                store.save_cursor(back)
        assert store.cursor == saved
        assert store.poisoned is None


@pytest.mark.parametrize(
    "content", [b"", bytes(300), b"{}", b"symlink"], ids=["empty", "zeros", "json", "symlink"]
)
def test_a_bad_cursor_is_kept_and_reported(tmp_path: Path, content: bytes) -> None:
    with open_store(tmp_path) as store:
        walk(store)
        store.save_cursor(Cursor(consumed_sequence=1))
    file = tmp_path / "cursor.json"
    if content == b"symlink":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    else:
        file.write_bytes(content)
    before = (file.is_symlink(), file.read_bytes())
    with open_store(tmp_path) as store:
        assert store.cursor_problem is not None
        assert "cursor.json" in store.cursor_problem
        assert store.cursor == Cursor()
        with pytest.raises(CursorError, match="kept"):
            store.save_cursor(Cursor(consumed_sequence=1))
        assert store.poisoned is None
        walk(store, "other", 2)
    assert (file.is_symlink(), file.read_bytes()) == before


@given(st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_course_of_events_reads_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("course")
    for _ in range(data.draw(st.integers(1, 3))):
        with open_store(path) as store:
            fence = store.completed_through(FAMILY, 1)
            for _ in range(data.draw(st.integers(1, 8))):
                number = data.draw(st.integers(1, 3))
                key = f"k{number}"
                if key not in store.records:
                    prepare(store, key, number)
                    continue
                legal = list(TRANSITIONS[store.records[key].state])
                if legal:
                    event = data.draw(st.sampled_from(legal))
                    before = ORDER.index(store.records[key].state)
                    apply(store, key, event)
                    assert ORDER.index(store.records[key].state) >= before
                assert store.completed_through(FAMILY, 1) >= fence
                fence = store.completed_through(FAMILY, 1)
            left = dict(store.records)
        with open_store(path) as store:
            assert dict(store.records) == left
            assert store.quarantined == ()
            assert [r.key for r in store.open_records()] == sorted(
                k for k, r in left.items() if not r.terminal
            )


def apply(store: JournalStore, key: str, event: Event) -> None:
    actions: dict[Event, Callable[[], Record]] = {
        Event.DISPATCH: lambda: store.dispatch(key, PLAN),
        Event.NOTE: lambda: store.note_uncertain(key, "lost"),
        Event.SETTLE: lambda: store.settle(key, RESULT, STAGED),
        Event.REFUSE: lambda: store.refuse(key, REFUSAL, STAGED),
        Event.ADOPT: lambda: store.adopt(key, RESULT, STAGED),
        Event.PUBLISH: lambda: store.publish(key),
        Event.WITHDRAW: lambda: store.withdraw(key, "gone"),
        Event.FINISH: lambda: store.finish(key),
    }
    actions[event]()
