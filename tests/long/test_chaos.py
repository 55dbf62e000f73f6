"""Tickets through every fault of a network, hive and agent restarting: one effect, one terminal result each.

A sample by default; ``TICKET_AGENT_CHAOS=all`` sends a thousand over each transport.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from chaos import Chaos
from fault_proxy import Strike
from told_lines import tell
from transports import TRANSPORTS

if TYPE_CHECKING:
    from pathlib import Path

    from transports import Transport

ALL = os.environ.get("TICKET_AGENT_CHAOS") == "all"
SAMPLE = 60


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda transport: transport.name)
def test_one_effect_and_one_result(transport: Transport, tmp_path: Path) -> None:
    tickets = 1000 if ALL else SAMPLE
    summary = Chaos(transport, tmp_path, tickets=tickets, seed=11).run()
    tell(*summary.lines())
    assert not summary.problems
    assert (summary.succeeded + summary.not_applied, summary.results) == (tickets, tickets)
    assert (summary.effects, summary.repeated) == (summary.succeeded, 0)
    assert summary.succeeded > tickets / 2
    assert summary.agent_kills > 0
    assert summary.hive_restarts > 0
    assert summary.hive_reboots > 0
    if ALL:
        assert set(Strike) <= set(summary.struck)
