"""Lanes within one pass: operations on one resource run in order, so who holds one and who has to wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ticket_agent.agent.operation import UNDECIDED
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from ticket_agent.agent.blocked import BlockedAdmissions
    from ticket_agent.agent.operation import Operation
    from ticket_agent.agent.providers import ProviderTable

__all__ = ["Lanes", "lapsed"]


class Lanes:
    """The lanes of one pass; operations are shown to it in order.

    A lane is held by an undecided operation, and by a record that cannot be read: nobody knows what became of
    it, so nothing that depends on it is dispatched.
    """

    def __init__(self, blocked: BlockedAdmissions, providers: ProviderTable) -> None:
        self._held: set[str] = set()
        self._blocked = blocked
        self._providers = providers

    def is_held(self, op: Operation) -> bool:
        """Whether an undecided operation has to wait; why is noted in it."""
        if op.record.state not in UNDECIDED:
            return False
        if op.lane in self._held:
            return True
        unreadable = self._unreadable_before(op) if op.record.state is State.PREPARED else None
        if unreadable is not None:
            op.waiting = f"the record of an earlier ticket of its lane cannot be read: {unreadable}"
        return unreadable is not None

    def leave_behind(self, op: Operation) -> None:
        """Note how an operation was left: undecided, it holds its lane for those behind it."""
        if op.record.state in UNDECIDED and not op.frees_lane:
            self._held.add(op.lane)

    def _unreadable_before(self, op: Operation) -> str | None:
        for blocked in self._blocked.found:
            if blocked.precedes(op.record):
                lane = self._providers.provider_for(blocked.spec).lane(blocked.spec)
                if lane == op.lane:
                    return blocked.name
        return None


def lapsed(op: Operation, now_unix_ms: int) -> bool:
    """Whether it expired before it was dispatched: whoever holds the lane, it needs no dispatch to end."""
    expires = op.spec.expires_unix_ms
    return op.record.state is State.PREPARED and expires is not None and now_unix_ms >= expires
