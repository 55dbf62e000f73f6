"""A bearer token by reference, and bounded reading of the small files that settings name."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Final

from ticket_agent.protocol.collecting import CollectError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MAX_TOKEN_BYTES", "bearer_token", "read_regular"]

MAX_TOKEN_BYTES: Final = 4096

_ENV = "env:"
_FILE = "file:"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(rf"[!-~]{{1,{MAX_TOKEN_BYTES}}}")


def bearer_token(reference: str, environ: Mapping[str, str], *, setting: str) -> str:
    """Return the token that ``env:NAME`` or ``file:/absolute/path`` names.

    The same references as for a hive's credential, but a symbolic link is followed: in a pod the token is
    one, so that it can be replaced at once. One newline at the end of the file is dropped.

    Args:
        reference: where it is; never the token itself.
        environ: where variables are looked up.
        setting: the name of the setting, for error texts.

    Raises:
        CollectError: there is none there, or it is not 1 to 4096 printable ASCII characters without blanks.
            No error repeats the token, nor a reference that might be one.
    """
    if reference.startswith(_ENV):
        name = reference.removeprefix(_ENV)
        if _VARIABLE.fullmatch(name) is None:
            raise CollectError(f"{setting}: env: needs the name of an environment variable after it")
        if name not in environ:
            raise CollectError(f"{setting} names the environment variable {name}, which is not set")
        token = environ[name]
    elif reference.startswith(_FILE):
        path = reference.removeprefix(_FILE)
        raw = read_regular(path, max_bytes=MAX_TOKEN_BYTES + 1, setting=setting)
        # Latin-1 keeps foreign bytes visible to the check without an error that would quote them.
        token = raw.removesuffix(b"\n").decode("latin-1")
    else:
        raise CollectError(f"{setting} must be env:NAME or file:/absolute/path, not the token itself")
    if _TOKEN.fullmatch(token) is None:
        raise CollectError(
            f"the token of {setting} must be 1..={MAX_TOKEN_BYTES} printable ASCII characters without blanks"
        )
    return token


def read_regular(path: str, *, max_bytes: int, setting: str) -> bytes:
    """Return the bytes of a regular file, or of one that a symbolic link leads to.

    Args:
        path: absolute, without ``..``.
        max_bytes: most there may be.
        setting: that names the file, for error texts.

    Raises:
        CollectError: it is not such a file, or cannot be read.
    """
    if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise CollectError(f"{setting} must name a file by an absolute path without '..'")
    try:
        data = _read(path, max_bytes + 1)
    except OSError as error:
        raise CollectError(f"{setting}: {path!r} cannot be read: {error.strerror}") from None
    if data is None:
        raise CollectError(f"{setting}: {path!r} is no regular file")
    if len(data) > max_bytes:
        raise CollectError(f"{setting}: {path!r} is larger than {max_bytes} bytes")
    return data


def _read(path: str, count: int) -> bytes | None:
    """Return up to ``count`` bytes; None when this is no regular file, which might never give any."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = b""
        while chunk := os.read(descriptor, count - len(data)):
            data += chunk
        return data
    finally:
        os.close(descriptor)
