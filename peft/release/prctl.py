"""The few process attributes that the standard library has no call for."""

from __future__ import annotations

import ctypes
import os
import signal

__all__ = ["adopt_orphans", "die_with_parent", "gain_no_privileges"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

# Opened at import: a child between fork and exec must not start loading libraries.
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), *(ctypes.c_ulong(0),) * 3) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def die_with_parent() -> None:
    """Be killed when the thread that forked us ends. Whoever calls this checks the parent afterwards."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none of them can get away."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def gain_no_privileges() -> None:
    """Let no program that is executed from now on gain privileges, set-user-id or otherwise."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
