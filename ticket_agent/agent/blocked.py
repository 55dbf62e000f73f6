"""Which lanes an unreadable record holds.

A quarantined record's own bytes are not trusted, not even for the name of its lease. What the hive still
shows of its admission is: a line whose ticket has the name of the record's file is that record's request,
because the file is named by the digest of the ticket's key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ticket_agent.agent.keys import V2_FAMILY, base_key, reuse_key
from ticket_agent.journal.values import record_name
from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.spec import parse_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ticket_agent.journal.record import Record
    from ticket_agent.journal.scan import Quarantined
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["Blocked", "BlockedAdmissions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """An admission that is not executed because its record cannot be read.

    Attributes:
        name: file name of the record.
        spec: the request as the hive shows it.
        family: of version 1 or 2.
        epoch: hive epoch in which it was seen.
        sequence: as the file's name has it.
    """

    name: str
    spec: HostTicketSpec
    family: str
    epoch: int
    sequence: int

    def precedes(self, record: Record) -> bool:
        """Tell whether an operation of the same lane has to wait for this one."""
        if record.epoch != self.epoch:
            return record.epoch > self.epoch
        return record.family != self.family or record.sequence > self.sequence


class BlockedAdmissions:
    """Finds the admissions behind quarantined files, once each, and remembers them for the process's life.

    Args:
        quarantined: what the journal could not read at the start.
        refetch: asks root for the line of one admission; None when it does not offer or know it.
        max_line_bytes: longest request line.
    """

    def __init__(
        self,
        quarantined: Iterable[Quarantined],
        *,
        refetch: Callable[[int], str | None],
        max_line_bytes: int,
    ) -> None:
        self._missing = {entry.name: entry.sequence for entry in quarantined if entry.sequence is not None}
        self._refetch = refetch
        self._max_line_bytes = max_line_bytes
        self._asked: set[tuple[int, str]] = set()
        self.found: list[Blocked] = []

    def learn(self, specs: Iterable[HostTicketSpec], *, family: str, epoch: int) -> None:
        """Match visible requests with the files that could not be read."""
        if not self._missing:
            return
        sequences = set(self._missing.values())
        for spec in specs:
            known = (spec.admission_sequence,) if spec.admission_sequence is not None else tuple(sequences)
            for sequence in known:
                if sequence in sequences:
                    self._match(spec, sequence=sequence, family=family, epoch=epoch)

    def ask(self, *, epoch: int) -> None:
        """Ask root, once per hive epoch, for what has slid out of the log."""
        for name, sequence in tuple(self._missing.items()):
            if (epoch, name) in self._asked:
                continue
            text = self._refetch(sequence)
            self._asked.add((epoch, name))
            spec = self._parse(text) if text is not None else None
            if spec is not None and spec.admission_sequence == sequence:
                self._match(spec, sequence=sequence, family=V2_FAMILY, epoch=epoch)

    def _parse(self, text: str) -> HostTicketSpec | None:
        try:
            return parse_spec(text.encode("utf-8"), source="admitted", max_line_bytes=self._max_line_bytes)
        except ProtocolError:
            return None

    def _match(self, spec: HostTicketSpec, *, sequence: int, family: str, epoch: int) -> None:
        base = base_key(spec)
        reused = reuse_key(base, epoch, spec.admission_sequence)
        for key in (base, reused):
            name = record_name(sequence, key)
            if name in self._missing:
                del self._missing[name]
                self.found.append(
                    Blocked(name=name, spec=spec, family=family, epoch=epoch, sequence=sequence)
                )
