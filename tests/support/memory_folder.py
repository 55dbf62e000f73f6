"""Where tests put their files: in memory where that is possible.

The page cache outlives every process, and a cut of the power is played on an image: how long a sync takes on
this machine's disk proves nothing, and it is what most of the suite would wait for.
"""

from __future__ import annotations

import os
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOMY = 3 * 2**30
"""Free bytes that the memory's file system must have."""


def memory_folder() -> Path | None:
    """A file system in memory that has room and lets programs run, or None."""
    if not os.access(MEMORY, os.R_OK | os.W_OK | os.X_OK):
        return None
    found = os.statvfs(MEMORY)
    if found.f_flag & os.ST_NOEXEC or found.f_bavail * found.f_frsize < ROOMY:
        return None
    return MEMORY
