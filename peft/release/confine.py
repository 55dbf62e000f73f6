"""How each confinement is asked for: pure functions from a phase's command to what is executed."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol

from ticket_agent.peft.release.launch_errors import LaunchRefusedError, RunFileError
from ticket_agent.peft.release.phase_command import phase_environment, unit_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ticket_agent.peft.release.phase_command import PhaseCommand, PhaseLimits

__all__ = [
    "Bubblewrap",
    "Confinement",
    "SystemdRun",
    "Unconfined",
    "Wrapped",
    "end_unit_commands",
]

_SYSTEM_PATHS: Final = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin")
_SYSTEM_FILES: Final = tuple(
    f"/etc/{name}"
    for name in (
        "alternatives",
        "group",
        "hosts",
        "ld.so.cache",
        "ld.so.conf",
        "ld.so.conf.d",
        "localtime",
        "nsswitch.conf",
        "passwd",
    )
)
"""What programs need to start and to name themselves; no resolver, no certificates, no configuration."""

_KERNEL_SETTINGS: Final = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")
"""They belong to root, and root without any capability is still their owner."""

_MANAGER_VARIABLES: Final = ("DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR")
_UNIT: Final = re.compile(r"ticket-agent-phase-[0-9a-f]{16}\.service")
_TMP: Final = "/tmp"  # noqa: S108 - the phase's private one


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapped:
    """What the supervisor executes.

    Attributes:
        argv: the whole command.
        environment: of the program that is executed.
        cwd: where it starts.
        rlimits: by the name of the resource.
        no_new_privileges: the supervisor sets it; otherwise the confinement does.
        unit: the systemd unit, or None.
        end_commands: commands that end the unit.
        supervisor_prefix: what the supervisor itself is started with.
        supervisor_environment: what that needs; the supervisor has no use for it.
        home_in_run_dir: the phase has no private /tmp and gets the directory ``tmp`` of its run directory.
    """

    argv: tuple[str, ...]
    environment: dict[str, str]
    cwd: str
    rlimits: dict[str, int] = field(default_factory=dict)
    no_new_privileges: bool = False
    unit: str | None = None
    end_commands: tuple[tuple[str, ...], ...] = ()
    supervisor_prefix: tuple[str, ...] = ()
    supervisor_environment: dict[str, str] = field(default_factory=dict)
    home_in_run_dir: bool = False


class Confinement(Protocol):
    """One way to confine a phase.

    Attributes:
        name: what configuration, evidence and error lines call it.
    """

    @property
    def name(self) -> str:
        """What configuration, evidence and error lines call it."""

    def wrap(self, command: PhaseCommand, *, marker: str, tasks: int) -> Wrapped:
        """What to execute; ``tasks`` is how many threads and processes the account runs now."""


def _rlimits(limits: PhaseLimits, tasks: int) -> dict[str, int]:
    wanted = {
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_NPROC": limits.processes + tasks,
    }
    if limits.address_space_bytes is not None:
        wanted["RLIMIT_AS"] = limits.address_space_bytes
    return wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubblewrap:
    """Namespaces of its own for everything, and a root in which there is only what was named.

    Attributes:
        program: absolute path of ``bwrap``, 0.7 or later.
        links: system directories that are links on this host, and where they point.
        present: system paths that exist on this host.
    """

    program: str
    links: Mapping[str, str] = field(default_factory=dict)
    present: frozenset[str] = frozenset(_SYSTEM_PATHS + _SYSTEM_FILES)

    @property
    def name(self) -> str:
        """See :class:`Confinement`."""
        return "bubblewrap"

    @classmethod
    def of_host(cls, program: str) -> Bubblewrap:
        """With the system paths as they are here."""
        links = {path: os.readlink(path) for path in _SYSTEM_PATHS if os.path.islink(path)}  # noqa: PTH114, PTH115
        present = frozenset(p for p in _SYSTEM_PATHS + _SYSTEM_FILES if os.path.exists(p))  # noqa: PTH110
        return cls(program=program, links=links, present=present)

    def wrap(self, command: PhaseCommand, *, marker: str, tasks: int) -> Wrapped:
        """See :class:`Confinement`."""
        size = str(command.limits.scratch_bytes)
        options = [] if command.network == "host" else ["--unshare-net"]
        options += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
        options += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "phase"]
        for path in _SYSTEM_PATHS + _SYSTEM_FILES:
            if path in self.links:
                options += ["--symlink", self.links[path], path]
            elif path in self.present:
                options += ["--ro-bind", path, path]
        options += ["--proc", "/proc", "--dev", "/dev"]
        for path in _KERNEL_SETTINGS:
            options += ["--ro-bind-try", path, path]
        for path in ("/dev/shm", _TMP):  # noqa: S108 - inside
            options += ["--size", size, "--perms", "0700", "--tmpfs", path]
        for device in command.devices:
            options += ["--dev-bind", str(device), str(device)]
        options += _binds(command)
        options += ["--remount-ro", "/", "--chdir", str(command.working_dir), "--"]
        return Wrapped(
            argv=(self.program, *options, *command.argv),
            environment=phase_environment(command, marker=marker, home=_TMP),
            cwd="/",
            rlimits=_rlimits(command.limits, tasks),
        )


def _binds(command: PhaseCommand) -> list[str]:
    """Outer paths first: what is named below another path goes over it, whichever of the two is writable."""
    wanted = [(path, "--ro-bind") for path in command.read_only]
    wanted += [(path, "--bind") for path in command.writable]
    options: list[str] = []
    for path, option in sorted(wanted, key=lambda pair: (len(pair[0].parts), pair[0])):
        if option == "--ro-bind" and any(path.is_relative_to(known) for known in _SYSTEM_PATHS):
            continue  # seen already
        options += [option, str(path), str(path)]
    return options


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemdRun:
    """A transient service of systemd.

    Attributes:
        program: absolute path of ``systemd-run``, 248 or later.
        control: absolute path of ``systemctl``.
        env: absolute path of ``env``, which empties the environment that the manager gives.
        scope: of the user's manager or of the system's.
        manager: what the two programs need to find their manager.
    """

    program: str
    control: str
    env: str = "/usr/bin/env"
    scope: Literal["user", "system"] = "user"
    manager: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """See :class:`Confinement`."""
        return f"systemd-{self.scope}"

    @classmethod
    def of_host(
        cls, program: str, control: str, scope: Literal["user", "system"], environment: Mapping[str, str]
    ) -> SystemdRun:
        """With the manager that ``environment``, that of the agent, leads to."""
        manager = {name: environment[name] for name in _MANAGER_VARIABLES if name in environment}
        return cls(program=program, control=control, scope=scope, manager=manager)

    def wrap(self, command: PhaseCommand, *, marker: str, tasks: int) -> Wrapped:  # noqa: ARG002 - TasksMax
        """See :class:`Confinement`."""
        unit = unit_name(command.launch_id)
        ways = (self.program, f"--{self.scope}", "--quiet", "--collect")
        options = ["--wait", "--pipe", "--service-type=exec", f"--unit={unit}"]
        # No descendant of the supervisor, and yet it shall not outlive it.
        options += [f"--property={name}={_scope_of(unit)}" for name in ("BindsTo", "After")]
        options += [f"--property={line}" for line in _properties(command)]
        inside = phase_environment(command, marker=marker, home=_TMP)
        settings = [f"{name}={value}" for name, value in sorted(inside.items())]
        return Wrapped(
            argv=(
                *ways,
                *options,
                "--",
                self.env,
                "-i",
                *settings,
                *(text.replace("$", "$$") for text in command.argv),
            ),
            environment=dict(self.manager),
            cwd="/",
            no_new_privileges=True,
            unit=unit,
            end_commands=end_unit_commands(self.control, self.scope, unit),
            # In a scope of its own: stopping the agent's service must not end those who watch its phases.
            supervisor_prefix=(*ways, "--scope", f"--unit={_scope_of(unit)}", "--"),
            supervisor_environment=dict(self.manager),
        )


def _scope_of(unit: str) -> str:
    """Where the supervisor of a unit lives."""
    return f"{unit.removesuffix('.service')}-watch.scope"


def end_unit_commands(control: str, scope: str, unit: str) -> tuple[tuple[str, ...], ...]:
    """What kills a unit and waits until it is gone.

    Raises:
        RunFileError: the name is not one of ours.
    """
    if not _UNIT.fullmatch(unit):
        raise RunFileError("the unit in the run directory is not the unit of a phase")
    return ((control, f"--{scope}", "stop", unit),)


def _properties(command: PhaseCommand) -> list[str]:
    limits = command.limits
    if command.network == "host":
        lines = ["IPAddressDeny=any", "IPAddressAllow=localhost"]
    else:
        lines = ["PrivateNetwork=yes"]
    lines += [
        "PrivateTmp=yes",
        "PrivateIPC=yes",
        "ProtectSystem=strict",
        "ProtectHome=tmpfs",
        "ProtectProc=invisible",
        "ProtectControlGroups=yes",
        "ProtectKernelTunables=yes",
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=",
        "RestrictSUIDSGID=yes",
        "LockPersonality=yes",
        "KeyringMode=private",
        "UMask=0077",
        "KillMode=control-group",
        "KillSignal=SIGKILL",
        "Restart=no",
        "OOMPolicy=kill",
        "LimitCORE=0",
        f"LimitFSIZE={limits.file_bytes}",
        f"TasksMax={limits.processes}",
        f"WorkingDirectory={_quoted(command.working_dir)}",
    ]
    if command.deadline_s is not None:
        # Later than the supervisor's own deadline, and for the case that nobody is left to hold it.
        lines.append(f"RuntimeMaxSec={int(command.deadline_s * 1000) + 2000}ms")
    if command.niceness:
        lines.append(f"Nice={command.niceness}")
    if not command.devices:
        lines.append("PrivateDevices=yes")
    lines += [f"DeviceAllow={_quoted(device)} rw" for device in command.devices]
    if limits.memory_bytes is not None:
        lines += [f"MemoryMax={limits.memory_bytes}", "MemorySwapMax=0"]
    if limits.cpu_percent is not None:
        lines.append(f"CPUQuota={limits.cpu_percent}%")
    if limits.address_space_bytes is not None:
        lines.append(f"LimitAS={limits.address_space_bytes}")
    lines += [f"BindReadOnlyPaths={_quoted(path)}" for path in command.read_only]
    lines += [f"BindPaths={_quoted(path)}" for path in command.writable]
    lines.append(f"InaccessiblePaths=-{_quoted(command.run_dir)}")
    return lines


def _quoted(path: Path) -> str:
    """A path in a property's list, where blanks, quotes, colons and percent signs have a meaning."""
    text = str(path)
    if any(char in text for char in "\"'\\:%$ \t"):
        raise LaunchRefusedError(f"{text} has a character that systemd would interpret; rename it")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Unconfined:
    """No confinement: the phase can do what the agent's account can. Only limits and environment are held."""

    @property
    def name(self) -> str:
        """See :class:`Confinement`."""
        return "unconfined"

    def wrap(self, command: PhaseCommand, *, marker: str, tasks: int) -> Wrapped:
        """See :class:`Confinement`."""
        return Wrapped(
            argv=command.argv,
            environment=phase_environment(command, marker=marker, home=str(command.run_dir / "tmp")),
            cwd=str(command.working_dir),
            rlimits=_rlimits(command.limits, tasks),
            no_new_privileges=True,
            home_in_run_dir=True,
        )
