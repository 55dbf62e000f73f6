"""What only the living process knows, left beside the journal for `status`; information, never evidence."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from ticket_agent.journal.fs import write_all
from ticket_agent.journal.outcome import bounded_detail

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ticket_agent.agent.loop import Agent

__all__ = ["STATUS_NAME", "STATUS_SCHEMA", "StatusFile", "read_status"]

STATUS_NAME = "agent-status.json"
STATUS_SCHEMA = "ticket-agent-status/v1"
MAX_STATUS_BYTES = 256 * 1024
MAX_WAITING = 100
PERIOD_S = 1.0


class StatusFile:
    """Replaces one small file at most once a second, without syncing it: losing it loses nothing."""

    def __init__(
        self,
        dir_fd: int,
        *,
        pid: int,
        boot_id: str,
        clock: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        self._dir_fd = dir_fd
        self._pid = pid
        self._boot_id = boot_id
        self._clock = clock
        self._monotonic = monotonic
        self._due = 0.0

    def write_if_due(self, agent: Agent) -> None:
        """Write unless the last one is younger than a second."""
        if self._monotonic() >= self._due:
            self.write(agent)

    def write(self, agent: Agent) -> None:
        """Write now; a full disk is no reason to stop."""
        self._due = self._monotonic() + PERIOD_S
        data = json.dumps(self._document(agent), sort_keys=True).encode("ascii") + b"\n"
        temporary = f".{STATUS_NAME}.{self._pid}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=self._dir_fd)
            fd = os.open(temporary, flags, 0o600, dir_fd=self._dir_fd)
            try:
                write_all(fd, data)
            finally:
                os.close(fd)
            os.rename(temporary, STATUS_NAME, src_dir_fd=self._dir_fd, dst_dir_fd=self._dir_fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=self._dir_fd)

    def _document(self, agent: Agent) -> dict[str, Any]:
        waiting = {op.record.key: op.waiting for op in agent.operations.values() if op.waiting}
        counters = agent.intake.counters
        return {
            "schema": STATUS_SCHEMA,
            "unix_ms": self._clock(),
            "pid": self._pid,
            "boot_id": self._boot_id,
            "hive": agent.hive_state,
            "epoch": agent.intake.epoch,
            "passes": agent.totals.passes,
            "ended": agent.totals.ended,
            "by_outcome": dict(agent.totals.by_outcome),
            "outages": agent.totals.outages,
            "lifecycle": {
                "state": agent.gate.state.value if agent.gate.state is not None else None,
                "takes_results": agent.gate.open,
                "closed_unix_ms": agent.gate.closed_unix_ms,
            },
            "pace": {
                "log": agent.cadence.pace.log,
                "turnover_s": _rounded(agent.cadence.pace.turnover_s),
                "look_s": _rounded(agent.cadence.pace.longest_pause_s),
                "replaced": _rounded(agent.cadence.pace.replaced),
                "close": agent.cadence.pace.close,
            },
            "waiting": _bounded(waiting),
            "unparsable": _bounded(agent.unparsable),
            "skipped": {
                "malformed_callers": counters.malformed_callers,
                "other_hive": counters.other_hive,
                "conflicts": counters.conflicts,
                "evicted_unseen_bytes": counters.evicted_unseen_bytes,
                "malformed_results": agent.streams.malformed,
            },
            "relay": agent.relay.document(agent.operations.values()),
        }


def _bounded(reasons: Mapping[str, str]) -> dict[str, str]:
    return {key: bounded_detail(why) for key, why in sorted(reasons.items())[:MAX_WAITING]}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def read_status(dir_fd: int) -> dict[str, Any] | None:
    """The last status a daemon left; None when there is none that can be read."""
    try:
        fd = os.open(STATUS_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as stream:
        data = stream.read(MAX_STATUS_BYTES)
    try:
        document = json.loads(data)
    except ValueError:
        return None
    return document if isinstance(document, dict) and document.get("schema") == STATUS_SCHEMA else None
