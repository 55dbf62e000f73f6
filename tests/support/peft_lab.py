"""A hive and three roots, and agents that serve PEFT tickets on them."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from agent_faults import Killed, drop
from agent_support import Bench, agent_on
from hive_support import ManualClock, running_hive
from peft_tickets import raw_peft, roots_in

from ticket_agent.hive.reference import DEFAULT
from ticket_agent.journal.view import read_journal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from ticket_agent.hive.reference import ConsoleServer, HiveProfile, ReferenceHive
    from ticket_agent.journal.values import Record
    from ticket_agent.peft.settings import PeftRoots


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A hive, three roots, and a place for the state of agents."""

    hive: ReferenceHive
    server: ConsoleServer
    clock: ManualClock
    roots: PeftRoots
    folder: Path

    def agent(self, life: str = "state", **options: Any) -> AbstractContextManager[Bench]:
        return agent_on(self.server, self.folder / life, clock=self.clock, roots=self.roots, **options)

    def submit(self, action: str, subject: str, ticket_id: str = "t1", **args: str) -> None:
        worker = self.hive.spawn_worker("worker-lora").worker_id
        self.hive.submit(raw_peft(self.hive, worker, f"peft.{action}", subject, ticket_id=ticket_id, **args))

    def result(self, ticket_id: str = "t1") -> tuple[str, str]:
        """State and message of the one terminal result."""
        (line,) = self.hive.terminal_lines((ticket_id, f"key-{ticket_id}"))
        result = json.loads(line)
        return result["state"], result["message"]

    @property
    def pointer(self) -> str:
        return (self.roots.registry / "active").read_text()

    @property
    def state(self) -> str:
        return (self.roots.registry / "active_state.toml").read_text()

    def record(self, life: str = "state") -> Record:
        """The only record of an agent's journal."""
        (record,) = read_journal(self.folder / life).records.values()
        return record


@contextmanager
def peft_lab(folder: Path, profile: HiveProfile = DEFAULT) -> Iterator[Lab]:
    """A lab for the body; its roots are empty."""
    clock = ManualClock()
    with running_hive(profile, clock=clock) as (hive, server):
        yield Lab(hive=hive, server=server, clock=clock, roots=roots_in(folder / "roots"), folder=folder)


def die(bench: Bench) -> None:
    """Let the agent work until it dies."""
    with pytest.raises(Killed):
        bench.settle()
    drop(bench)
