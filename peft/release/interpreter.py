"""What a process must see to run a given interpreter with this package, and which devices it computes on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.release.launcher import python_paths

if TYPE_CHECKING:
    from ticket_agent.peft.release.stack import Device

__all__ = ["Interpreter", "device_files"]

_SETTINGS: Final = "pyvenv.cfg"
_MAX_SETTINGS_BYTES: Final = 16 * 1024
_SHARED_DEVICES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """An interpreter as a confined process is given it.

    Attributes:
        program: absolute path without a link in its directories; the last part may be one, as in a virtual
            environment.
        paths: directories to be seen, outermost only.
    """

    program: Path
    paths: tuple[Path, ...]

    @classmethod
    def of(cls, python: Path) -> Interpreter:
        """The interpreter at an absolute path. What is not there is found missing by who starts it."""
        program = python.parent.resolve() / python.name
        wanted = {*python_paths(), *_prefixes(program)}
        outermost = (
            path
            for path in sorted(wanted)
            if not any(path != other and path.is_relative_to(other) for other in wanted)
        )
        return cls(program=program, paths=tuple(outermost))


def _prefixes(program: Path) -> set[Path]:
    """Where the interpreter and its libraries are, and in a virtual environment those that it builds on."""
    own = program.parent.parent
    found = {own}
    home = _home(own / _SETTINGS)
    if home is not None:
        found.add(home.resolve().parent)
    real = Path(os.path.realpath(program))
    found.add(real.parent.parent)
    # A program that stands in / or /bin says nothing about what it needs; the system's paths are seen anyway.
    return {path for path in found if len(path.parts) > 1 and path.is_dir()}


def _home(settings: Path) -> Path | None:
    try:
        with settings.open(encoding="utf-8") as stream:
            lines = stream.read(_MAX_SETTINGS_BYTES).splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in lines:
        name, _, value = line.partition("=")
        if name.strip() == "home" and value.strip().startswith("/"):
            return Path(value.strip())
    return None


def device_files(device: Device, folder: Path = Path("/dev")) -> tuple[Path, ...]:
    """The device files that computing takes; none on a CPU."""
    if not device.on_gpu:
        return ()
    number = device.device.partition(":")[2]
    names = (f"nvidia{number}", *_SHARED_DEVICES)
    return tuple(folder / name for name in names if (folder / name).exists())
