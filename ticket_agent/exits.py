"""Exit codes of every command: one table, stable, documented in the README."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["MEANING", "Exit"]


class Exit(IntEnum):
    """What a finished command tells its caller."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    OTHER_OWNER = 3
    DEGRADED = 4
    HIVE_UNREACHABLE = 5
    HIVE_REFUSED = 6
    UNCERTAIN = 7
    POISONED = 8


MEANING: dict[Exit, str] = {
    Exit.OK: "done",
    Exit.FAILURE: "failed for a reason named on standard error",
    Exit.USAGE: "the command line or the configuration is wrong",
    Exit.OTHER_OWNER: "another agent owns the state directory",
    Exit.DEGRADED: "a record is quarantined or an admission gap is held",
    Exit.HIVE_UNREACHABLE: "no hive answers, or its console is busy",
    Exit.HIVE_REFUSED: "the hive refused the credential or the request",
    Exit.UNCERTAIN: "operations with an unknown outcome remain",
    Exit.POISONED: "a write to the journal failed; restart after checking the disk",
}
