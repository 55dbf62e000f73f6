"""Exit codes of every command: one table, stable, documented in the README."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["MEANING", "RELEASE_MEANING", "Exit", "ReleaseExit"]


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
    Exit.OTHER_OWNER: "another agent owns the state directory, or another publisher its source",
    Exit.DEGRADED: "a record is quarantined, an admission gap is held, or a snapshot shows no state",
    Exit.HIVE_UNREACHABLE: "no hive answers, or its console is busy",
    Exit.HIVE_REFUSED: "the hive refused the credential or the request",
    Exit.UNCERTAIN: "operations with an unknown outcome remain",
    Exit.POISONED: "a write to the journal, or of a cursor, failed; restart after checking the disk",
}


class ReleaseExit(IntEnum):
    """What a command that waits for a release tells beside these: how the release stands or has ended."""

    SUCCEEDED = 0
    PENDING = 10
    RUNNING = 11
    AMBIGUOUS = 12
    REFUSED = 13
    RECOVERED_FAILURE = 15
    FAILED = 16
    TIMEOUT = 17
    INVALID_EVIDENCE = 18


RELEASE_MEANING: dict[ReleaseExit, str] = {
    ReleaseExit.SUCCEEDED: "the candidate is promoted, and the evidence of that is in order",
    ReleaseExit.PENDING: "the release has not begun",
    ReleaseExit.RUNNING: "the release is under way",
    ReleaseExit.AMBIGUOUS: "nobody knows how a phase ended; a recovery is needed",
    ReleaseExit.REFUSED: "the release ended before any phase of it ran",
    ReleaseExit.RECOVERED_FAILURE: "the release failed, and what was deployed before is deployed again",
    ReleaseExit.FAILED: "the release failed, or its rollback did",
    ReleaseExit.TIMEOUT: "the time for waiting is over, and the release is not",
    ReleaseExit.INVALID_EVIDENCE: "the release ended, and its evidence is missing or damaged",
}
