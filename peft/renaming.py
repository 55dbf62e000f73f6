"""Renaming that never replaces, which the standard library does not offer."""

from __future__ import annotations

import errno
import os
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["rename_new"]

_RENAME_NOREPLACE: Final = 1
_UNSUPPORTED: Final = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})


def rename_new(src_fd: int, src: str, dst_fd: int, dst: str) -> None:
    """Let ``dst`` name what ``src`` names, unless ``dst`` exists; the whole decision is the kernel's.

    A file system without that operation (some network and user-space ones) gets a look and then a plain
    rename. There it is the lock of the root that keeps others out in between, and a directory still cannot
    take the place of a file or of a directory with something in it.

    Raises:
        OSError: with EEXIST when ``dst`` exists.
    """
    try:
        _kernel_rename()(src_fd, src, dst_fd, dst)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        _rename_if_free(src_fd, src, dst_fd, dst)


def _rename_if_free(src_fd: int, src: str, dst_fd: int, dst: str) -> None:
    try:
        os.stat(dst, dir_fd=dst_fd, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(src, dst, src_dir_fd=src_fd, dst_dir_fd=dst_fd)
    else:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), dst)


@cache
def _kernel_rename() -> Callable[[int, str, int, str], None]:
    import ctypes  # noqa: PLC0415 - costs start-up time and only publishing needs it

    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)

    def rename(src_fd: int, src: str, dst_fd: int, dst: str) -> None:
        if function is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        if function(src_fd, os.fsencode(src), dst_fd, os.fsencode(dst), _RENAME_NOREPLACE):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), src)

    return rename
