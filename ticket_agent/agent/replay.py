"""What a restart does for the operations of a journal, without taking up anything new."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ticket_agent.agent.operation import UNDECIDED, UNPUBLISHED, Operation, in_order
from ticket_agent.journal.transitions import State
from ticket_agent.protocol.namespace import HiveAuthError, HiveBusyError, HiveError

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Mapping

    from ticket_agent.agent.loop import Agent

__all__ = ["behind", "replay"]

MAX_PASSES = 100
QUIET_PASSES = 3
"""Passes in a row in which nothing moves, after which nothing is expected to move."""

MAX_OUTAGES = 3
"""Lost connections in a row that are reconnected."""

PAUSE_S = 0.05


def replay(agent: Agent, stop: threading.Event, *, pause_s: float = PAUSE_S) -> None:
    """Pass after pass until nothing moves any more.

    Args:
        agent: one that does not serve.
        stop: ends the replay early.
        pause_s: seconds between two passes when nothing moved.

    Raises:
        HiveError: the hive cannot be used, or not any more; what was decided before stays decided.
        JournalPoisonedError: a write to the journal failed; the process must end.
    """
    quiet = outages = 0
    for _ in range(MAX_PASSES):
        if stop.is_set() or not agent.operations or quiet >= QUIET_PASSES:
            break
        try:
            moved = agent.pass_once(stop).active
        except HiveError as error:
            outages += 1
            hopeless = agent.session == 0 or isinstance(error, HiveAuthError | HiveBusyError)
            if hopeless or outages > MAX_OUTAGES:
                raise
            moved = False
        else:
            outages = 0
            quiet = 0 if moved else quiet + 1
        if not moved:
            stop.wait(pause_s)
        for op in agent.operations.values():
            op.retry_at = 0.0
    agent.save_cursor()


def behind(operations: Iterable[Operation]) -> Mapping[str, Operation]:
    """For each operation that an earlier one may hold back, by key: that earlier one.

    An undecided operation holds its lane, and a result that is not published holds back the later ones of its
    Worker (host tickets, order of results).
    """
    lanes: dict[str, Operation] = {}
    groups: dict[str, Operation] = {}
    found: dict[str, Operation] = {}
    for op in in_order(operations):
        undecided = op.record.state in UNDECIDED
        before = lanes.get(op.lane) if undecided else None
        if op.record.state is State.PERSISTED and op.group is not None:
            before = groups.get(op.group)
        if before is not None:
            found[op.record.key] = before
        if undecided:
            lanes.setdefault(op.lane, op)
        if op.group is not None and op.record.state in UNPUBLISHED:
            groups.setdefault(op.group, op)
    return found
