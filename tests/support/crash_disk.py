"""A file system of its own on a loop device, whose power can be cut: what was not forced to it is lost."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SHUTDOWN = 0x8004587D
"""FS_IOC_SHUTDOWN of ext4 and xfs."""
NOLOGFLUSH = 2
"""Stop at once: neither data nor the journal in memory is written."""

# Otherwise a commit in the background now and then saves what a missing fsync would have lost.
OPTIONS = {"ext4": "loop,commit=300", "xfs": "loop"}
PATIENCE_S = 60.0
SIZE = {"ext4": 64, "xfs": 320}
"""Mebibytes; xfs refuses less."""


@dataclass(frozen=True)
class Disk:
    """A mounted file system."""

    kind: str
    image: Path
    root: Path

    def cut_power(self) -> None:
        """Lose everything that was not forced to the disk, and mount what is left."""
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", NOLOGFLUSH))
        finally:
            os.close(fd)
        self.unmount()
        until_released(self.image)
        self.mount()

    def mount(self) -> None:
        _run("mount", "-t", self.kind, "-o", OPTIONS[self.kind], str(self.image), str(self.root))

    def unmount(self) -> None:
        _run("umount", str(self.root))


def missing_power(kind: str, tmp: Path) -> str | None:
    """Why no power can be cut here, or None."""
    if os.geteuid() != 0:
        return "only root can mount a file system"
    missing = [tool for tool in (f"mkfs.{kind}", "mount", "umount") if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    try:
        with new_disk(kind, tmp / "probe") as disk:
            disk.cut_power()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"a loop device with {kind} cannot be mounted or shut down here: {error}"
    return None


@contextmanager
def new_disk(kind: str, tmp: Path) -> Iterator[Disk]:
    """An empty file system, mounted below ``tmp`` until the block ends."""
    disk = Disk(kind=kind, image=tmp / f"{kind}.img", root=tmp / kind)
    disk.root.mkdir(parents=True)
    with disk.image.open("wb") as image:
        image.truncate(SIZE[kind] * 2**20)
    _run(f"mkfs.{kind}", "-q", str(disk.image))
    disk.mount()
    try:
        yield disk
    finally:
        # Lazily: whatever a failed test left open must not leave the device behind.
        _run("umount", "-l", str(disk.root))
        disk.image.unlink()


def close_below(directory: Path) -> None:
    """Close what this process has open in a directory, as its death would."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        # The descriptor of this very listing is among them and gone by now.
        with suppress(FileNotFoundError):
            if entry.readlink().is_relative_to(directory):
                os.close(int(entry.name))


def until_released(image: Path) -> None:
    """Wait for the loop device to go; until then a mount would show the dead file system once more."""
    deadline = time.monotonic() + PATIENCE_S
    while any(_backing(device) == str(image) for device in Path("/sys/block").glob("loop*")):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{image} is still in use by somebody")
        time.sleep(0.002)


def _backing(device: Path) -> str:
    try:
        return (device / "loop" / "backing_file").read_text().rstrip("\n")
    except OSError:
        # No file stands behind it, or the device went while we looked.
        return ""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
