"""The owner's part of retention: write the segment, then remove the records' own files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ticket_agent.journal.archive import (
    MAX_SEGMENT_BYTES,
    newest_segment_parts,
    next_segment_name,
)
from ticket_agent.journal.errors import JournalIoError
from ticket_agent.journal.retention import choose_retired
from ticket_agent.journal.values import MAX_RECORD_BYTES

if TYPE_CHECKING:
    from collections.abc import Container

    from ticket_agent.journal.fs import Fs
    from ticket_agent.journal.index import Index
    from ticket_agent.journal.space import Limits
    from ticket_agent.journal.state_dir import StateDir
    from ticket_agent.journal.values import Retained
    from ticket_agent.journal.writer import Writer

__all__ = ["Retirement"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retirement:
    """One go at moving old terminal records into a segment; ``archive`` tells the order that is safe."""

    fs: Fs
    dirs: StateDir
    index: Index
    writer: Writer

    def run(self, limits: Limits, *, now_unix_ms: int, keep: Container[str]) -> int:
        """Return how many records left; see :meth:`JournalStore.retire`."""
        self.writer.require_clean()
        retained = self.index.records.retained
        if len(retained) < limits.retain_records + limits.retire_batch:
            return 0
        chosen = choose_retired(
            retained,
            limits=limits,
            now_unix_ms=now_unix_ms,
            keep=keep,
            completed_through=self.index.completed_through,
        )
        if len(chosen) < limits.retire_batch:
            return 0
        leaving = self._archivable(chosen)
        self._archive([record.data for record in leaving.values()])
        before = len(retained)
        self.writer.remove(self.dirs.ops, list(leaving), lambda name: self._forget(leaving[name]))
        return before - len(self.index.records.retained)

    def _archivable(self, chosen: list[Retained]) -> dict[str, Retained]:
        leaving: dict[str, Retained] = {}
        size = 0
        for record in chosen:
            size += len(record.data)
            if size > MAX_SEGMENT_BYTES:
                break
            try:
                same = self.fs.read(self.dirs.ops, record.name, MAX_RECORD_BYTES) == record.data
            except OSError:
                same = False
            # A file that changed since it was read stays, and the next start looks into it.
            if same:
                leaving[record.name] = record
        return leaving

    def _archive(self, files: list[bytes]) -> None:
        try:
            archived = newest_segment_parts(self.fs, self.dirs.archive)
            name = next_segment_name(self.fs, self.dirs.archive)
        except OSError as error:
            raise JournalIoError(f"the archive cannot be read: {error}") from error
        data = b"".join(file for file in files if file not in archived)
        if data:
            self.writer.require_free(len(data))
            self.writer.put(self.dirs.archive, name, data, _nothing, new=True)

    def _forget(self, record: Retained) -> None:
        self.index.records.drop(record.key)


def _nothing() -> None:
    """Memory need not follow a segment."""
