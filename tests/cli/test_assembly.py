"""How the parts of a daemon are put together."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ticket_agent.agent.events import EventLog
from ticket_agent.cli.assembly import now_ms, opened_agent, opened_store
from ticket_agent.config import AgentConfig
from ticket_agent.exits import Exit
from ticket_agent.journal.errors import JournalPoisonedError
from ticket_agent.journal.store import JournalStore

if TYPE_CHECKING:
    from pathlib import Path


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
            for provider in providers.values():
                assert provider._dispatcher.origin().epoch == 7  # type: ignore[attr-defined]
