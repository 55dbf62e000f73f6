"""Every retained operation by key: open ones as values, terminal ones as the bytes of their files.

Terminal records are many and rarely asked for. As bytes they take a quarter of the memory, and they were
checked when they were read or written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ticket_agent.journal.errors import QuarantinedRecordError, RecordError
from ticket_agent.journal.record import Record, Retained, decode_record

if TYPE_CHECKING:
    from collections.abc import ValuesView

__all__ = ["RecordTable", "Retained"]


class RecordTable(Mapping[str, Record]):
    """Records by key. Looking up a terminal one decodes it afresh.

    Raises:
        QuarantinedRecordError: at a look-up, when a terminal record of another hand has a right digest and a
            body that no transition could have produced.
    """

    def __init__(self) -> None:
        self._open: dict[str, Record] = {}
        self._retained: dict[str, Retained] = {}

    def take(self, found: Record | Retained) -> None:
        """Take over an operation, in place of what was known of it."""
        if isinstance(found, Retained):
            self._open.pop(found.key, None)
            self._retained[found.key] = found
        else:
            self._open[found.key] = found

    def drop(self, key: str) -> Record | Retained | None:
        """Forget an operation and return what was known of it, if anything."""
        return self._open.pop(key, None) or self._retained.pop(key, None)

    @property
    def open(self) -> Mapping[str, Record]:
        """Operations that are not terminal."""
        return self._open

    def entries(self) -> Iterator[Record | Retained]:
        """Everything that there is, as far as it can be had without decoding."""
        yield from self._open.values()
        yield from self._retained.values()

    @property
    def retained(self) -> ValuesView[Retained]:
        """Terminal operations."""
        return self._retained.values()

    def __getitem__(self, key: str) -> Record:
        record = self._open.get(key)
        if record is not None:
            return record
        retained = self._retained[key]
        try:
            return decode_record(retained.data)
        except RecordError as error:
            raise QuarantinedRecordError(
                f"{retained.name} has a right digest and a wrong body: {error}"
            ) from error

    def __contains__(self, key: object) -> bool:
        return key in self._open or key in self._retained

    def __iter__(self) -> Iterator[str]:
        yield from self._open
        yield from self._retained

    def __len__(self) -> int:
        return len(self._open) + len(self._retained)
