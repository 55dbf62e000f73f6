"""What a phase is started with. Values only; nothing here touches the system but to compare paths."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from ticket_agent.peft.names import shown
from ticket_agent.peft.release.launch_errors import LaunchRefusedError
from ticket_agent.peft.release.offline_flags import FLAGS
from ticket_agent.peft.release.output_ring import OutputBounds

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ALLOWED_VARIABLES",
    "MARKER_VARIABLE",
    "PhaseCommand",
    "PhaseLimits",
    "beyond_fixed",
    "phase_environment",
    "unit_name",
]

MARKER_VARIABLE: Final = "TICKET_AGENT_PHASE"
"""Stands in the environment of everything that a phase starts."""

_FIXED: Final[Mapping[str, str]] = MappingProxyType(
    {
        **FLAGS,
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
)

ALLOWED_VARIABLES: Final = frozenset(
    {
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
        "MKL_NUM_THREADS",
        "NVIDIA_DRIVER_CAPABILITIES",
        "NVIDIA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
        "PYTHONHASHSEED",
        "TZ",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
        "VLLM_DO_NOT_TRACK",
        "VLLM_HOST_IP",
        "VLLM_NO_USAGE_STATS",
    }
)
"""What a caller may add. Nothing comes from the agent's own environment."""

_MAX_VALUE: Final = 4096
_MAX_ARGUMENTS_BYTES: Final = 64 * 1024
_MAX_DEADLINE_S: Final = 86_400.0
_MAX_NICENESS: Final = 19
_LAUNCH_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseLimits:
    """Caps of one phase; None where none is set.

    Attributes:
        file_bytes: largest file that it can write. Base weights that a phase copies must fit.
        processes: threads and processes. Without control groups the kernel counts an account's, so the cap is
            what the account runs at the start plus this; it does not bind root.
        address_space_bytes: of each process. CUDA reserves far more than it uses: leave None there.
        memory_bytes: of everything together; only control groups can hold it.
        cpu_percent: 100 is one core; only control groups can hold it.
        scratch_bytes: of the private /tmp and of shared memory, each.
    """

    file_bytes: int = 2 * _GIB
    processes: int = 512
    address_space_bytes: int | None = None
    memory_bytes: int | None = None
    cpu_percent: int | None = None
    scratch_bytes: int = 2 * _GIB

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not 0 < value < 1 << 62:
                raise LaunchRefusedError(f"phase limit {name} must be positive, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCommand:
    """One process to start, once.

    Attributes:
        launch_id: names this launch among all: 1 to 128 letters, digits, ``_``, ``.`` and ``-``, the
            first a letter, a digit or ``_``.
        argv: program by absolute path, and its arguments. Visible to other accounts: no secrets.
        run_dir: directory to be made for this launch; that it exists already means it was launched before.
        working_dir: where the process starts; below one of the paths that it can see.
        read_only: files and directories that it sees and cannot change.
        writable: directories that it can write to. Neither may contain ``run_dir``.
        devices: like ``/dev/nvidia0``.
        environment: additional variables out of ``ALLOWED_VARIABLES``. No secrets.
        deadline_s: how long it may run, in seconds, at most a day; None for a server, which has no end.
        limits: its caps.
        output: how much of its output is kept.
        niceness: 0..=19, how much it gives way to what else runs on the host.
        network: ``none`` is one of its own with nothing but loopback. ``host`` is for servers, which somebody
            has to reach: the host's, where systemd lets nothing but loopback addresses through and
            bubblewrap everything.

    Raises:
        LaunchRefusedError: a value is out of its range.
    """

    launch_id: str
    argv: tuple[str, ...]
    run_dir: Path
    working_dir: Path
    deadline_s: float | None
    read_only: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    devices: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    limits: PhaseLimits = field(default_factory=PhaseLimits)
    output: OutputBounds = field(default_factory=OutputBounds)
    niceness: int = 0
    network: Literal["none", "host"] = "none"

    def __post_init__(self) -> None:
        if not _LAUNCH_ID.fullmatch(self.launch_id):
            raise LaunchRefusedError(f"launch id {shown(self.launch_id)} is not 1 to 128 of A-Za-z0-9_.-")
        _check_arguments(self.argv)
        if self.network not in ("none", "host"):
            raise LaunchRefusedError(f"network of a phase must be none or host, not {self.network!r}")
        if not 0 <= self.niceness <= _MAX_NICENESS:
            raise LaunchRefusedError(
                f"niceness of a phase must be in 0..={_MAX_NICENESS}, not {self.niceness}"
            )
        if self.deadline_s is not None and not 0 < self.deadline_s <= _MAX_DEADLINE_S:
            raise LaunchRefusedError(f"a phase's deadline of {self.deadline_s} s is not in (0, 86400]")
        for path in (self.run_dir, self.working_dir, *self.read_only, *self.writable, *self.devices):
            if not _plain(path):
                raise LaunchRefusedError(f"{shown(str(path))} must be an absolute path without . and ..")
        for path in (*self.read_only, *self.writable):
            if self.run_dir.is_relative_to(path):
                raise LaunchRefusedError(f"{path} would show the phase its own run directory {self.run_dir}")
        for name, value in self.environment.items():
            _check_variable(name, value)


def _check_arguments(argv: tuple[str, ...]) -> None:
    if not argv or not argv[0].startswith("/"):
        raise LaunchRefusedError("the program of a phase must be an absolute path")
    if any("\0" in text for text in argv):
        raise LaunchRefusedError("an argument of a phase holds a NUL character")
    if sum(len(text.encode(errors="surrogateescape")) + 1 for text in argv) > _MAX_ARGUMENTS_BYTES:
        raise LaunchRefusedError(f"the arguments of a phase exceed {_MAX_ARGUMENTS_BYTES} bytes")


def _plain(path: PurePath) -> bool:
    text = str(path)
    return path.is_absolute() and ".." not in path.parts and text.isprintable() and path != PurePath("/")


def _check_variable(name: str, value: str) -> None:
    if name not in ALLOWED_VARIABLES:
        raise LaunchRefusedError(f"environment variable {shown(name)} is not one that a phase may be given")
    if "\0" in value or len(value) > _MAX_VALUE:
        raise LaunchRefusedError(f"the value of {name} holds a NUL character or is longer than {_MAX_VALUE}")


def phase_environment(command: PhaseCommand, *, marker: str, home: str) -> dict[str, str]:
    """Everything that the process finds in its environment.

    Args:
        command: what is started.
        marker: random text of this launch.
        home: directory for what libraries cache; also for temporary files.
    """
    return {
        **command.environment,
        **_FIXED,
        "HOME": home,
        "TMPDIR": home,
        "HF_HOME": f"{home}/huggingface",
        "XDG_CACHE_HOME": f"{home}/cache",
        MARKER_VARIABLE: marker,
    }


def beyond_fixed(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a process does not get anyway, with the same value."""
    return {name: value for name, value in environment.items() if _FIXED.get(name) != value}


def unit_name(launch_id: str) -> str:
    """The systemd unit of a launch: the same for the same launch, so that a second one finds it taken."""
    return f"ticket-agent-phase-{hashlib.sha256(launch_id.encode()).hexdigest()[:16]}.service"
