"""What proves that a hive behind a mount booted again, or that another one took its place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ticket_agent.hive.mount.life import Life, Lives, ended
from ticket_agent.protocol.retention import Retention


def _log(base: int, end: int, path: str = "spec") -> Retention:
    return Retention(
        path=path,
        base=base,
        next=end,
        retained_bytes=end - base,
        retained_wire_lines=1,
        dropped_lines=0,
        dropped_bytes=base,
    )


LIFE = Life(
    root=(39, 1),
    boot=("Cohesix boot", "manifest.sha256=aa"),
    logs={"spec": _log(100, 900), "status": _log(0, 300, "status")},
)
NO_OFFSETS = replace(LIFE, logs=None, oldest="first")


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        (LIFE, LIFE, None),
        (LIFE, replace(LIFE, logs={**(LIFE.logs or {}), "spec": _log(500, 1400)}), None),
        (LIFE, replace(LIFE, root=(40, 1)), "something else is mounted"),
        (LIFE, replace(LIFE, boot=("Cohesix boot", "manifest.sha256=bb")), "/proc/boot"),
        (
            LIFE,
            replace(LIFE, logs={**(LIFE.logs or {}), "spec": _log(0, 899)}),
            "`spec` reaches to offset 899",
        ),
        (LIFE, replace(LIFE, logs={**(LIFE.logs or {}), "spec": _log(0, 950)}), "`spec` reaches"),
        (LIFE, replace(LIFE, logs={"spec": _log(100, 900)}), "`status` is gone"),
        (LIFE, NO_OFFSETS, "began or ceased"),
        (NO_OFFSETS, LIFE, "began or ceased"),
        (NO_OFFSETS, NO_OFFSETS, None),
        (NO_OFFSETS, replace(NO_OFFSETS, oldest="another"), "oldest admission"),
        (NO_OFFSETS, replace(NO_OFFSETS, oldest=None), "oldest admission"),
        (replace(NO_OFFSETS, oldest=None), NO_OFFSETS, None),
    ],
)
def test_what_ends_a_life(before: Life, now: Life, why: str | None) -> None:
    found = ended(before, now)
    assert (found is None) == (why is None)
    assert why is None or why in str(found)


def test_sessions_are_numbered() -> None:
    lives = Lives()
    lives.see_logs({})
    assert lives.current == 0
    lives.begin(LIFE)
    lives.see(LIFE)
    lives.see_logs({**(LIFE.logs or {}), "spec": _log(500, 1400)})
    assert lives.current == 1
    lives.see_logs(LIFE.logs or {})
    assert lives.current == 2
    lives.begin(LIFE)
    assert lives.current == 3
