"""The host-wide advisory lock of a console, shared with all Cohesix tools (transports, session lifetime).

The lock is the flock(2) on the file; that the file exists says nothing. Its content tells people the owner.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from ticket_agent.protocol.namespace import HiveBusyError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DISABLE_VARIABLE", "ConsoleLock", "lock_enabled", "lock_path"]

DISABLE_VARIABLE: Final = "COHSH_CONSOLE_LOCK"
DISABLED: Final = frozenset({"0", "false", "off", "no"})

MODE: Final = 0o644
OWNER: Final = re.compile(rb"pid=([0-9]{1,10})\n?")


def lock_enabled(env: Mapping[str, str]) -> bool:
    """Whether the environment leaves the lock on."""
    return env.get(DISABLE_VARIABLE, "").strip().lower() not in DISABLED


def lock_path(host: str, port: int, *, directory: Path | None = None) -> Path:
    """Path of the lock of one console; ``directory`` defaults to the system's temporary directory."""
    safe = re.sub(r"[^A-Za-z0-9.-]", "_", host)
    return (directory or Path(tempfile.gettempdir())) / f"cohesix-console-{safe}-{port}.lock"


class ConsoleLock:
    """Exclusive ownership of one console among the tools of this host.

    The file is opened without truncating and written only once the lock is held, so that a refused contender
    never destroys the owner's note. It stays behind after ``release``: removing it would race.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._file is not None

    def acquire(self) -> None:
        """Take the lock without waiting; a second call is a no-op.

        Raises:
            HiveBusyError: somebody else holds it, or the file cannot be used as a lock.
        """
        if self._file is not None:
            return
        file = self._open()
        try:
            self._lock(file)
            file.truncate(0)
            file.write(b"pid=%d\n" % os.getpid())
        except OSError as error:
            file.close()
            raise self._unusable(error.strerror or str(error)) from error
        except BaseException:
            file.close()
            raise
        self._file = file

    def release(self) -> None:
        """Give the lock up; a no-op if it is not held."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _open(self) -> IO[bytes]:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self._path, flags, MODE)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise self._unusable("it is a symbolic link") from None
            raise self._unusable(error.strerror or str(error)) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self._unusable("it is not a regular file")
        return os.fdopen(descriptor, "r+b", buffering=0)

    def _lock(self, file: IO[bytes]) -> None:
        import portalocker  # noqa: PLC0415 - only a client that connects pays for it

        try:
            portalocker.lock(file, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING)
        except portalocker.LockException as error:
            owner = OWNER.match(file.read(64) or b"")
            shown = owner[1].decode() if owner is not None else "unknown"
            raise HiveBusyError(
                f"console busy: lock held at {self._path} (owner pid={shown}); "
                "stop that client, or use its gateway"
            ) from error

    def _unusable(self, why: str) -> HiveBusyError:
        return HiveBusyError(
            f"cannot take the console lock {self._path}: {why}; remove it, or set {DISABLE_VARIABLE}=0 "
            "if no other tool of this host uses the console"
        )
