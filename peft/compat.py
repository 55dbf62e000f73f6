"""The version-1 PEFT actions, for hives from before Worker receipts.

They are the same actions; only how a ticket says what it wants differs. So every promise of version 2 holds,
and both versions work in the same lanes. A rollback of version 1 names no model; it is pinned to the one that
the registry named when it was planned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from ticket_agent.journal.outcome import Outcome, Plan, PlanRefusedError, Provider
from ticket_agent.peft.action import REGISTRY_LANE, export_lane
from ticket_agent.peft.activation import ActivateProvider, RollbackProvider
from ticket_agent.peft.compat_args import CompatArgsError, CompatRequest, translate
from ticket_agent.peft.errors import NameRefusedError
from ticket_agent.peft.export import ExportProvider
from ticket_agent.peft.import_plan import ImportRequest
from ticket_agent.peft.imports import ImportProvider

if TYPE_CHECKING:
    from ticket_agent.peft.settings import PeftRoots
    from ticket_agent.protocol.namespace import Namespace
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["compat_peft_providers"]


def compat_peft_providers(roots: PeftRoots, namespace: Namespace) -> dict[str, Provider[HostTicketSpec]]:
    """Every version-1 action on one host's roots, by action name."""
    export, imports = ExportProvider(roots, namespace), ImportProvider(roots)
    return {
        "peft.export": _CompatExport(export, roots),
        "peft.import": _CompatImport(imports, roots),
        ActivateProvider.action: _CompatSwitch(ActivateProvider(roots), roots),
        RollbackProvider.action: _CompatSwitch(RollbackProvider(roots), roots),
    }


class _CompatAction(ABC):
    """A version-2 action behind version-1 arguments."""

    def __init__(self, provider: Provider[HostTicketSpec], roots: PeftRoots) -> None:
        self._provider: Final = provider
        self._roots: Final = roots

    def lane(self, request: HostTicketSpec) -> str:
        """The lane of version 2; a ticket that cannot be carried out has one of its own, to be refused in."""
        try:
            return self._lane(translate(request, self._roots))
        except CompatArgsError:
            return f"peft-v1-ticket/{request.journal_key}"

    def plan(self, request: HostTicketSpec) -> Plan:
        """Plan what the arguments ask for; errors as in version 2."""
        try:
            asked = translate(request, self._roots)
        except CompatArgsError as error:
            raise PlanRefusedError(str(error)) from error
        return self._plan(asked, request.journal_key)

    def execute(self, plan: Plan) -> Outcome:
        """See version 2."""
        return self._provider.execute(plan)

    def observe(self, plan: Plan) -> Outcome:
        """See version 2."""
        return self._provider.observe(plan)

    def _lane(self, asked: CompatRequest) -> str:  # noqa: ARG002 - for the one that needs it
        return REGISTRY_LANE

    @abstractmethod
    def _plan(self, asked: CompatRequest, operation: str) -> Plan:
        """Plan it; ``operation`` is the identity of the request."""


class _CompatExport(_CompatAction):
    def __init__(self, provider: ExportProvider, roots: PeftRoots) -> None:
        super().__init__(provider, roots)
        self._export: Final = provider

    def _lane(self, asked: CompatRequest) -> str:
        return export_lane(asked.subject)

    def _plan(self, asked: CompatRequest, operation: str) -> Plan:
        return self._export.plan_for(asked.subject, operation=_family(operation))


class _CompatImport(_CompatAction):
    def __init__(self, provider: ImportProvider, roots: PeftRoots) -> None:
        super().__init__(provider, roots)
        self._import: Final = provider

    def _plan(self, asked: CompatRequest, operation: str) -> Plan:
        try:
            request = ImportRequest(
                operation=_family(operation),
                model=asked.subject or "",
                job=asked.job_id or "",
                adapter_ref=asked.adapter_ref or "",
            )
        except NameRefusedError as error:
            raise PlanRefusedError(f"{asked.action} cannot be performed: {error}") from error
        return self._import.plan_for(request)


class _CompatSwitch(_CompatAction):
    def __init__(self, provider: ActivateProvider | RollbackProvider, roots: PeftRoots) -> None:
        super().__init__(provider, roots)
        self._switch: Final = provider

    def _plan(self, asked: CompatRequest, operation: str) -> Plan:  # noqa: ARG002 - leaves nothing behind
        return self._switch.plan_for(asked.subject)


def _family(operation: str) -> str:
    """A name that no version-2 request of the same id and key has."""
    return f"v1/{operation}"
