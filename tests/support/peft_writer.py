"""A process that works on a registry until it is killed: a journal, the providers, one operation at a time.

    python peft_writer.py FOLDER COUNT

It finishes what an earlier one left open, as an agent would, and goes on with new operations up to COUNT,
telling one line for each that has ended. What comes next depends on the number and on the registry alone.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from journal_support import open_store
from peft_actions import JOB, Places, spec

from ticket_agent.agent.keys import V2_FAMILY
from ticket_agent.agent.operation import spec_of
from ticket_agent.journal.outcome import PlanRefusedError
from ticket_agent.journal.record import ProviderResult, StagedResult
from ticket_agent.journal.recovery import settled
from ticket_agent.journal.transitions import State
from ticket_agent.peft.activation import ActivateProvider, RollbackProvider
from ticket_agent.peft.imports import ImportProvider

if TYPE_CHECKING:
    from ticket_agent.journal.outcome import Provider
    from ticket_agent.journal.store import JournalStore
    from ticket_agent.journal.values import Record
    from ticket_agent.protocol.spec import HostTicketSpec

ADAPTERS = 4


class Writer:
    """The operations of one life."""

    def __init__(self, folder: Path, store: JournalStore) -> None:
        self._places = Places(folder / "roots")
        self._store = store
        roots = self._places.roots
        self._providers: dict[str, Provider[HostTicketSpec]] = {
            "peft.import": ImportProvider(roots),
            "peft.activate": ActivateProvider(roots),
            "peft.rollback": RollbackProvider(roots),
        }

    def work(self, count: int) -> None:
        """Everything up to the given number."""
        for record in sorted(self._store.open_records(), key=lambda record: record.sequence):
            self._finish(record)
        for number in range(len(self._store.records) + 1, count + 1):
            request = self._next(number)
            record = self._store.prepare(
                key=f"t{number}", family=V2_FAMILY, epoch=1, sequence=number, request=request.encode()
            )
            self._finish(record)

    def _next(self, number: int) -> HostTicketSpec:
        chance = random.Random(number)
        registry = self._places.registry
        models = sorted(path.name for path in (registry / "available").glob("m*"))
        ticket = f"t{number}"
        if len(models) < 2 or chance.random() < 0.2:
            adapter = f"run-{chance.randrange(ADAPTERS)}"
            return spec("peft.import", f"m{number}", ticket=ticket, adapter_ref=adapter, job_id=JOB)
        active = (registry / "active").read_text().strip() if (registry / "active").exists() else None
        state = registry / "active_state.toml"
        previous = [
            line.split('"')[1] for line in (state.read_text().splitlines() if state.exists() else [])
        ][1:]
        if previous and chance.random() < 0.4:
            return spec("peft.rollback", previous[0], ticket=ticket)
        return spec("peft.activate", chance.choice([m for m in models if m != active]), ticket=ticket)

    def _finish(self, record: Record) -> None:
        key, request = record.key, spec_of(record)
        provider = self._providers[request.action]
        if record.state is State.PREPARED:
            record = self._dispatch(key, request, provider)
        if record.state is State.EXECUTING:
            assert record.plan is not None
            result = settled(provider.observe(record.plan), reconciled=True)
            assert result is not None, "everything is decidable under the lock"
            record = self._store.settle(key, result, _staged(request))
        if record.state is State.PERSISTED:
            record = self._store.publish(key)
        record = self._store.finish(key)
        assert record.result is not None
        print(record.sequence, request.action, record.result.outcome, record.result.message, flush=True)

    def _dispatch(self, key: str, request: HostTicketSpec, provider: Provider[HostTicketSpec]) -> Record:
        try:
            plan = provider.plan(request)
        except PlanRefusedError as error:
            result: Any = ProviderResult(outcome="rejected", message=str(error)[:192])
            return self._store.refuse(key, result, _staged(request))
        record = self._store.dispatch(key, plan)
        result = settled(provider.execute(plan), reconciled=False)
        return record if result is None else self._store.settle(key, result, _staged(request))


def _staged(request: HostTicketSpec) -> StagedResult:
    return StagedResult(path="/host/tickets/status", line=request.id)


def main(folder: str, count: str) -> None:
    """Work until killed, or done."""
    # SIGKILL takes nothing from the page cache, so that syncing would only cost time here.
    os.fsync = lambda fd: None
    with open_store(Path(folder) / "state") as store:
        Writer(Path(folder), store).work(int(count))


if __name__ == "__main__":
    main(*sys.argv[1:])
