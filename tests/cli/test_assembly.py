"""How the parts of a daemon are put together."""

from __future__ import annotations

import contextlib
import io
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from peft_tickets import ticket, v1_ticket

from ticket_agent.agent.events import EventLog
from ticket_agent.cli.assembly import console, now_ms, opened_agent, opened_store, provider_table
from ticket_agent.config import AgentConfig, PeftSettings
from ticket_agent.exits import Exit
from ticket_agent.journal.errors import JournalPoisonedError
from ticket_agent.journal.outcome import PlanRefusedError, PlanWaitsError
from ticket_agent.journal.store import JournalStore

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.agent.providers import ProviderTable


def test_a_journal_that_is_poisoned_while_it_is_opened_has_its_own_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any, **__: Any) -> JournalStore:
        raise JournalPoisonedError("the reserve cannot be allocated: Input/output error")

    monkeypatch.setattr(JournalStore, "open", refuse)
    with pytest.raises(SystemExit) as ended, opened_store(AgentConfig(state_dir=tmp_path / "state")):
        pass
    assert ended.value.code == Exit.POISONED
    assert capsys.readouterr().err == "ticket-agent: the reserve cannot be allocated: Input/output error\n"


def test_providers_know_a_new_epoch_before_the_cursor_can_say_so(tmp_path: Path) -> None:
    """On a full disk the cursor lags; going by it would take a rebooted hive for the old one."""
    config = AgentConfig(state_dir=tmp_path / "state")
    with (
        opened_store(config) as store,
        opened_agent(config, store, EventLog(io.StringIO(), clock=now_ms)) as agent,
    ):
        agent.intake._cursor = replace(agent.intake._cursor, epoch=7)
        assert store.cursor.epoch == 1
        for providers in agent._providers._by_version.values():
            leases = [provider for action, provider in providers.items() if action.startswith("gpu.lease.")]
            assert len(leases) == 3
            for provider in leases:
                assert provider._dispatcher.origin().epoch == 7  # type: ignore[attr-defined]


ROOTS = ("registry_root", "export_root", "adapter_root")


def _table(tmp_path: Path, *named: str) -> ProviderTable:
    peft = PeftSettings(**{name: tmp_path / name for name in named})
    config = AgentConfig(state_dir=tmp_path / "state", peft=peft)
    with contextlib.closing(console(config)) as namespace:
        return provider_table(config, namespace, epoch=lambda: 1)


@pytest.mark.parametrize("verb", ["export", "import", "activate", "rollback"])
def test_the_peft_actions_are_enabled_by_naming_three_directories(tmp_path: Path, verb: str) -> None:
    args = {"adapter_ref": "a", "job_id": "j"} if verb == "import" else {}
    tickets = ticket(f"peft.{verb}", "m", **args), v1_ticket(f"peft.{verb}", {})
    for spec in tickets:
        with pytest.raises(PlanRefusedError, match=r"its configuration names no directories in \[peft\]"):
            _table(tmp_path).provider_for(spec).plan(spec)
    for spec in tickets:
        with pytest.raises((PlanWaitsError, PlanRefusedError)) as raised:
            _table(tmp_path, *ROOTS).provider_for(spec).plan(spec)
        assert "not enabled" not in str(raised.value)


@pytest.mark.parametrize(
    "named", [named for count in (1, 2) for named in itertools.combinations(ROOTS, count)]
)
def test_some_of_the_directories_alone_are_a_mistake(
    tmp_path: Path, named: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        _table(tmp_path, *named)
    assert ended.value.code == Exit.USAGE
    missing = " and ".join(name for name in ROOTS if name not in named)
    line = f"ticket-agent: [peft] names {' and '.join(named)} but not {missing}; name all three or none\n"
    assert capsys.readouterr().err == line
