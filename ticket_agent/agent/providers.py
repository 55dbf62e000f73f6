"""Which provider performs which action, and what happens to an action that nobody performs here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ticket_agent.agent.keys import RELAY_FAMILY
from ticket_agent.journal.outcome import (
    Outcome,
    Plan,
    PlanRefusedError,
    PlanWaitsError,
    Provider,
    Rejected,
    Unknown,
    Unobserved,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.journal.record import Record
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["NotEnabled", "ProviderTable", "RelayedElsewhere", "Tended"]


@runtime_checkable
class Tended(Protocol):
    """A provider whose effects go on by themselves and end with their authority."""

    def tend(self) -> None:
        """End what is not allowed any more. Never raises, never waits long."""


class NotEnabled:
    """Stands in for an action without a provider: refuses it before anything is dispatched."""

    def __init__(self, action: str, reason: str) -> None:
        self._refusal = f"{action} is not enabled on this agent ({reason})"

    def lane(self, request: HostTicketSpec) -> str:
        """A lane of its own: such a ticket holds nobody up."""
        return f"not-enabled/{request.journal_key}"

    def plan(self, request: HostTicketSpec) -> Plan:  # noqa: ARG002 - the refusal does not depend on it
        """Refuse for good."""
        raise PlanRefusedError(self._refusal)

    def execute(self, plan: Plan) -> Outcome:  # noqa: ARG002 - never planned, so never performed
        """Refuse for good."""
        return Rejected(self._refusal)

    def observe(self, plan: Plan) -> Outcome:  # noqa: ARG002 - no plan of ours to look at
        """Tell nothing: an agent that had the provider may have dispatched it before this one was started."""
        return Unknown(f"cannot be observed: {self._refusal}")


class RelayedElsewhere:
    """Stands in for what another hive performs: nothing is performed or observed here."""

    def lane(self, request: HostTicketSpec) -> str:
        """One lane for each target: tickets arrive there in the order in which they were taken."""
        return f"relay/{request.target_hive}"

    def plan(self, request: HostTicketSpec) -> Plan:
        """Wait for an agent that relays."""
        raise PlanWaitsError(f"it is for {request.target_hive}: `ticket-agent run --relay` sends it there")

    def execute(self, plan: Plan) -> Outcome:  # noqa: ARG002 - never planned, so never performed
        """Perform nothing."""
        return Unknown("another hive performs it")

    def observe(self, plan: Plan) -> Outcome:
        """Tell nothing: only an agent that relays asks the peer."""
        return Unobserved(
            f"the peer {plan.intent.get('peer', '?')} is asked by `ticket-agent run --relay` only"
        )


class ProviderTable:
    """Providers by version and action, narrowed by the hive's action allow-list."""

    def __init__(
        self,
        *,
        v1: Mapping[str, Provider[HostTicketSpec]],
        v2: Mapping[str, Provider[HostTicketSpec]],
        allowlist: frozenset[str] | None,
    ) -> None:
        self._by_version = {1: dict(v1), 2: dict(v2)}
        self._allowlist = allowlist
        self._tended = [
            provider
            for providers in self._by_version.values()
            for provider in providers.values()
            if isinstance(provider, Tended)
        ]

    def tend(self) -> None:
        """Let providers look after what runs for long, also while the hive cannot be reached."""
        for provider in self._tended:
            provider.tend()

    def provider_of(self, record: Record, spec: HostTicketSpec) -> Provider[HostTicketSpec]:
        """Who performs an operation of the journal."""
        return RelayedElsewhere() if record.family == RELAY_FAMILY else self.provider_for(spec)

    def provider_for(self, spec: HostTicketSpec) -> Provider[HostTicketSpec]:
        """The provider of a ticket's action, or one that refuses it with the reason."""
        if self._allowlist is not None and spec.action not in self._allowlist:
            return NotEnabled(spec.action, "the hive's action_allowlist does not name it")
        provider = self._by_version[spec.version].get(spec.action)
        if provider is None:
            return NotEnabled(
                spec.action, f"version-{spec.version} tickets of this kind have no provider here"
            )
        return provider
