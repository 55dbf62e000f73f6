"""Filling a directory with another program's state: whatever stops it, no agent ever sees half of it."""

from __future__ import annotations

import errno
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from agent_faults import Killed
from hypothesis import given
from hypothesis import strategies as st
from journal_support import BOOT_ID, PLAN, REQUEST, RESULT, STAGED, FailingFs, open_store, prepare

from ticket_agent.journal.cursor import Cursor
from ticket_agent.journal.errors import (
    FenceHeldError,
    JournalError,
    RecordError,
    StateDirError,
    TakeoverError,
)
from ticket_agent.journal.record import HistoryEntry, Record, encode_record
from ticket_agent.journal.takeover import Takeover, decode_takeover, encode_takeover
from ticket_agent.journal.taking_over import require_empty, take_over
from ticket_agent.journal.transitions import State
from ticket_agent.journal.view import read_journal, verify

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.journal.fs import Fs

WANTED = Takeover(
    source="host-ticket-agent at /old",
    sha256="ab" * 32,
    unix_ms=1_700_000_000_000,
    boot_id=BOOT_ID,
    finished=False,
    epoch=2,
    lanes=(7,),
    seen=9,
    callers=3,
)


def build(takeover: Takeover) -> list[Record]:
    """One open and one ended operation; their bytes depend on the takeover alone."""

    def history(*states: State) -> tuple[HistoryEntry, ...]:
        return tuple(
            HistoryEntry(state=state, unix_ms=takeover.unix_ms, boot_id=takeover.boot_id, agent="old")
            for state in states
        )

    common: dict[str, Any] = {"family": "ticket-v2", "request": REQUEST, "plan": PLAN}
    return [
        Record(
            key="open",
            epoch=2,
            sequence=9,
            state=State.EXECUTING,
            history=history(State.PREPARED, State.EXECUTING),
            **common,
        ),
        Record(
            key="ended",
            epoch=1,
            sequence=8,
            state=State.TERMINAL,
            history=history(*State),
            result=RESULT,
            staged=STAGED,
            **common,
        ),
    ]


def run(path: Path, *, fs: Fs | None = None, wanted: Takeover = WANTED) -> Takeover:
    return take_over(
        path, takeover=wanted, build=build, cursor=lambda begun: Cursor(epoch=begun.epoch), fs=fs
    )


def files(path: Path) -> dict[str, bytes]:
    """What was taken over: without the fence's note about its owner and an agent's reserve."""
    found = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    return {name: data for name, data in found.items() if name not in {"agent.lock", "reserve"}}


def test_everything_is_there_and_an_agent_opens_it(tmp_path: Path) -> None:
    done = run(tmp_path / "s")
    assert done == replace(WANTED, finished=True)
    assert all(verdict.ok for verdict in verify(tmp_path / "s"))
    with open_store(tmp_path / "s") as store:
        assert store.takeover == done
        assert {key: record.state for key, record in store.records.items()} == {
            "open": State.EXECUTING,
            "ended": State.TERMINAL,
        }
        assert store.cursor == Cursor(epoch=2)
        assert store.cursor_problem is None
        store.save_takeover(replace(done, met=True))
    with open_store(tmp_path / "s") as store:
        assert store.takeover == replace(done, met=True)


def _calls(path: Path) -> list[str]:
    fs = FailingFs()
    run(path, fs=fs)
    return fs.calls


class DyingAt(FailingFs):
    """The process is gone at one call: no handler runs on, and what is half written stays."""

    def _check(self, name: str) -> None:
        try:
            super()._check(name)
        except OSError:
            self.armed = False
            raise Killed from None


@pytest.mark.parametrize(("kind", "error"), [(FailingFs, errno.ENOSPC), (DyingAt, errno.EIO)])
def test_a_failure_at_any_call_leaves_nothing_to_act_on_and_the_next_run_completes(
    tmp_path: Path, kind: type[FailingFs], error: int
) -> None:
    run(tmp_path / "whole")
    whole = files(tmp_path / "whole")
    calls = _calls(tmp_path / "counted")
    assert {"create_new", "write", "fsync", "close", "rename", "rename_new", "fsync_dir"} <= set(calls)
    for at in range(len(calls)):
        path = tmp_path / f"at-{at}"
        failing = kind(at=at, error=error)
        failed = False
        try:
            run(path, fs=failing)
        except (JournalError, Killed):
            failed = True
        begun = (path / "takeover.json").exists()
        finished = begun and decode_takeover((path / "takeover.json").read_bytes()).finished
        if begun and not finished:
            with pytest.raises(TakeoverError, match="was not finished"):
                open_store(path)
            assert any(not verdict.ok for verdict in verify(path))
        elif not begun and path.exists():
            assert all(name.endswith(".tmp") for name in files(path)), calls[at]
        later = replace(WANTED, unix_ms=WANTED.unix_ms + 5, boot_id="another-boot")
        if finished:
            with pytest.raises(TakeoverError, match="before"):
                run(path, wanted=later)
            open_store(path).close()
        else:
            assert failed, calls[at]
            done = run(path, wanted=later if begun else WANTED)
            assert done.unix_ms == WANTED.unix_ms
        assert files(path) == whole, calls[at]


def test_a_run_from_another_state_does_not_go_on(tmp_path: Path) -> None:
    with pytest.raises(JournalError):
        run(tmp_path / "s", fs=FailingFs(at=0, names={"rename_new"}))
    before = files(tmp_path / "s")
    for other in (replace(WANTED, sha256="cd" * 32), replace(WANTED, source="host-ticket-agent at /new")):
        with pytest.raises(TakeoverError, match="changed since"):
            run(tmp_path / "s", wanted=other)
    assert files(tmp_path / "s") == before


def _a_record(path: Path) -> None:
    with open_store(path) as store:
        prepare(store)


def _a_cursor(path: Path) -> None:
    with open_store(path) as store:
        store.save_cursor(Cursor())


def _junk(path: Path) -> None:
    open_store(path).close()
    (path / "ops" / "x").write_bytes(b"?")


def _broken_takeover(path: Path) -> None:
    open_store(path).close()
    (path / "takeover.json").write_bytes(b"{}")


def _a_file(path: Path) -> None:
    path.write_text("x")


def _a_link(path: Path) -> None:
    (path.parent / "real").mkdir()
    path.symlink_to(path.parent / "real")


@pytest.mark.parametrize(
    ("fill", "kind", "says"),
    [
        (_a_record, TakeoverError, "already holds 1 records; name a new --state-dir"),
        (_a_cursor, TakeoverError, "already holds a cursor"),
        (_junk, TakeoverError, "already holds 1 records"),
        (_broken_takeover, TakeoverError, "not valid"),
        (run, TakeoverError, "took over from host-ticket-agent at /old before"),
        (_a_file, StateDirError, "not a directory"),
        (_a_link, StateDirError, "symlink"),
    ],
    ids=["record", "cursor", "junk", "broken takeover", "done before", "file", "link"],
)
def test_only_an_empty_directory_is_filled(tmp_path: Path, fill: object, kind: type, says: str) -> None:
    assert callable(fill)
    path = tmp_path / "s"
    fill(path)
    before = files(tmp_path)
    for attempt in (lambda: run(path), lambda: require_empty(path)):
        with pytest.raises(kind, match=says):
            attempt()
    assert files(tmp_path) == before


def test_an_agent_that_found_nothing_yet_is_no_hindrance_unless_it_runs(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    with pytest.raises(FenceHeldError):
        run(tmp_path / "s")
    store.close()
    assert run(tmp_path / "s").finished


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-3], lambda data: data.replace(b"7", b"8", 1), lambda _: b""]
)
def test_an_agent_does_not_start_without_what_the_takeover_tells(tmp_path: Path, spoil: object) -> None:
    assert callable(spoil)
    run(tmp_path / "s")
    path = tmp_path / "s" / "takeover.json"
    path.write_bytes(spoil(path.read_bytes()))
    spoiled = path.read_bytes()
    with pytest.raises(TakeoverError, match="could run again"):
        open_store(tmp_path / "s")
    assert path.read_bytes() == spoiled
    assert read_journal(tmp_path / "s").takeover_problem is not None


def test_a_foreign_record_beside_an_unfinished_takeover_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalError):
        run(tmp_path / "s", fs=FailingFs(at=1, names={"rename_new"}))
    (first,) = (tmp_path / "s" / "ops").glob("*.rec")
    kept = first.read_bytes()
    first.write_bytes(encode_record(replace(build(WANTED)[0], request=b"{}")))
    with pytest.raises(TakeoverError, match="differs"):
        run(tmp_path / "s")
    first.write_bytes(kept)
    shutil.copy(first, first.with_name("another"))
    with pytest.raises(TakeoverError, match="does not belong"):
        run(tmp_path / "s")


u64 = st.integers(0, 2**64 - 1)


@given(
    lanes=st.lists(u64, min_size=1, max_size=64),
    more=u64,
    met=st.booleans(),
    callers=u64,
)
def test_the_file_comes_back(lanes: list[int], more: int, callers: int, *, met: bool) -> None:
    value = replace(
        WANTED, lanes=tuple(lanes), seen=max([*lanes, more]), met=met, callers_met=not met, callers=callers
    )
    assert decode_takeover(encode_takeover(value)) == value


@pytest.mark.parametrize(
    "change",
    [
        {"lanes": ()},
        {"lanes": (0,) * 65},
        {"lanes": (-1,)},
        {"lanes": (10,)},
        {"seen": True},
        {"epoch": 1},
        {"sha256": "AB" * 32},
        {"source": ""},
        {"source": "a\nb"},
        {"finished": 1},
        {"met": None},
        {"callers": 2**64},
    ],
    ids=str,
)
def test_what_cannot_stand_in_the_file(change: dict[str, object]) -> None:
    with pytest.raises(RecordError):
        replace(WANTED, **change)  # type: ignore[arg-type]
