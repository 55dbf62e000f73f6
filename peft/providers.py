"""The providers of the version-2 PEFT actions, by action."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ticket_agent.peft.activation import ActivateProvider, RollbackProvider

if TYPE_CHECKING:
    from ticket_agent.journal.outcome import Provider
    from ticket_agent.peft.settings import PeftRoots
    from ticket_agent.protocol.namespace import Namespace
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["peft_providers"]


def peft_providers(roots: PeftRoots, namespace: Namespace) -> dict[str, Provider[HostTicketSpec]]:
    """Every action on one host's roots; ``namespace`` is the hive that exports are taken from."""
    return {
        ActivateProvider.action: ActivateProvider(roots),
        RollbackProvider.action: RollbackProvider(roots),
    }
