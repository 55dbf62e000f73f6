"""The launcher's tests once more, in services of a systemd that runs only for them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from systemd_manager import under_manager, why_not

from ticket_agent.peft.release import detect
from ticket_agent.peft.release.guarantees import REQUIRED, Guarantee


@pytest.fixture(scope="module")
def manager() -> None:
    """Skip with the reason where no manager can be made."""
    if reason := why_not():
        pytest.skip(reason)


needs_manager = pytest.mark.usefixtures("manager")

CHOSEN = (
    "exit_code_is_kept",
    "stopping_ends",
    "leaves_behind",
    "deadline_holds",
    "outlives",
    "another_process",
    "killed_phase",
    "killed_supervisor",
    "does_not_react",
    "launched_once",
    "flood_can_be",
    "our_environment",
    "limits_hold",
    "recycled",
)
"""What depends on how a phase is confined; all of the module passes, and takes its time."""

DETECT = f"""
import sys
sys.path.append({str(Path(detect.__file__).parents[2])!r})
from ticket_agent.peft.release.detect import *
found = detect(unconfined=False)
print(found.launcher.name, *sorted(found.held))
"""


@needs_manager
@pytest.mark.timeout(900)
def test_phases_run_as_services() -> None:
    here = Path(__file__).parent
    chosen = f"systemd and ({' or '.join(CHOSEN)})"
    command = (sys.executable, "-m", "pytest", "-q", "-k", chosen, "-p", "no:cacheprovider")
    # Some twenty tests, one after the other or a few at once: half a minute on an idle host.
    done = under_manager(*command, str(here / "test_launcher.py"), timeout_s=800)
    assert done.returncode == 0, done.stdout[-4000:]
    passed = re.search(r"^(\d+) passed, \d+ deselected", done.stdout, re.MULTILINE)
    assert passed, done.stdout
    assert int(passed[1]) >= len(CHOSEN)


@needs_manager
def test_a_service_holds_what_is_required() -> None:
    done = under_manager(sys.executable, "-I", "-c", DETECT)
    assert done.returncode == 0, done.stderr
    name, *held = done.stdout.split()
    assert name == "systemd-user"
    assert {Guarantee(text) for text in held} >= REQUIRED


def test_without_a_manager_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    found, absent = detect.candidates(os.environ)
    assert "systemd-user" not in {confinement.name for confinement in found}
    if not Path("/run/systemd/system").is_dir():
        assert "systemd" in {name for name, _ in absent}
