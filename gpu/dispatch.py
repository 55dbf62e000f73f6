"""Which of our writes may still be on their way, and which connections that carried one are proven dead.

"It is not there" means "it will not come" only when the connection that carried the write has ended: bytes
that left this host may otherwise be applied after the reading. A hive's console serves one client at a time,
so an attached session with a higher number proves that every earlier connection was left behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.protocol.namespace import Acked

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.protocol.namespace import AppendAnswer, Namespace

__all__ = ["Dispatcher", "Origin"]

MAX_REMEMBERED: Final = 1024
"""Writes remembered per process; a forgotten one merely stays uncertain until other evidence settles it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where and when a plan was made.

    Attributes:
        instance: nonce of the process that planned; session numbers compare within one instance only.
        session: the namespace's session after planning.
        epoch: number of the hive's life, None if unknown; leases and counters do not outlive it.
    """

    instance: str
    session: int
    epoch: int | None


@dataclass(frozen=True, slots=True)
class _Write:
    session: int
    acked: bool


class Dispatcher:
    """Makes the writes of one process and remembers on which session each went out.

    1. A write is remembered even when making it raises: it may have left this host.
    2. A write of another instance was made by a process that has ended, before this one was attached.
    3. A write of this instance that is not remembered proves nothing.
    """

    def __init__(
        self,
        namespace: Namespace,
        *,
        instance: str,
        single_owner: bool = True,
        epoch: Callable[[], int] | None = None,
    ) -> None:
        """Bind to a namespace.

        Args:
            namespace: the hive.
            instance: nonce of this namespace object's life; never used by an earlier process.
            single_owner: whether a newer session proves that an older connection is gone. False behind a
                gateway, which may still hold a request back.
            epoch: number of the hive's present life. Without it a reboot between plan and observation is
                not noticed.
        """
        self._namespace: Final = namespace
        self._instance: Final = instance
        self._single_owner: Final = single_owner
        self._epoch: Final = epoch
        self._writes: Final[dict[tuple[str, str], _Write]] = {}

    def origin(self) -> Origin:
        """The present as a plan records it; call it after the plan's reads."""
        return Origin(instance=self._instance, session=self._namespace.session, epoch=self._present_epoch())

    def append(self, path: str, line: str, *, session: int | None = None) -> AppendAnswer:
        """Append once; with the plan's ``session`` only while that lasts, so that no rebooted hive gets it.

        Raises:
            HiveError: nothing was sent.
        """
        acked = False
        try:
            answer = self._namespace.append(path, line, session=session)
            acked = isinstance(answer, Acked)
        finally:
            # Afterwards, because the append itself may have had to open the session that carried it.
            self._remember(path, line, acked=acked)
        return answer

    def acknowledged(self, origin: Origin, path: str, line: str) -> bool:
        """Whether this process saw the hive accept the write."""
        write = self._writes.get((path, line))
        return origin.instance == self._instance and write is not None and write.acked

    def writer_dead(self, origin: Origin, path: str, line: str, *, session: int) -> bool:
        """Whether the connection that carried a write had ended before ``session``, in which we read.

        Args:
            origin: of the write's plan.
            path: that was written to.
            line: that was written.
            session: the namespace's session after the first of the reads that the answer is used for.
        """
        if not self._single_owner or session == 0:
            return False
        if origin.instance != self._instance:
            return True
        write = self._writes.get((path, line))
        return write is not None and session > write.session

    def same_epoch(self, origin: Origin) -> bool:
        """Whether the hive has not rebooted since the plan, as far as anybody can tell."""
        return origin.epoch == self._present_epoch()

    def _present_epoch(self) -> int | None:
        return None if self._epoch is None else self._epoch()

    def _remember(self, path: str, line: str, *, acked: bool) -> None:
        self._writes.pop((path, line), None)
        self._writes[path, line] = _Write(self._namespace.session, acked)
        if len(self._writes) > MAX_REMEMBERED:
            del self._writes[next(iter(self._writes))]
