"""Small text files of the kernel, read within a size."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MAX_FILE_BYTES", "read_text"]

MAX_FILE_BYTES: Final = 512


def read_text(path: Path, max_bytes: int = MAX_FILE_BYTES) -> str:
    """Return a file's text without the newlines and NULs at its end.

    Raises:
        OSError: it cannot be read, which for the kernel's files may mean that there is no reading now; EFBIG
            when it is larger.
        UnicodeDecodeError: it is not UTF-8.
    """
    # No file of the kernel makes its reader wait, as a FIFO in its place would.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    data = b""
    try:
        while len(data) <= max_bytes and (piece := os.read(descriptor, max_bytes + 1 - len(data))):
            data += piece
    finally:
        os.close(descriptor)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"more than {max_bytes} bytes", str(path))
    return data.decode("utf-8").rstrip("\n\0")
