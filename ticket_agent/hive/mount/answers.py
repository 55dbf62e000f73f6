"""What the error of a system call on a mounted hive means: for a reading, and for a write. Pure.

A mount knows only error numbers. Those of an ``open`` are definite, because nothing was written yet. One of
a ``write`` is definite only where nothing had been sent; ``EIO`` stands for a refusal of the hive and for a
lost connection alike, and so it is never taken for a refusal.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from ticket_agent.protocol.namespace import (
    HiveError,
    HiveRefusedError,
    HiveUnreachableError,
    HiveViolationError,
    Refusal,
    RefusalKind,
)

__all__ = ["AMBIGUOUS", "GONE", "MountIncompatibleError", "nothing_written", "of_reading", "reason"]

GONE: Final = frozenset(
    {
        errno.ENOTCONN,
        errno.ENODEV,
        errno.ESTALE,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ESHUTDOWN,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ETIMEDOUT,
    }
)
"""The process behind the mount is gone, or says that it reaches nobody."""

AMBIGUOUS: Final = frozenset({errno.EIO, errno.EINVAL, errno.EAGAIN})
"""May pass by itself: the file is read once more before anything is concluded."""

_KINDS: Final = {
    errno.ENOENT: RefusalKind.INVALID_PATH,
    errno.EISDIR: RefusalKind.INVALID_PATH,
    errno.ENOTDIR: RefusalKind.INVALID_PATH,
    errno.EACCES: RefusalKind.DENIED,
    errno.EPERM: RefusalKind.DENIED,
    errno.EROFS: RefusalKind.DENIED,
    errno.ENOSYS: RefusalKind.GRAMMAR,
    errno.EOPNOTSUPP: RefusalKind.GRAMMAR,
    errno.EBUSY: RefusalKind.BUSY,
    errno.EINVAL: RefusalKind.BUSY,
}

_WORDS: Final = {
    errno.ENOENT: "there is no such node in the mount (nodes that can only be written have none either)",
    errno.EACCES: "the mount does not offer this path, or this user may not use it",
    errno.ENOSYS: "the mount does not offer this operation",
    errno.EINVAL: "the mount took another size for the node's; nothing was written",
}


class MountIncompatibleError(HiveViolationError):
    """The mount cannot be used at all, and waiting does not help."""

    code = "hive-incompatible"


def reason(number: int) -> str:
    """An error number in words."""
    name = errno.errorcode.get(number, str(number))
    return f"{name}: {_WORDS.get(number, os.strerror(number))}"


def nothing_written(number: int) -> Refusal:
    """The refusal that an error means which came before anything was written."""
    return Refusal(kind=_KINDS.get(number, RefusalKind.OTHER), text=reason(number))


def of_reading(verb: str, path: str, number: int, *, peer: str, alive: bool) -> HiveError:
    """The error to raise for a failed reading.

    Args:
        verb: what was tried.
        path: of the hive's namespace.
        number: errno.
        peer: the mount, in words.
        alive: whether another node could be read just now.
    """
    if number in GONE:
        return HiveUnreachableError(f"{peer}: {reason(number)}; is its mount process running?")
    if number == errno.ELOOP:
        return HiveViolationError(f"{peer}: {path} leads over a link, and links are not followed")
    if number in AMBIGUOUS and not alive:
        return HiveUnreachableError(f"{peer}: {verb} {path}: {reason(number)}; reading again is safe")
    kind = RefusalKind.OTHER if number in AMBIGUOUS else _KINDS.get(number, RefusalKind.OTHER)
    return HiveRefusedError(verb, path, Refusal(kind=kind, text=f"{peer}: {reason(number)}"))
