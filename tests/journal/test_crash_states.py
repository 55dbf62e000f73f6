"""Every state that a power cut can legally leave behind of one record, and what the scan makes of it.

The same enumeration must find violations as soon as one of the two fsyncs is left out; otherwise it proves
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crash_states import MODES, CrashState, Mode, crash_states
from journal_support import KEY, ORDER, MemoryFs, Op, RecordingFs, open_store, resume, steps

from ticket_agent.journal.scan import scan_records
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from pathlib import Path


def record_life(path: Path, *, lose: str | None = None) -> list[Op]:
    """The operations in ``ops/`` of one ordinary life, with a mark before and after each transition."""
    fs = RecordingFs(lose=[] if lose is None else [lose])
    with open_store(path, fs=fs) as store:
        fs.log.clear()
        for step in steps(store):
            fs.note("begin")
            step()
            fs.note("done")
    return [op for op in fs.log if op.folder in ("", "ops")]


def violation(state: CrashState) -> str | None:
    """What is wrong with a state, looked at by the scan of the next start."""
    scan = scan_records(MemoryFs(state.listed("ops")), 0)
    if scan.quarantined:
        return f"torn: {scan.quarantined[0].reason}"
    record = scan.records.get(KEY)
    reached = 0 if record is None else ORDER.index(record.state) + 1
    if reached < state.done:
        effect = " after its effect" if state.done >= 2 > reached else ""
        return f"lost{effect}: {reached} of {state.done} transitions are left"
    if reached > state.begun:
        return "a state that was never begun"
    return None


@pytest.mark.parametrize("mode", MODES)
def test_no_crash_state_loses_or_tears_anything(tmp_path: Path, mode: Mode) -> None:
    states = [*crash_states(record_life(tmp_path), mode)]
    assert len(states) > 25
    assert [found for state in states if (found := violation(state)) is not None] == []
    # A perfect temporary beside an older record is among them, and the older record counts.
    assert any(len(state.files) == 2 and state.done for state in states)


@pytest.mark.parametrize(
    ("lose", "expected"),
    [("fsync", "torn"), ("fsync_dir", "lost after its effect")],
    ids=["no-fsync", "no-fsync-dir"],
)
def test_the_enumeration_finds_a_missing_fsync(tmp_path: Path, lose: str, expected: str) -> None:
    states = crash_states(record_life(tmp_path, lose=lose), "ordered")
    found = [reason for state in states if (reason := violation(state)) is not None]
    assert sum(reason.startswith(expected) for reason in found) > 3


def test_a_real_start_recovers_from_every_crash_state(tmp_path: Path) -> None:
    for number, state in enumerate(crash_states(record_life(tmp_path / "log"), "ordered")):
        path = tmp_path / f"cut{number}"
        open_store(path).close()
        for name, data in state.listed("ops").items():
            (path / "ops" / name).write_bytes(data)
        with open_store(path) as store:
            assert store.quarantined == ()
            assert not list((path / "ops").glob(".*"))
            known = store.records.get(KEY)
            if state.done >= 2:
                assert known is not None
                assert known.state is not State.PREPARED
            assert resume(store).state is State.TERMINAL
