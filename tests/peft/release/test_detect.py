"""Which confinement is used: what works when tried, never what only says so."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from peft_support import needs_root, no_descriptor_leaks
from phase_support import BUBBLEWRAP, needs_bubblewrap

from ticket_agent.peft.release import probe
from ticket_agent.peft.release.confine import Bubblewrap, SystemdRun, Unconfined
from ticket_agent.peft.release.detect import candidates, describe, detect, evidence, examine
from ticket_agent.peft.release.guarantees import REQUIRED, Expected, Guarantee, judge
from ticket_agent.peft.release.launch_errors import LaunchError, NoLauncherError
from ticket_agent.peft.release.offline_flags import OFFLINE

if TYPE_CHECKING:
    from collections.abc import Callable


def _program(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


ONLY_RUNS = 'while [ "$1" != -- ]; do shift; done\nshift\nexec "$@"'
"""A program that takes the options of systemd-run or bwrap, heeds none, and runs the command."""


@needs_bubblewrap
def test_bubblewrap_holds_what_is_required() -> None:
    assert BUBBLEWRAP is not None
    with no_descriptor_leaks():
        found = detect(unconfined=False, choice=[BUBBLEWRAP])
    assert found.launcher.name == "bubblewrap"
    assert not found.unconfined
    assert found.held >= REQUIRED | {Guarantee.ADDRESS_SPACE}
    assert (Guarantee.PROCESSES in found.held) is (os.geteuid() != 0)
    assert Guarantee.MEMORY not in found.held
    assert evidence(found)["guarantees"]["network"] is True
    assert describe(found)[0] == "phases run in bubblewrap"


AS_NOBODY = (
    "setpriv",
    "--reuid",
    "54321",
    "--regid",
    "54321",
    "--clear-groups",
    "/usr/bin/python3",
    "-I",
    "-c",
)
IMPORT = f"""
import sys
assert sys.version_info >= (3, 11)
sys.path.append({str(Path(probe.__file__).parents[3])!r})
from ticket_agent.peft.release.detect import *
from ticket_agent.peft.release import probe
from ticket_agent.peft.release.confine import *
"""
ANSWER = "found = detect(unconfined=False, choice=[Bubblewrap.of_host('{}')])\nprint(*sorted(found.held))\n"


def _as_nobody(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*AS_NOBODY, code], capture_output=True, text=True, check=False, cwd="/")


@needs_root
@needs_bubblewrap
def test_without_root_bubblewrap_limits_processes_too() -> None:
    assert isinstance(BUBBLEWRAP, Bubblewrap)
    if _as_nobody(IMPORT).returncode != 0:
        pytest.skip("no other account can use this checkout with the system's Python (3.11 or later)")
    done = _as_nobody(IMPORT + ANSWER.format(BUBBLEWRAP.program))
    assert done.returncode == 0, done.stderr
    assert {Guarantee(text) for text in done.stdout.split()} == REQUIRED | {
        Guarantee.PROCESSES,
        Guarantee.ADDRESS_SPACE,
    }


@needs_bubblewrap
def test_what_does_not_confine_is_passed_over(tmp_path: Path) -> None:
    assert BUBBLEWRAP is not None
    liar = SystemdRun(
        program=_program(tmp_path, "systemd-run", ONLY_RUNS),
        control=_program(tmp_path, "systemctl", "exit 5"),
    )
    found = detect(unconfined=True, choice=[liar, BUBBLEWRAP])
    assert found.launcher.name == "bubblewrap"
    ((name, reason),) = found.passed_over
    assert name == "systemd-user"
    assert "reaches the host's network" in reason
    assert "can change its inputs" in reason
    assert f"not used: {name}: {reason}" in describe(found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo no bus >&2; exit 1", "the trial failed with 1: no bus"),
        ("echo nonsense", "the trial's answer is not what the probe writes"),
        ("kill -9 $$", "the trial failed with signal 9"),
    ],
)
def test_what_fails_is_passed_over_with_its_reason(tmp_path: Path, text: str, words: str) -> None:
    broken = Bubblewrap(program=_program(tmp_path, "bwrap", text))
    with pytest.raises(LaunchError, match=words):
        examine(broken)
    with pytest.raises(NoLauncherError, match=words):
        detect(unconfined=False, choice=[broken])


def test_without_any_the_line_says_what_to_do() -> None:
    with pytest.raises(NoLauncherError) as caught:
        detect(unconfined=False, choice=[Bubblewrap(program="/nonexistent/bwrap")])
    text = str(caught.value)
    assert text.startswith(
        "no confinement works here; install bubblewrap, or allow unconfined = true (bubblewrap: "
    )
    assert "\n" not in text
    with pytest.raises(NoLauncherError, match="nothing to try"):
        detect(unconfined=False, choice=[])


def test_running_without_must_be_allowed_and_is_stated() -> None:
    found = detect(unconfined=True, choice=[])
    assert found.unconfined
    assert found.launcher.name == "unconfined"
    assert evidence(found)["launcher"] == "unconfined"
    assert evidence(found)["unconfined"] is True
    never = {Guarantee.NETWORK, Guarantee.INPUTS, Guarantee.TMP, Guarantee.HIDDEN, Guarantee.TREE}
    assert not found.held & never
    assert found.held >= {Guarantee.ENVIRONMENT, Guarantee.OFFLINE, Guarantee.NO_NEW_PRIVILEGES}
    assert describe(found)[0] == "phases run without confinement"
    with pytest.raises(NoLauncherError, match="reaches the host's network"):
        detect(unconfined=False, choice=[Unconfined()])


def test_every_guarantee_has_one_line() -> None:
    found = detect(unconfined=True, choice=[])
    lines = [line for line in describe(found) if re.match(r"(yes|no ) ", line)]
    assert [re.split(r"[ :]+", line)[1] for line in lines] == [str(guarantee) for guarantee in Guarantee]
    assert evidence(found)["guarantees"].keys() == set(Guarantee)


def test_what_this_host_offers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert candidates({}) == (
        [],
        [("systemd", "systemd-run is not installed"), ("bubblewrap", "bwrap is not installed")],
    )
    for name in ("systemd-run", "systemctl", "bwrap"):
        _program(tmp_path, name, "exit 1")
    (tmp_path / "systemd").mkdir()
    (tmp_path / "systemd" / "private").write_bytes(b"")
    environment = {"XDG_RUNTIME_DIR": str(tmp_path), "HF_TOKEN": "secret"}
    found, _ = candidates(environment)
    assert [confinement.name for confinement in found if confinement.name != "systemd-system"] == [
        "systemd-user",
        "bubblewrap",
    ]
    user = found[0]
    assert isinstance(user, SystemdRun)
    assert user.manager == {"XDG_RUNTIME_DIR": str(tmp_path)}


UNIT = "ticket-agent-phase-0123456789abcdef.service"
HOST = {"net": "net:[1]", "pid": "pid:[1]", "mnt": "mnt:[1]"}
EXPECTED = Expected(environment={**OFFLINE, "HOME": "/tmp"}, namespaces=HOST, unit=None)
HELD: dict[str, Any] = {
    "interfaces": ["lo"],
    "namespaces": {"net": "net:[2]", "pid": "pid:[2]", "mnt": "mnt:[2]"},
    "environment": {**OFFLINE, "HOME": "/tmp", "PWD": "/x"},
    "no_new_privileges": True,
    "capabilities": 0,
    "changes_kernel": False,
    "uid": 1000,
    "sees_canary": False,
    "sees_run_dir": False,
    "reads_input": True,
    "writes_input": False,
    "writes_output": True,
    "writes_tmp": True,
    "file_limit_held": True,
    "limits": {"RLIMIT_NPROC": 100, "RLIMIT_AS": 1 << 30},
    "cgroup": "0::/\n",
    "memory_max": "1073741824",
    "pids_max": "max",
}


def broken(facts: dict[str, Any], expected: Expected = EXPECTED) -> set[Guarantee]:
    return {verdict.guarantee for verdict in judge(facts, expected) if not verdict.held}


def test_all_can_be_held() -> None:
    assert broken(HELD) == set()


def _namespace(name: str, value: str) -> Callable[[], dict[str, Any]]:
    return lambda: {"namespaces": {**HELD["namespaces"], name: value}}


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        ({"interfaces": ["eth0", "lo"]}, Guarantee.NETWORK),
        ({"interfaces": []}, Guarantee.NETWORK),
        (_namespace("net", HOST["net"])(), Guarantee.NETWORK),
        (_namespace("net", "")(), Guarantee.NETWORK),
        (_namespace("pid", HOST["pid"])(), Guarantee.TREE),
        (_namespace("pid", "")(), Guarantee.TREE),
        ({"sees_canary": True}, Guarantee.TMP),
        ({"writes_tmp": False}, Guarantee.TMP),
        ({"writes_input": True}, Guarantee.INPUTS),
        ({"reads_input": False}, Guarantee.INPUTS),
        ({"writes_output": False}, Guarantee.INPUTS),
        ({"sees_run_dir": True}, Guarantee.HIDDEN),
        ({"environment": {**HELD["environment"], "HF_TOKEN": "x"}}, Guarantee.ENVIRONMENT),
        ({"environment": {**HELD["environment"], "HOME": "/root"}}, Guarantee.ENVIRONMENT),
        ({"environment": {"HOME": "/tmp"}}, Guarantee.OFFLINE),
        ({"file_limit_held": False}, Guarantee.FILE_SIZE),
        ({"no_new_privileges": False}, Guarantee.NO_NEW_PRIVILEGES),
        ({"capabilities": 1}, Guarantee.CAPABILITIES),
        ({"capabilities": -1}, Guarantee.CAPABILITIES),
        ({"changes_kernel": True}, Guarantee.CAPABILITIES),
        ({"uid": 0}, Guarantee.PROCESSES),
        ({"limits": {"RLIMIT_NPROC": -1, "RLIMIT_AS": 1}}, Guarantee.PROCESSES),
        ({"limits": {"RLIMIT_NPROC": 1, "RLIMIT_AS": -1}}, Guarantee.ADDRESS_SPACE),
        ({"memory_max": "max"}, Guarantee.MEMORY),
        ({"memory_max": ""}, Guarantee.MEMORY),
    ],
)
def test_each_fact_decides_its_guarantee(change: dict[str, Any], lost: Guarantee) -> None:
    assert broken({**HELD, **change}) == {lost}


def test_a_control_group_limits_root() -> None:
    assert broken({**HELD, "uid": 0, "pids_max": "64"}) == set()


@pytest.mark.parametrize(
    ("line", "held"),
    [
        (f"0::/user.slice/{UNIT}", True),
        (f"0::/{UNIT}/payload", True),
        (f"0::/x-{UNIT}", False),
        ("0::/user.slice", False),
    ],
)
def test_a_unit_ends_as_a_whole(line: str, held: bool) -> None:
    facts = {**HELD, **_namespace("pid", HOST["pid"])(), "cgroup": line + "\n"}
    expected = Expected(environment=EXPECTED.environment, namespaces=HOST, unit=UNIT)
    assert (Guarantee.TREE not in broken(facts, expected)) is held
