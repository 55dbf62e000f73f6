"""What a phase may be started with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ticket_agent.peft.release.launch_errors import LaunchRefusedError
from ticket_agent.peft.release.offline_flags import OFFLINE
from ticket_agent.peft.release.phase_command import (
    PhaseCommand,
    PhaseLimits,
    beyond_fixed,
    phase_environment,
    unit_name,
)

GOOD: dict[str, Any] = {
    "launch_id": "release-one.validate",
    "argv": ("/usr/bin/python3", "-I"),
    "run_dir": Path("/private/operations/release-one/validate"),
    "working_dir": Path("/private/work"),
    "writable": (Path("/private/work"),),
    "read_only": (Path("/private/objects"),),
    "deadline_s": 300.0,
}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"launch_id": "a"},
        {"launch_id": "_a-_."},
        {"launch_id": "a" * 128},
        {"argv": ("/x", "\udcff", "é", "")},
        {"deadline_s": 86_400},
        {"deadline_s": None},
        {"network": "host"},
        {"environment": {"VLLM_HOST_IP": "127.0.0.1"}},
        {"environment": {"CUDA_VISIBLE_DEVICES": "0", "TZ": "x" * 4096}},
    ],
)
def test_what_is_allowed(change: dict[str, Any]) -> None:
    PhaseCommand(**{**GOOD, **change})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"launch_id": ""}, "launch id"),
        ({"launch_id": "a" * 129}, "launch id"),
        ({"launch_id": "../x"}, "launch id"),
        ({"launch_id": "-x"}, "launch id"),
        ({"launch_id": ".x"}, "launch id"),
        ({"launch_id": "x\n"}, "launch id"),
        ({"argv": ()}, "absolute path"),
        ({"argv": ("python",)}, "absolute path"),
        ({"argv": ("/x", "a\0b")}, "NUL"),
        ({"argv": ("/x", "a" * 70_000)}, "exceed"),
        ({"deadline_s": 0}, "deadline"),
        ({"network": "bridge"}, "none or host"),
        ({"niceness": -1}, "niceness"),
        ({"niceness": 20}, "niceness"),
        ({"deadline_s": -1}, "deadline"),
        ({"deadline_s": 86_401}, "deadline"),
        ({"deadline_s": float("nan")}, "deadline"),
        ({"deadline_s": float("inf")}, "deadline"),
        ({"run_dir": Path("run")}, "absolute"),
        ({"working_dir": Path("/a/../b")}, "absolute"),
        ({"writable": (Path("/"),)}, "absolute"),
        ({"read_only": (Path("/a\nb"),)}, "absolute"),
        ({"devices": (Path("nvidia0"),)}, "absolute"),
        ({"writable": (Path("/private"),)}, "its own run directory"),
        ({"read_only": (Path("/private/operations"),)}, "its own run directory"),
        ({"writable": (GOOD["run_dir"],)}, "its own run directory"),
        ({"environment": {"LD_PRELOAD": "/x"}}, "LD_PRELOAD"),
        ({"environment": {"HF_TOKEN": "x"}}, "HF_TOKEN"),
        ({"environment": {"HF_HUB_OFFLINE": "0"}}, "HF_HUB_OFFLINE"),
        ({"environment": {"TZ": "a\0b"}}, "TZ"),
        ({"environment": {"TZ": "x" * 4097}}, "TZ"),
    ],
)
def test_what_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(LaunchRefusedError, match=words):
        PhaseCommand(**{**GOOD, **change})


@pytest.mark.parametrize("name", PhaseLimits.__slots__)
@pytest.mark.parametrize("value", [0, -1, 1 << 62])
def test_limits_are_positive(name: str, value: int) -> None:
    with pytest.raises(LaunchRefusedError, match=name):
        PhaseLimits(**{name: value})


def test_the_environment_is_complete_and_offline() -> None:
    command = PhaseCommand(**GOOD, environment={"TZ": "UTC"})
    found = phase_environment(command, marker="m", home="/tmp")
    assert found.items() >= {**OFFLINE, "TZ": "UTC", "TICKET_AGENT_PHASE": "m"}.items()
    assert {name: value for name, value in found.items() if value.startswith("/tmp")} == {
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "HF_HOME": "/tmp/huggingface",
        "XDG_CACHE_HOME": "/tmp/cache",
    }


def test_a_launch_has_one_unit() -> None:
    assert unit_name("ticket") == "ticket-agent-phase-14069429150abcbf.service"
    assert unit_name("ticket") != unit_name("ticket2")


def test_what_a_process_gets_anyway_is_not_asked_for_again() -> None:
    asked = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "0", "VLLM_HOST_IP": "127.0.0.1"}
    assert beyond_fixed(asked) == {"TRANSFORMERS_OFFLINE": "0", "VLLM_HOST_IP": "127.0.0.1"}
