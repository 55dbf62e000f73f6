"""A failing call of the agent's connection, at each of them, once and from then on, then a plain restart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from crash_process import Call, Launcher, boundaries
from crash_scene import recorded, scene
from crash_sweep import TIMEOUT_S, Run, require_clean, struck, sweep

from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

ERRORS = ("ECONNRESET", "ETIMEDOUT", "EHOSTUNREACH")
LIMIT = {"grant": 36, "renew": 12, "release": 12, "v1-grant": 12}
"""Most failures of one scene that are tried unless all are asked for."""

LEGAL = frozenset({Exit.OK, Exit.HIVE_UNREACHABLE, Exit.UNCERTAIN})
"""How a life with a broken connection may end; never poisoned, since no file failed."""
IN_DOUBT = LEGAL | {Exit.HIVE_REFUSED}
"""A console that refuses a credential just hangs up: a connection that always breaks there looks the same."""


@dataclass(frozen=True)
class Broken:
    """One call that fails, once or from then on."""

    call: Call
    error: str
    persistent: bool

    @property
    def codes(self) -> frozenset[Exit]:
        return IN_DOUBT if self.persistent and "AUTH" in self.call.what else LEGAL

    @property
    def label(self) -> str:
        return f"{self.error}{'+' if self.persistent else ''} at {self.call.label}"


def _break(launcher: Launcher, kind: str, home: Path, broken: Broken) -> Run:
    with scene(kind, home) as stage:
        when = f"{broken.call.ordinal}{'+' if broken.persistent else ''}"
        inject = f"{broken.call.name}:error={broken.error}:when={when}"
        life = launcher.once(stage.state_dir, stage.server.port, inject=inject)
        found = [] if life.code in broken.codes else [f"exit code {life.code}: {life.output}"]
        if "Traceback" in life.output:
            found.append(f"a traceback: {life.output}")
        lives = stage.recover(launcher)
        found += stage.oracle.verdict()
        if not stage.oracle.settled() or lives[-1].code != stage.oracle.exit_code():
            found.append(f"not settled: {lives[-1].code} {lives[-1].output}")
        return Run(struck(life, broken.call), found)


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("kind", LIMIT)
def test_a_failing_connection(launchers: list[Launcher], workspace: Path, kind: str) -> None:
    calls = recorded(launchers[0], kind, workspace / "recording").calls
    points = [
        Broken(call, error, persistent)
        for call in boundaries(calls)
        if call.remote
        for error in ERRORS
        for persistent in (False, True)
    ]
    report = sweep(
        f"failing connection, {kind}",
        points,
        lambda launcher, home, broken: _break(launcher, kind, home, broken),
        launchers=launchers,
        tmp=workspace,
        limit=LIMIT[kind],
        faults=tuple(f"{error}{more}" for error in ERRORS for more in ("", "+")),
        shown=lambda broken: broken.label,
    )
    require_clean(report)
