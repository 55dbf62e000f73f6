"""Letting a process, and what it starts, give way to others that want the processor."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["give_way", "weigh_session"]

_TRIES: Final = 5
_PAUSE_S: Final = 0.05
"""The kernel takes ten of these changes in a second, of all processes together."""


def give_way(niceness: int) -> None:
    """Lower the priority of this process, 0..=19, for good."""
    if niceness:
        os.nice(niceness)
        weigh_session()


def weigh_session() -> None:
    """Give this process's session the weight of the process.

    Where the kernel weighs sessions against each other, priorities count within a session only, and each new
    session begins with a full weight.
    """
    with suppress(OSError):
        for _ in range(_TRIES):
            try:
                Path("/proc/self/autogroup").write_bytes(b"%d" % os.nice(0))
            except BlockingIOError:
                time.sleep(_PAUSE_S)
            else:
                return
