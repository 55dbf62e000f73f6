"""A failing call at every boundary under the state directory of a real agent, then repair and restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crash_failure import ERRORS, POISONED, fail, failures_of
from crash_scene import SCENES, recorded
from crash_sweep import TIMEOUT_S, require_clean, sweep

if TYPE_CHECKING:
    from pathlib import Path

    from crash_process import Launcher

LIMIT = {"grant": 160, "renew": 60, "release": 60, "two-lanes": 80}
"""Most failures of one scene that are tried unless all are asked for."""


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("kind", LIMIT)
def test_a_failing_call(launchers: list[Launcher], workspace: Path, kind: str) -> None:
    calls = recorded(launchers[0], kind, workspace / "recording").calls
    failures = failures_of(calls, ERRORS, (False, True))
    assert len(failures) > 500
    assert {failure.effects for failure in failures} == set(range(len(SCENES[kind]) + 1))
    report = sweep(
        f"failing calls, {kind}",
        failures,
        lambda launcher, home, failure: fail(launcher, kind, home, failure),
        launchers=launchers,
        tmp=workspace,
        limit=LIMIT[kind],
        faults=tuple(f"{error}{more}" for error in ERRORS for more in ("", "+")),
        shown=lambda failure: failure.label,
    )
    require_clean(report)


@pytest.mark.timeout(TIMEOUT_S)
def test_a_failed_step_of_a_record_poisons(launchers: list[Launcher], workspace: Path) -> None:
    """Every one of them, not a sample: fsync, write and close of a record, and the fsync of its directory."""
    calls = recorded(launchers[0], "grant", workspace / "recording").calls
    failures = [
        failure
        for failure in failures_of(calls, ("EIO",), (False, True))
        if failure.of_a_record and failure.call.name in ("fsync", "write", "close")
    ]
    assert len(failures) == 4 * 5 * 2
    assert all(failure.codes() == POISONED for failure in failures)
    report = sweep(
        "write, fsync and close of records",
        failures,
        lambda launcher, home, failure: fail(launcher, "grant", home, failure),
        launchers=launchers,
        tmp=workspace,
        limit=len(failures),
        faults=("EIO", "EIO+"),
        shown=lambda failure: failure.label,
    )
    require_clean(report)
