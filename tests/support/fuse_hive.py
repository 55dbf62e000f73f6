"""A real FUSE mount of a hive, as the hive's own mount tool behaves: a process over the console.

``new`` is today's behaviour: sizes are those of a real reading, reads bypass the page cache, each read(2) is
an answer of its own, a write must begin where the node ends. ``old`` is that of the first release: every size
is 0 and nothing bypasses the page cache, so that the kernel never asks for a byte.

Run as a program it serves until SIGTERM: ``fuse_hive.py PORT DIRECTORY new|old SECONDS``, where the kernel
believes for so many seconds what it was told about a node.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hive_support import TOKEN

from ticket_agent.hive.console.client import ConsoleConfig, ConsoleNamespace
from ticket_agent.protocol.namespace import Acked, HiveError, HiveRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

ALLOWED: Final = ("proc", "queen", "worker", "log", "gpu", "host", "shard")
MAX_CONTENT: Final = 64 * 1024
MAX_READ: Final = 8192
PATIENCE_S: Final = 100.0
ATOMIC_O_TRUNC: Final = 1 << 3


def missing() -> str | None:
    """Why nothing can be mounted here; None if it can."""
    if not Path("/dev/fuse").exists():
        return "there is no /dev/fuse"
    if shutil.which("fusermount3") is None:
        return "fusermount3 is not installed"
    if os.geteuid() != 0 and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse may not be used"
    try:
        import mfusepy  # noqa: F401, PLC0415
    except (ImportError, OSError, AttributeError) as error:
        return f"libfuse cannot be loaded: {error}"
    return None


@dataclass
class Mounted:
    """A mounted hive."""

    path: Path
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """SIGKILL the mount's process: the directory stays, dead, until somebody unmounts it."""
        self.process.kill()
        self.process.wait()

    def unmount(self) -> None:
        with suppress(OSError):
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()
        subprocess.run(["fusermount3", "-u", "-z", self.path], check=False, capture_output=True)


@contextmanager
def mounted_hive(
    port: int, directory: Path, era: str = "new", *, attributes_live_s: float = 1.0
) -> Iterator[Mounted]:
    """Mount the hive behind a console; unmounted at the end."""
    directory.mkdir(exist_ok=True)
    command = [sys.executable, __file__, str(port), str(directory), era, str(attributes_live_s)]
    before = directory.stat().st_dev
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    mounted = Mounted(directory, subprocess.Popen(command, env=environ))
    try:
        deadline = time.monotonic() + PATIENCE_S
        while directory.stat().st_dev == before:
            assert mounted.process.poll() is None, "the mount's process ended"
            assert time.monotonic() < deadline, "the hive is not mounted"
            time.sleep(0.01)
        yield mounted
    finally:
        mounted.unmount()


class HiveFilesystem:
    """The callbacks; single-threaded, as the console is."""

    use_ns = True

    def __init__(self, namespace: ConsoleNamespace, *, old: bool) -> None:
        self._namespace = namespace
        self._old = old
        self._handles: dict[int, int] = {}
        self._next_handle = 1

    def init_with_config(self, connection: Any, config: Any) -> None:
        # The kernel then asks for a truncation by itself. ENOSYS to an open would stop all further ones.
        connection.want &= ~ATOMIC_O_TRUNC

    # -- what there is ---------------------------------------------------------------------------------------

    def getattr(self, path: str, fh: Any = None) -> dict[str, Any]:
        names = self._listed(path)
        if names is not None:
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 1, "st_size": 0}
        if self._old:
            self._content(path, absent=errno.ENOENT)
            return {"st_mode": stat.S_IFREG | 0o644, "st_nlink": 1, "st_size": 0}
        parent, _, leaf = path.rpartition("/")
        if leaf not in (self._listed(parent or "/") or ()):
            raise OSError(errno.ENOENT, path)
        size = 0
        with suppress(OSError):  # some nodes can only be written
            size = len(self._content(path))
        return {"st_mode": stat.S_IFREG | 0o666, "st_nlink": 1, "st_size": size}

    def readdir(self, path: str, fh: Any) -> list[str]:
        names = self._listed(path)
        if names is None:
            raise OSError(errno.ENOENT, path)
        return [".", "..", *names]

    def _listed(self, path: str) -> list[str] | None:
        first = path.split("/")[1]
        if not first:
            return [name for name in ALLOWED if name != "shard" or not self._old]
        if first not in ALLOWED:
            raise OSError(errno.EACCES, path)
        try:
            return self._namespace.ls(path)
        except HiveRefusedError as error:
            if error.absent:
                return None
            raise OSError(errno.EIO, path) from None
        except HiveError:
            raise OSError(errno.EIO, path) from None

    def _content(self, path: str, absent: int = errno.EIO) -> bytes:
        try:
            return "\n".join(self._namespace.read(path)).encode()[:MAX_CONTENT]
        except HiveRefusedError:
            raise OSError(absent, path) from None
        except HiveError:
            raise OSError(errno.EIO, path) from None

    # -- reading and writing ---------------------------------------------------------------------------------

    def open(self, path: str, info: Any) -> int:
        info.fh = self._next_handle
        info.direct_io = 0 if self._old else 1
        self._handles[self._next_handle] = 0
        self._next_handle += 1
        return 0

    def release(self, path: str, info: Any) -> int:
        self._handles.pop(info.fh, None)
        return 0

    def read(self, path: str, size: int, offset: int, info: Any) -> bytes:
        return self._content(path)[offset : offset + min(size, MAX_READ)]

    def write(self, path: str, data: bytes, offset: int, info: Any) -> int:
        if not self._begins_right(path, offset, info.fh):
            raise OSError(errno.EINVAL, path)
        line = data.removesuffix(b"\n")
        if b"\n" in line or not line or len(line) > (128 if self._old else 2048):
            raise OSError(errno.EIO, path)
        try:
            answer = self._namespace.append(path, line.decode("ascii"))
        except (HiveError, UnicodeDecodeError):
            raise OSError(errno.EIO, path) from None
        if not isinstance(answer, Acked):
            raise OSError(errno.EIO, path)
        self._handles[info.fh] = offset + len(data)
        return len(data)

    def _begins_right(self, path: str, offset: int, handle: int) -> bool:
        if self._old:
            return offset == self._handles[handle]
        try:
            return offset == len(self._content(path))
        except OSError:
            return offset == 0

    def fsync(self, path: str, datasync: int, info: Any) -> int:
        return 0

    def truncate(self, path: str, length: int, info: Any = None) -> int:
        raise OSError(errno.ENOSYS, path)

    def create(self, path: str, mode: int, info: Any) -> int:
        raise OSError(errno.ENOSYS, path)

    def mkdir(self, path: str, mode: int) -> int:
        raise OSError(errno.ENOSYS, path)


def main() -> None:
    from mfusepy import FUSE  # noqa: PLC0415

    port, directory, era, attributes_live_s = sys.argv[1:]
    namespace = ConsoleNamespace(ConsoleConfig(port=int(port), token=TOKEN, use_lock=False))
    # A signal is how it ends, and what the library calls an error.
    with namespace, suppress(RuntimeError):
        FUSE(
            HiveFilesystem(namespace, old=era == "old"),
            directory,
            raw_fi=True,
            foreground=True,
            nothreads=True,
            attr_timeout=float(attributes_live_s),
            entry_timeout=float(attributes_live_s),
            fsname="hive",
        )


if __name__ == "__main__":
    main()
