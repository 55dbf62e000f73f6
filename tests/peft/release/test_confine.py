"""What is executed for a phase: pure construction, compared as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ticket_agent.peft.release.confine import (
    Bubblewrap,
    Confinement,
    SystemdRun,
    Unconfined,
    Wrapped,
    end_unit_commands,
)
from ticket_agent.peft.release.launch_errors import LaunchRefusedError, RunFileError
from ticket_agent.peft.release.phase_command import PhaseCommand, PhaseLimits, phase_environment

BWRAP = Bubblewrap(
    program="/usr/bin/bwrap", links={"/bin": "usr/bin"}, present=frozenset({"/usr", "/etc/hosts"})
)
SYSTEMD = SystemdRun(
    program="/usr/bin/systemd-run",
    control="/usr/bin/systemctl",
    manager={"XDG_RUNTIME_DIR": "/run/user/1000"},
)
LIMITS = PhaseLimits(file_bytes=11, processes=22, scratch_bytes=33)


def command(**changes: Any) -> PhaseCommand:
    values: dict[str, Any] = {
        "launch_id": "ticket",
        "argv": ("/usr/bin/python3", "-I", "helper.py", "$HOME"),
        "run_dir": Path("/p/run"),
        "working_dir": Path("/p/work"),
        "read_only": (Path("/p/work/inputs"), Path("/usr/lib/python3"), Path("/venv")),
        "writable": (Path("/p/work"),),
        "deadline_s": 1.5,
        "limits": LIMITS,
    }
    return PhaseCommand(**{**values, **changes})


def wrapped(confinement: Confinement, **changes: Any) -> Wrapped:
    return confinement.wrap(command(**changes), marker="m", tasks=100)


def test_bubblewrap() -> None:
    found = wrapped(BWRAP)
    assert found.argv == (
        "/usr/bin/bwrap",
        *("--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "phase"),
        *("--ro-bind", "/usr", "/usr"),
        *("--symlink", "usr/bin", "/bin"),
        *("--ro-bind", "/etc/hosts", "/etc/hosts"),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--ro-bind-try", "/proc/sys", "/proc/sys"),
        *("--ro-bind-try", "/proc/sysrq-trigger", "/proc/sysrq-trigger"),
        *("--ro-bind-try", "/proc/irq", "/proc/irq"),
        *("--ro-bind-try", "/proc/bus", "/proc/bus"),
        *("--size", "33", "--perms", "0700", "--tmpfs", "/dev/shm"),
        *("--size", "33", "--perms", "0700", "--tmpfs", "/tmp"),
        # Outer before inner: the inputs in the working directory stay read-only.
        *("--ro-bind", "/venv", "/venv"),
        *("--bind", "/p/work", "/p/work"),
        *("--ro-bind", "/p/work/inputs", "/p/work/inputs"),
        *("--remount-ro", "/", "--chdir", "/p/work", "--"),
        *("/usr/bin/python3", "-I", "helper.py", "$HOME"),
    )
    assert found.environment == phase_environment(command(), marker="m", home="/tmp")
    assert found.rlimits == {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": 11, "RLIMIT_NPROC": 122}
    assert (found.unit, found.end_commands, found.supervisor_prefix) == (None, (), ())
    assert not found.no_new_privileges, "a set-user-id bwrap sets it itself, later"
    assert not found.home_in_run_dir


def test_bubblewrap_gives_devices() -> None:
    argv = wrapped(BWRAP, devices=(Path("/dev/nvidia0"),)).argv
    at = argv.index("--dev-bind")
    assert argv[at : at + 3] == ("--dev-bind", "/dev/nvidia0", "/dev/nvidia0")
    assert at > argv.index("--dev")


def test_systemd() -> None:
    found = wrapped(SYSTEMD)
    unit = "ticket-agent-phase-14069429150abcbf.service"
    head, properties, tail = _split(found.argv)
    assert head == [
        *("/usr/bin/systemd-run", "--user", "--quiet", "--collect", "--wait", "--pipe"),
        *("--service-type=exec", f"--unit={unit}"),
    ]
    assert {
        *("PrivateNetwork=yes", "PrivateTmp=yes", "PrivateDevices=yes", "ProtectSystem=strict"),
        *("ProtectHome=tmpfs", "NoNewPrivileges=yes", "CapabilityBoundingSet=", "KillMode=control-group"),
        *("KillSignal=SIGKILL", "Restart=no", "LimitFSIZE=11", "TasksMax=22", "RuntimeMaxSec=3500ms"),
        *("BindPaths=/p/work", "BindReadOnlyPaths=/p/work/inputs", "InaccessiblePaths=-/p/run"),
        "WorkingDirectory=/p/work",
        "BindsTo=ticket-agent-phase-14069429150abcbf-watch.scope",
        "After=ticket-agent-phase-14069429150abcbf-watch.scope",
    } <= set(properties)
    assert not [line for line in properties if line.startswith(("MemoryMax", "CPUQuota", "LimitAS"))]
    inside = phase_environment(command(), marker="m", home="/tmp")
    assert tail[:2] == ["/usr/bin/env", "-i"]
    assert tail[2 : 2 + len(inside)] == [f"{name}={value}" for name, value in sorted(inside.items())]
    # The manager would replace a variable, and makes one dollar of two.
    assert tail[2 + len(inside) :] == ["/usr/bin/python3", "-I", "helper.py", "$$HOME"]
    assert found.environment == found.supervisor_environment == {"XDG_RUNTIME_DIR": "/run/user/1000"}
    assert found.rlimits == {}
    assert found.unit == unit
    assert found.end_commands == (("/usr/bin/systemctl", "--user", "stop", unit),)
    assert found.supervisor_prefix == (
        *("/usr/bin/systemd-run", "--user", "--quiet", "--collect", "--scope"),
        *("--unit=ticket-agent-phase-14069429150abcbf-watch.scope", "--"),
    )


def _split(argv: tuple[str, ...]) -> tuple[list[str], list[str], list[str]]:
    at = argv.index("--")
    marks = "--property="
    head = [text for text in argv[:at] if not text.startswith(marks)]
    return head, [text.removeprefix(marks) for text in argv[:at] if text.startswith(marks)], [*argv[at + 1 :]]


@pytest.mark.parametrize(
    ("limits", "lines"),
    [
        ({"memory_bytes": 7}, {"MemoryMax=7", "MemorySwapMax=0"}),
        ({"cpu_percent": 200}, {"CPUQuota=200%"}),
        ({"address_space_bytes": 8}, {"LimitAS=8"}),
    ],
)
def test_systemd_limits(limits: dict[str, int], lines: set[str]) -> None:
    assert lines <= set(_split(wrapped(SYSTEMD, limits=PhaseLimits(**limits)).argv)[1])


def test_systemd_lets_a_phase_give_way() -> None:
    assert "Nice=10" in _split(wrapped(SYSTEMD, niceness=10).argv)[1]
    assert not [line for line in _split(wrapped(SYSTEMD).argv)[1] if line.startswith("Nice")]


def test_systemd_gives_devices() -> None:
    properties = _split(wrapped(SYSTEMD, devices=(Path("/dev/nvidia0"),)).argv)[1]
    assert "DeviceAllow=/dev/nvidia0 rw" in properties
    assert "PrivateDevices=yes" not in properties


@pytest.mark.parametrize(
    ("network", "there", "absent"),
    [
        ("none", {"PrivateNetwork=yes"}, "IPAddress"),
        ("host", {"IPAddressDeny=any", "IPAddressAllow=localhost"}, "PrivateNetwork"),
    ],
)
def test_a_server_shares_the_network_of_the_host(network: str, there: set[str], absent: str) -> None:
    properties = _split(wrapped(SYSTEMD, network=network).argv)[1]
    assert there <= set(properties)
    assert not [line for line in properties if line.startswith(absent)]
    assert ("--unshare-net" in wrapped(BWRAP, network=network).argv) == (network == "none")
    assert "--unshare-pid" in wrapped(BWRAP, network=network).argv


def test_systemd_ends_no_server_by_the_clock() -> None:
    properties = _split(wrapped(SYSTEMD, deadline_s=None).argv)[1]
    assert not [line for line in properties if line.startswith("RuntimeMaxSec")]


def test_systemd_of_the_system() -> None:
    system = SystemdRun(program="/r", control="/c", scope="system")
    found = wrapped(system)
    assert (system.name, found.argv[1], found.end_commands[0][1]) == (
        "systemd-system",
        "--system",
        "--system",
    )


@pytest.mark.parametrize("char", list("\"'\\:%$ "))
def test_systemd_gets_no_path_that_it_would_interpret(char: str) -> None:
    with pytest.raises(LaunchRefusedError, match="rename it"):
        wrapped(SYSTEMD, writable=(Path(f"/p/wo{char}rk"),))


@pytest.mark.parametrize("unit", ["", "sshd.service", "ticket-agent-phase-14069429150abcbf.service\n", "-h"])
def test_only_units_of_phases_are_stopped(unit: str) -> None:
    with pytest.raises(RunFileError):
        end_unit_commands("/usr/bin/systemctl", "user", unit)


def test_unconfined() -> None:
    found = wrapped(Unconfined(), limits=PhaseLimits(file_bytes=1, processes=2, address_space_bytes=3))
    assert found == Wrapped(
        argv=command().argv,
        environment=phase_environment(command(), marker="m", home="/p/run/tmp"),
        cwd="/p/work",
        rlimits={"RLIMIT_CORE": 0, "RLIMIT_FSIZE": 1, "RLIMIT_NPROC": 102, "RLIMIT_AS": 3},
        no_new_privileges=True,
        home_in_run_dir=True,
    )
