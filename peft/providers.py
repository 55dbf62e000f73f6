"""The providers of the version-2 PEFT actions, by action."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ticket_agent.peft.activation import ActivateProvider, RollbackProvider
from ticket_agent.peft.export import ExportProvider
from ticket_agent.peft.imports import ImportProvider

if TYPE_CHECKING:
    from ticket_agent.journal.outcome import Provider
    from ticket_agent.peft.settings import PeftRoots
    from ticket_agent.protocol.namespace import Namespace
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["PEFT_ACTIONS", "peft_providers"]

PEFT_ACTIONS: Final = ("peft.export", "peft.import", "peft.activate", "peft.rollback")


def peft_providers(roots: PeftRoots, namespace: Namespace) -> dict[str, Provider[HostTicketSpec]]:
    """Every action on one host's roots; ``namespace`` is the hive that exports are taken from."""
    providers: tuple[Provider[HostTicketSpec], ...] = (
        ExportProvider(roots, namespace),
        ImportProvider(roots),
        ActivateProvider(roots),
        RollbackProvider(roots),
    )
    return dict(zip(PEFT_ACTIONS, providers, strict=True))
