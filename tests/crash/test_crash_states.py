"""Every state that a power cut can legally leave of a real agent's directory, and a real recovery on each.

The operations are recorded at the agent's own seam, and once more by the kernel: that both tell the same is
what makes the first worth anything.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from crash_log import of_seam
from crash_recover import Recording, distinct, one_of_each, record_at_the_seam, recover
from crash_report import STATES, SWEEPS, Sweep
from crash_scene import SCENES, scene
from crash_states import APPEND, MODES, CrashState
from crash_sweep import SEED, TIMEOUT_S, require_clean, sampled
from hive_support import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

    from crash_process import Launcher

LIMIT = 150
"""Most recoveries of one recording, beside one for each content that means something; or all on request."""


def _recover_from_all(name: str, recording: Recording, tmp: Path) -> Sweep:
    """Recover from the states of a recording: all, or one of each kind and some of the rest."""
    states = distinct(recording, MODES)
    chosen = list(dict.fromkeys([*one_of_each(states, SEED), *sampled(states, LIMIT)]))
    report = Sweep(name=name, faults=("power cut",), possible=len(states), unit=STATES)
    SWEEPS.append(report)
    started = time.monotonic()
    for number, state in enumerate(chosen):
        report.runs += 1
        found = recover(recording, state, tmp / f"cut-{number}")
        report.violations += [f"{_shown(state)}: {text}" for text in found]
    report.seconds = time.monotonic() - started
    print(report.line())
    return report


def _shown(state: CrashState) -> str:
    files = ", ".join(f"{folder}/{name} {len(data)}" for folder, name, data in state.files)
    return f"{state.appends} lines sent; {files or 'nothing'}"


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("kind", SCENES)
def test_recovery_from_every_crash_state(workspace: Path, kind: str) -> None:
    recording = record_at_the_seam(kind, workspace / "recording")
    assert len(recording.appends) == 4 * len(SCENES[kind])
    require_clean(_recover_from_all(f"recorded at the seam, {kind}", recording, workspace))


@pytest.mark.timeout(TIMEOUT_S)
def test_recovery_from_every_crash_state_of_a_recovery(workspace: Path) -> None:
    """Death after the effect, then the power fails while the second life observes and publishes."""
    recording = record_at_the_seam("grant", workspace / "recording", interrupted=True)
    assert len(recording.appends) == 4
    require_clean(_recover_from_all("recorded at the seam, recovery", recording, workspace))


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("kind", ["grant", "two-lanes"])
def test_the_seam_is_honest(launchers: list[Launcher], workspace: Path, kind: str) -> None:
    """The kernel saw of a real process exactly what its seam told, byte for byte, in the same order."""
    clock = ManualClock(time.time_ns() // 1_000_000)
    start = clock()
    with scene(kind, workspace / "home", clock=clock) as stage:
        told, seen = launchers[0].both_logs(stage.state_dir, stage.server.port)
        assert stage.oracle.settled()
        assert stage.oracle.verdict() == []
    assert [op for op in seen if of_seam(op)] == told
    # What bypasses the seam: directories, which are synced before anything is put into them, and the lock
    # file's content, which nobody trusts.
    assert [(op.name, op.file) for op in seen if not of_seam(op)] == [
        ("mkdir", "state"),
        ("mkdir", "ops"),
        ("mkdir", "archive"),
        ("mkdir", "gaps"),
        ("truncate", "agent.lock"),
        ("write", "agent.lock"),
    ]
    assert sum(op.name == APPEND for op in told) == 4 * len(SCENES[kind])
    recording = Recording(kind=kind, hive_ms=start, log=tuple(seen))
    require_clean(_recover_from_all(f"recorded by the kernel, {kind}", recording, workspace))


@pytest.mark.parametrize(
    ("lose", "expected"),
    [("fsync", "torn"), ("fsync_dir", "the plan of t1 was lost after its effect")],
    ids=["no-fsync", "no-fsync-dir"],
)
def test_the_enumeration_finds_an_agent_without_a_sync(workspace: Path, lose: str, expected: str) -> None:
    recording = record_at_the_seam("grant", workspace / "recording", lose=[lose])
    states = one_of_each(distinct(recording, MODES[:1]), SEED)
    found = [recover(recording, state, workspace / f"cut-{at}") for at, state in enumerate(states)]
    assert sum(any(expected in text for text in wrong) for wrong in found) > 5
