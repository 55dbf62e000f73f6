"""The files of a Jetson AGX Orin below a root of a test's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MODEL = "NVIDIA Jetson AGX Orin Developer Kit"
ZONES = {
    "cpu-thermal": "46093",
    "gpu-thermal": "42812",
    "soc0-thermal": "43531",
    "tj-thermal": "46093",
}
POLICIES = {"policy0": "2201600", "policy4": "729600", "policy8": "729600"}
DEVICES = {"15340000.vic": "115200000", "17000000.gpu": "306000000"}
STATUS = """\
Package: adduser
Status: install ok installed
Priority: important
Version: 3.118ubuntu5
Description: add and remove users and groups
 Package: nvidia-jetpack is not meant here.
Conffiles:
 /etc/deluser.conf 773fb95e98a27947de4a95abb3d3f2a2

Package: nvidia-l4t-core
Status: install ok installed
Architecture: arm64
Version: 36.4.3-20250107174145
Description: NVIDIA Core Package

Package: nvidia-container-toolkit
Status: deinstall ok config-files
Architecture: arm64
Version: 1.14.2-1
Config-Version: 1.14.2-1

Package: nvidia-jetpack
Status: install ok installed
Architecture: arm64
Version: 6.2+b77
"""


def write(root: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files below a root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def orin(root: Path) -> Path:
    """Build the tree; the fifth zone, of a unit that is powered off, has no readable temperature."""
    write(root, {"proc/device-tree/model": MODEL + "\0", "var/lib/dpkg/status": STATUS})
    for number, (kind, temperature) in enumerate(ZONES.items()):
        zone = f"sys/class/thermal/thermal_zone{number}"
        write(root, {f"{zone}/type": f"{kind}\n", f"{zone}/temp": f"{temperature}\n"})
    write(root, {f"sys/class/thermal/thermal_zone{len(ZONES)}/type": "cv0-thermal\n"})
    write(root, {"sys/class/thermal/cooling_device0/type": "pwm-fan\n"})
    for name, frequency in POLICIES.items():
        write(root, {f"sys/devices/system/cpu/cpufreq/{name}/scaling_cur_freq": f"{frequency}\n"})
    for name, frequency in DEVICES.items():
        write(root, {f"sys/class/devfreq/{name}/cur_freq": f"{frequency}\n"})
    return root


def nvpmodel(folder: Path, script: str = "printf 'NV Power Mode: MODE_30W\\n2\\n'") -> str:
    """Write a program that tells the power mode, and return its path."""
    path = folder / "nvpmodel"
    path.write_text(f'#!/bin/sh\n[ "$*" = -q ] || exit 64\n{script}\n')
    path.chmod(0o755)
    return str(path)
