"""What the kernel tells about the mount that an open file or directory is on; for messages and for cleaning.

``/proc`` may be hidden or absent; then nobody knows, and nothing is refused for that.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["devices", "mount_of"]


def mount_of(fd: int) -> tuple[int, str]:
    """What differs between any two mounts: the device, and the mount's id for one device mounted twice."""
    return os.fstat(fd).st_dev, _mount_id(fd) or ""


def devices(fd: int) -> frozenset[tuple[int, int]]:
    """Major and minor numbers of the devices by which the kernel may call the file system of ``fd``.

    Usually there is one. Layered file systems and those with subvolumes show another one to ``stat`` than
    the kernel uses in its own tables.
    """
    device = os.fstat(fd).st_dev
    found = {(os.major(device), os.minor(device))}
    mount_id = _mount_id(fd)
    for line in _lines("/proc/self/mountinfo"):
        match line.split():
            case [number, _, numbers, *_] if number == mount_id:
                major, _, minor = numbers.partition(":")
                found.add((int(major), int(minor)))
    return frozenset(found)


def _mount_id(fd: int) -> str | None:
    for line in _lines(f"/proc/self/fdinfo/{fd}"):
        if line.startswith("mnt_id:"):
            return line.split()[1]
    return None


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
