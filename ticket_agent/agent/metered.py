"""The journal with a stopwatch: used in place of the plain one only while metrics are switched on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from ticket_agent.journal.fs import RealFs
from ticket_agent.journal.store import JournalStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ticket_agent.agent.metrics import Meter
    from ticket_agent.journal.outcome import Plan
    from ticket_agent.journal.record import ProviderResult, Record, StagedResult
    from ticket_agent.journal.space import Limits

__all__ = ["MeteredStore", "TimedFs"]


class TimedFs(RealFs):
    """The operating system's file system; every fsync that succeeds is timed."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def fsync(self, fd: int) -> None:
        """Sync a file."""
        started = self._meter.stopwatch()
        super().fsync(fd)
        self._meter.synced("file", self._meter.stopwatch() - started)

    def fsync_dir(self, dir_fd: int) -> None:
        """Sync a directory."""
        started = self._meter.stopwatch()
        super().fsync_dir(dir_fd)
        self._meter.synced("directory", self._meter.stopwatch() - started)


class MeteredStore(JournalStore):
    """A journal that times every transition which led to another state, from the call to its return."""

    meter: Meter

    @classmethod
    def open_metered(
        cls,
        state_dir: Path,
        *,
        meter: Meter,
        clock: Callable[[], int],
        boot_id: str,
        agent_version: str,
        limits: Limits,
    ) -> Self:
        """As :meth:`JournalStore.open`, on a file system that is timed too."""
        store = cls.open(
            state_dir,
            clock=clock,
            boot_id=boot_id,
            agent_version=agent_version,
            fs=TimedFs(meter),
            limits=limits,
        )
        store.meter = meter
        return store

    def prepare(self, *, key: str, family: str, epoch: int, sequence: int, request: bytes) -> Record:
        """See :class:`JournalStore`; an operation that is journaled already is not counted again."""
        known = key in self.records
        started = self.meter.stopwatch()
        record = super().prepare(key=key, family=family, epoch=epoch, sequence=sequence, request=request)
        return record if known else self._timed(started, record)

    def dispatch(self, key: str, plan: Plan) -> Record:
        """See :class:`JournalStore`."""
        return self._timed(self.meter.stopwatch(), super().dispatch(key, plan))

    def settle(self, key: str, result: ProviderResult, staged: StagedResult) -> Record:
        """See :class:`JournalStore`."""
        return self._timed(self.meter.stopwatch(), super().settle(key, result, staged))

    def refuse(self, key: str, result: ProviderResult, staged: StagedResult) -> Record:
        """See :class:`JournalStore`."""
        return self._timed(self.meter.stopwatch(), super().refuse(key, result, staged))

    def adopt(self, key: str, result: ProviderResult, staged: StagedResult) -> Record:
        """See :class:`JournalStore`."""
        return self._timed(self.meter.stopwatch(), super().adopt(key, result, staged))

    def publish(self, key: str) -> Record:
        """See :class:`JournalStore`."""
        return self._timed(self.meter.stopwatch(), super().publish(key))

    def withdraw(self, key: str, reason: str) -> Record:
        """See :class:`JournalStore`."""
        return self._timed(self.meter.stopwatch(), super().withdraw(key, reason))

    def finish(self, key: str) -> Record:
        """See :class:`JournalStore`."""
        return self._timed(self.meter.stopwatch(), super().finish(key))

    def _timed(self, started: float, record: Record) -> Record:
        self.meter.reached(record, self.meter.stopwatch() - started)
        return record
