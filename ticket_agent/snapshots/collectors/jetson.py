"""Collector ``jetson``: board, packages, temperatures, clocks and power mode of an NVIDIA Jetson.

::

    source                      "device-tree-dpkg-sysfs-nvpmodel"
    board                       the device tree's model
    packages/<name>             a version, or {"state": "not_installed"}
    thermal/<zone>              {"temperature_mc", "type"}, or {"state", "type"}
    clocks/scaling_cur_freq-<n> of a CPU policy, {"frequency_hz", "source"}, or {"source", "state"}
    clocks/cur_freq-<n>         of a device, the same
    power                       {"observation", "source"}, or {"source", "state"}
    omitted                     {"facts": <n>}, when the record has no room for all

``state`` is ``not_supported`` for what cannot be read, such as a zone whose sensor is switched off, and
``source_failed`` for what reads as nonsense or out of range. A directory or file that is missing is told in
its place (``thermal``, ``packages``, ``clocks/cur_freq`` …) and takes no other part with it: a board whose
kernel has no devfreq still has temperatures.
"""

from __future__ import annotations

import os
import platform as machines
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ticket_agent.protocol.collecting import CollectError, fact
from ticket_agent.protocol.snapshot import UnavailableReason
from ticket_agent.protocol.snapshot_fitting import fit

from .command import CommandMissingError, run
from .dpkg_status import bounded_lines, installed_versions
from .small_files import read_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.protocol.collecting import CollectContext, Deadline
    from ticket_agent.protocol.snapshot import SnapshotEntry

__all__ = ["PACKAGES", "SOURCE", "collect"]

SOURCE: Final = "device-tree-dpkg-sysfs-nvpmodel"
PACKAGES: Final = (
    "nvidia-jetpack",
    "nvidia-l4t-core",
    "cuda-toolkit-13-2",
    "nvidia-container-toolkit",
)
NOT_SUPPORTED: Final = "not_supported"
SOURCE_FAILED: Final = "source_failed"
COLDEST_MC: Final = -273_150
HOTTEST_MC: Final = 1_000_000
MAX_HZ: Final = 10**12
MAX_LISTED: Final = 256
"""Most zones, policies or devices that are read; more are counted as left out."""

_POWER: Final = "nvpmodel-query"
_DIGITS: Final = re.compile(r"-?[0-9]{1,18}")


def collect(
    context: CollectContext,
    *,
    platform: str = sys.platform,
    machine: str | None = None,
    root: Path = Path("/"),
    nvpmodel: str = "/usr/sbin/nvpmodel",
) -> list[SnapshotEntry]:
    """Look at the board once.

    Args:
        context: of the observation.
        platform: as ``sys.platform``.
        machine: as ``platform.machine()``; None for this one.
        root: where ``proc``, ``sys`` and ``var`` are.
        nvpmodel: absolute path of the program that tells the power mode.

    Raises:
        CollectError: ``not_supported`` off 64-bit ARM Linux; ``not_enabled`` on another board;
            ``source_failed`` when the bounds do not hold the board; ``timed_out``.
    """
    machine = machines.machine() if machine is None else machine
    if (platform, machine) != ("linux", "aarch64"):
        raise CollectError(
            f"jetson is looked at on Linux on aarch64 only, not on {platform} on {machine}",
            UnavailableReason.NOT_SUPPORTED,
        )
    context.deadline.left_s()
    required = [fact("source", SOURCE), fact("board", _board(root))]
    look = _Look(root, context.deadline)
    # In the order of importance, should not all of them fit.
    optional = [
        look.power(nvpmodel),
        *look.packages(),
        *look.temperatures(),
        *look.clocks("sys/devices/system/cpu/cpufreq", "scaling_cur_freq", "policy", 1000),
        *look.clocks("sys/class/devfreq", "cur_freq", "", 1),
    ]
    entries, _ = fit(
        required,
        optional,
        context.bounds,
        omitted=lambda left: fact("omitted", {"facts": left}),
        already_out=look.unlisted,
    )
    return entries


def _board(root: Path) -> str:
    try:
        model = read_text(root / "proc/device-tree/model")
    except (OSError, UnicodeDecodeError):
        model = ""
    if "Jetson" not in model:
        raise CollectError(
            f"this board is no Jetson; its device tree says {model or 'nothing'!r}",
            UnavailableReason.NOT_ENABLED,
        )
    return model


class _Look:
    """One look below a root; nothing is read after the deadline.

    Attributes:
        unlisted: names in directories that were not looked at, because there were too many.
    """

    def __init__(self, root: Path, deadline: Deadline) -> None:
        self._root: Final = root
        self._deadline: Final = deadline
        self.unlisted = 0

    def power(self, nvpmodel: str) -> SnapshotEntry:
        """The power mode, in the program's words."""
        try:
            output = run([nvpmodel, "-q"], deadline=self._deadline, remedy="it comes with JetPack")
            observation = output.decode("utf-8").rstrip("\n\0")
        except CommandMissingError:
            return fact("power", {"source": _POWER, "state": NOT_SUPPORTED})
        except UnicodeDecodeError:
            return fact("power", {"source": _POWER, "state": SOURCE_FAILED})
        except CollectError as error:
            if error.reason is UnavailableReason.TIMED_OUT:
                raise
            return fact("power", {"source": _POWER, "state": SOURCE_FAILED})
        return fact("power", {"observation": observation, "source": _POWER})

    def packages(self) -> list[SnapshotEntry]:
        """Versions of the packages that make up the board's software."""
        try:
            with (self._root / "var/lib/dpkg/status").open("rb") as source:
                found = installed_versions(bounded_lines(source, self._deadline.left_s), PACKAGES)
        except OSError:
            return [fact("packages", {"state": NOT_SUPPORTED})]
        except ValueError:
            return [fact("packages", {"state": SOURCE_FAILED})]
        return [fact(f"packages/{name}", found.get(name, {"state": "not_installed"})) for name in PACKAGES]

    def temperatures(self) -> Iterator[SnapshotEntry]:
        """One entry per thermal zone."""
        names = self._names("sys/class/thermal", "thermal_zone")
        if names is None:
            yield fact("thermal", {"state": NOT_SUPPORTED})
        for name in names or ():
            zone = self._root / "sys/class/thermal" / name
            kind = self._text(zone / "type")
            reading = self._number(zone / "temp", COLDEST_MC, HOTTEST_MC)
            member = "state" if isinstance(reading, str) else "temperature_mc"
            yield fact(f"thermal/{name}", {member: reading, "type": kind})

    def clocks(self, directory: str, file: str, prefix: str, scale: int) -> Iterator[SnapshotEntry]:
        """One entry per clock.

        Args:
            directory: below the root, with a folder for each clock.
            file: in the folder, with the frequency.
            prefix: of the folders' names.
            scale: hertz of one unit in the file.
        """
        names = self._names(directory, prefix)
        if names is None:
            yield fact(f"clocks/{file}", {"source": f"/{directory}", "state": NOT_SUPPORTED})
        for number, name in enumerate(names or ()):
            source = f"{directory}/{name}/{file}"
            reading = self._number(self._root / source, 0, MAX_HZ // scale)
            value: dict[str, object] = {"source": f"/{source}", "state": reading}
            if isinstance(reading, int):
                value = {"frequency_hz": reading * scale, "source": f"/{source}"}
            yield fact(f"clocks/{file}-{number}", value)

    def _names(self, directory: str, prefix: str) -> list[str] | None:
        """Names in a directory in natural order; None when it cannot be read."""
        self._deadline.left_s()
        try:
            found = [os.fsdecode(name) for name in os.listdir(os.fsencode(self._root / directory))]  # noqa: PTH208
        except OSError:
            return None
        # A name that is not UTF-8 has no JSON.
        names = [name for name in found if name.startswith(prefix) and name.isprintable()]
        self.unlisted += sum(name.startswith(prefix) for name in found) - len(names[:MAX_LISTED])
        return sorted(names, key=_natural)[:MAX_LISTED]

    def _text(self, path: Path) -> str | None:
        try:
            return read_text(path)
        except (OSError, UnicodeDecodeError):
            return None

    def _number(self, path: Path, least: int, most: int) -> int | str:
        """A reading, or the state that stands for it."""
        self._deadline.left_s()
        try:
            text = read_text(path)
        except OSError:
            return NOT_SUPPORTED
        except UnicodeDecodeError:
            return SOURCE_FAILED
        value = int(text) if _DIGITS.fullmatch(text) else most + 1
        return value if least <= value <= most else SOURCE_FAILED


def _natural(name: str) -> tuple[list[tuple[int, str]], str]:
    parts = re.split(r"([0-9]+)", name)
    return [(int(part), "") if part.isdecimal() and part.isascii() else (-1, part) for part in parts], name
