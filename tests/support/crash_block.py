"""A file system on a block device whose writes fail on demand, below the kernel's own write-back."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crash_disk import until_released

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOOLS = ("nbdkit", "nbdfuse", "fusermount3", "mkfs.ext4", "mount", "umount")
SIZE = "64M"
PATIENCE_S = 60.0


@dataclass(frozen=True)
class BlockDisk:
    """A mounted file system and the switch of its device.

    Attributes:
        root: where it is mounted.
        device: the file that stands for the device.
        trigger: writes to the device fail as long as it exists.
    """

    root: Path
    device: Path
    trigger: Path

    def fail(self) -> None:
        """Let every write to the device fail from now on."""
        self.trigger.touch()

    def repair(self) -> None:
        """The device works again, and only what it holds is there: the page cache is given up."""
        self.trigger.unlink(missing_ok=True)
        _run("umount", str(self.root))
        until_released(self.device)
        self.mount()

    def mount(self) -> None:
        _run("mount", "-t", "ext4", "-o", "loop,commit=300", str(self.device), str(self.root))


def missing_block(tmp: Path) -> str | None:
    """Why no device can be made to fail here, or None."""
    if os.geteuid() != 0:
        return "only root can mount a file system"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if not Path("/dev/fuse").exists():
        return "there is no /dev/fuse"
    try:
        with block_disk(tmp / "probe"):
            pass
    except (OSError, subprocess.CalledProcessError, TimeoutError) as error:
        return f"a device behind nbdkit cannot be mounted here: {error}"
    return None


@contextmanager
def block_disk(tmp: Path) -> Iterator[BlockDisk]:
    """An empty ext4 on such a device, mounted below ``tmp`` until the block ends."""
    tmp.mkdir(parents=True)
    disk = BlockDisk(root=tmp / "mnt", device=tmp / "device", trigger=tmp / "trigger")
    disk.root.mkdir()
    disk.device.touch()
    socket, ready = tmp / "nbd", tmp / "nbdkit.pid"
    faults = ["error-pwrite=EIO", "error-pwrite-rate=100%", f"error-pwrite-file={disk.trigger}"]
    with ExitStack() as stack:
        _serve(
            stack,
            "nbdkit",
            "-f",
            "-U",
            str(socket),
            "-P",
            str(ready),
            "--filter=error",
            "memory",
            SIZE,
            *faults,
        )
        # Written once it listens; the socket is there before that.
        _until(ready.exists, "nbdkit does not listen")
        _serve(stack, "nbdfuse", str(disk.device), "--unix", str(socket))
        stack.callback(_forgiving, "fusermount3", "-u", "-z", str(disk.device))
        _until(lambda: disk.device.stat().st_size > 0, "nbdfuse does not show the device")
        _run("mkfs.ext4", "-q", str(disk.device))
        disk.mount()
        # Lazily: whatever a failed test left open must not leave the device behind.
        stack.callback(_forgiving, "umount", "-l", str(disk.root))
        stack.callback(disk.trigger.unlink, missing_ok=True)
        yield disk


def _serve(stack: ExitStack, *command: str) -> None:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def end() -> None:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(end)


def _until(holds: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(0.01)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _forgiving(*command: str) -> None:
    with suppress(subprocess.CalledProcessError):
        _run(*command)
