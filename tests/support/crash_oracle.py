"""What must hold after every crash and restart, whatever crashed where: one place for all crash tests."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hive_support import DEADLETTER, LEASE_CTL, STATUS

from ticket_agent.exits import Exit
from ticket_agent.journal.transitions import State
from ticket_agent.journal.view import read_journal, verify
from ticket_agent.protocol.result import parse_result

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path

    from ticket_agent.hive.reference import ConsoleServer, ReferenceHive
    from ticket_agent.hive.reference.lab import Effect
    from ticket_agent.journal.values import Record

_ORDER = list(State)


@dataclass
class Oracle:
    """Watches one hive and one state directory over any number of the agent's lives.

    Attributes:
        hive: whose effects and results are counted.
        state_dir: of the agent.
        tickets: of every operation, by ticket id, what its effect is on: a lease, a GPU, a Worker.
        may_stay_uncertain: nothing in the hive tells what became of a lost write, as in version 1.
        violations: what was seen between two lives; must stay empty.
        unordered: what reached the hive before the journal held it; must stay empty.
    """

    hive: ReferenceHive
    state_dir: Path
    tickets: dict[str, str]
    may_stay_uncertain: bool = False
    before: Counter[Effect] = field(init=False)
    violations: list[str] = field(default_factory=list)
    unordered: list[str] = field(default_factory=list)
    _seen: dict[str, Record] = field(default_factory=dict)
    _unreadable: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.before = self.hive.effects

    def watch(self, server: ConsoleServer) -> None:
        """Look at the journal at the very moment at which something reaches the hive."""
        server.faults.on_applied(self._applied)

    def _applied(self, path: str, line: str) -> None:
        records = self._records()
        if path in (LEASE_CTL, "/queen/ctl"):
            plans = [record.plan.intent["line"] for record in records if record.plan is not None]
            if line not in plans:
                self.unordered.append(f"effect before its plan was recorded: {line}")
        elif path in (STATUS, DEADLETTER) and parse_result(line.encode()).terminal:
            staged = [record.staged.line for record in records if record.staged is not None]
            if line not in staged:
                self.unordered.append(f"result published before it was persisted: {line}")

    def _records(self) -> list[Record]:
        if not self.state_dir.is_dir():
            return []
        return list(read_journal(self.state_dir).records.values())

    def effects(self, lease: str | None = None) -> int:
        """Mutations since the start, of one lease or of all."""
        since = self.hive.effects - self.before
        return sum(count for effect, count in since.items() if lease in (None, effect.subject))

    def after_life(self) -> None:
        """What must hold between two lives, however the first one ended."""
        if not self.state_dir.is_dir():
            return
        view = read_journal(self.state_dir)
        for record in view.records.values():
            earlier = self._seen.get(record.key)
            if earlier is not None:
                self._forward(earlier, record)
            self._seen[record.key] = record
        names = {record.name for record in view.records.values()}
        for key, earlier in self._seen.items():
            if key not in view.records and earlier.name not in {bad.name for bad in view.quarantined}:
                self.violations.append(f"the record of {key} is gone")
        for name, data in self._unreadable.items():
            path = self.state_dir / name
            if not path.exists() or path.read_bytes() != data or path.name in names:
                self.violations.append(f"the unreadable file {name} was changed")
        for bad in verify(self.state_dir):
            if not bad.ok:
                self._unreadable.setdefault(bad.file, (self.state_dir / bad.file).read_bytes())
        for lease in self.tickets.values():
            if self.effects(lease) > 1:
                self.violations.append(f"{self.effects(lease)} effects on {lease}")

    def forget(self) -> None:
        """The state directory is replaced by another one; what was seen of it counts no more."""
        self._seen.clear()
        self._unreadable.clear()

    def after_power(self) -> None:
        """What must have survived a power cut: whatever the world has seen of an operation."""
        records = {json.loads(record.request)["id"]: record for record in self._records()}
        for ticket, lease in self.tickets.items():
            record = records.get(ticket)
            lines = self.hive.terminal_lines((ticket, f"key-{ticket}"))
            if self.effects(lease) and (record is None or record.plan is None):
                self.violations.append(f"the plan of {ticket} was lost after its effect")
            if lines and (record is None or record.staged is None or [record.staged.line] != lines):
                self.violations.append(f"the result of {ticket} was lost after its publication")

    def _forward(self, earlier: Record, later: Record) -> None:
        where = f"{later.key}: {earlier.state} -> {later.state}"
        if later.history[: len(earlier.history)] != earlier.history:
            self.violations.append(f"history was rewritten, {where}")
        if _ORDER.index(later.state) < _ORDER.index(earlier.state):
            self.violations.append(f"state moved back, {where}")
        for member in ("request", "plan", "result", "staged"):
            was = getattr(earlier, member)
            if was is not None and was != getattr(later, member):
                self.violations.append(f"{member} was changed, {where}")

    @property
    def quarantined(self) -> tuple[str, ...]:
        """Files of operations that cannot be read."""
        if not self.state_dir.is_dir():
            return ()
        return tuple(bad.name for bad in read_journal(self.state_dir).quarantined)

    def settled(self) -> bool:
        """Whether every operation has a record that ended, or one that shows a doubt nobody can end."""
        if not self.state_dir.is_dir():
            return not self.tickets
        records = self._records()
        return len(records) == len(self.tickets) and all(
            record.terminal or self._in_doubt(record) for record in records
        )

    def _in_doubt(self, record: Record) -> bool:
        return self.may_stay_uncertain and record.state is State.EXECUTING and record.uncertain is not None

    def exit_code(self) -> int:
        """What the agent's last life must have ended with."""
        return int(Exit.UNCERTAIN if any(map(self._in_doubt, self._records())) else Exit.OK)

    def verdict(self, *, lied_to: bool = False) -> list[str]:
        """Everything that is wrong at the end; empty when all is well.

        Args:
            lied_to: a file was damaged behind the agent's back, so that its operation may be quarantined.
        """
        self.after_life()
        # Whoever looks cannot read a damaged record either.
        found = [*self.violations, *([] if lied_to else self.unordered)]
        bad = [entry.file for entry in verify(self.state_dir) if not entry.ok]
        if bad and not lied_to:
            found.append(f"unreadable at the end: {bad}")
        records = {json.loads(record.request)["id"]: record for record in self._records()}
        for ticket, lease in self.tickets.items():
            record = records.get(ticket)
            if record is not None:
                found += self._judge(ticket, lease, record)
            elif not (lied_to and bad):
                found.append(f"{ticket} has no record")
        return found

    def _judge(self, ticket: str, lease: str, record: Record) -> list[str]:
        found = []
        lines = self.hive.terminal_lines((ticket, f"key-{ticket}"))
        if not record.terminal:
            if record.uncertain is None:
                found.append(f"{ticket} is left in {record.state} without a reason")
            return found
        if record.staged is None or lines != [record.staged.line]:
            found.append(f"{ticket}: {len(lines)} terminal results, or not the staged line")
        outcome = record.result.outcome if record.result is not None else None
        if self.effects(lease) != (outcome == "confirmed"):
            found.append(f"{ticket} ended as {outcome} with {self.effects(lease)} effects")
        return found
