"""Which host snapshots are enrolled: what the file of ``--manifest`` says, or an unchanged manifest."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from ticket_agent.cli.output import fail
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.protocol.snapshot_enrolment import SnapshotEnrolment

__all__ = ["enrolment_from"]


def enrolment_from(manifest: Path | None) -> SnapshotEnrolment | None:
    """Return what is enrolled; None where the manifest has host snapshots switched off.

    A file that cannot be used ends the command.
    """
    from ticket_agent.protocol.errors import SnapshotError  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.snapshot_enrolment import (  # noqa: PLC0415 - start-up time
        DEFAULT_ENROLMENT,
        MAX_MANIFEST_BYTES,
        parse_manifest,
    )

    if manifest is None:
        return DEFAULT_ENROLMENT
    try:
        return parse_manifest(_read(manifest, MAX_MANIFEST_BYTES))
    except OSError as error:
        fail(f"{manifest}: {error.strerror}; name the resolved manifest", Exit.USAGE)
    except SnapshotError as error:
        fail(f"{manifest}: {error}", Exit.USAGE)


def _read(path: Path, most: int) -> bytes:
    """At most one byte more than allowed, so that a longer file is refused as such."""
    # A named pipe must not hold us up.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:  # noqa: PTH123 - it is open already
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            fail(f"{path}: is no regular file; name the resolved manifest", Exit.USAGE)
        return file.read(most + 1)
