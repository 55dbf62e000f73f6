"""``peft.release``: one ticket that brings an adapter to where it is served, or leaves all as it was.

The agent's journal has one record for the ticket, the private root a journal of its own for the phases.
``plan`` only looks. ``execute`` claims the root, and from there ``observe`` drives the release on: it never
begins the ticket's effect again, and each phase is begun once by the rules of its own journal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ticket_agent.journal.errors import JournalPoisonedError
from ticket_agent.journal.outcome import (
    Outcome,
    Plan,
    PlanRefusedError,
    PlanWaitsError,
    Rejected,
    Underway,
    Unknown,
    Unobserved,
)
from ticket_agent.peft.action import PASSING
from ticket_agent.peft.errors import AbsentError, PeftError
from ticket_agent.peft.planned import text
from ticket_agent.peft.release.beginning import (
    Ticket,
    abandon,
    begin,
    begun_of,
    check_recovery,
    check_release,
)
from ticket_agent.peft.release.driver import POLL_S, ReleaseDriver
from ticket_agent.peft.release.layout import OperationFiles
from ticket_agent.peft.release.phase_machine import Allowed
from ticket_agent.peft.release.release_story import read_begun, read_end
from ticket_agent.peft.release.request import parse_request
from ticket_agent.peft.release.root_errors import RootBlockedError, RootOwnedError, RootPoisonedError
from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.spec import parse_spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.peft.release.layout import Begun
    from ticket_agent.peft.release.release_host import ReleaseHost
    from ticket_agent.protocol.spec import HostTicketSpec

    Authority = Callable[[HostTicketSpec], tuple[Allowed, str]]
    """Whether the receipt Worker of a ticket is READY for it, and what is known about that, in words."""

__all__ = ["RELEASE_LANE", "ReleaseProvider"]

RELEASE_LANE: Final = "peft-release"
"""One release at a time."""
RECOVERY_LANE: Final = "peft-release/recovery"
"""A recovery must not wait for the ticket of the release that it recovers."""
_WAITS: Final = (*PASSING, RootOwnedError)


@dataclass(slots=True)
class _Live:
    """A release that is being driven by this process."""

    driver: ReleaseDriver
    ticket: Ticket
    proven_at: float
    ambiguous: bool = False


@dataclass(slots=True)
class ReleaseProvider:
    """The provider of ``peft.release``.

    Attributes:
        host: opens the private root and what belongs to it, at the first use.
        authority: asks whether a ticket still has its authority.
        clock: in Unix milliseconds.
        monotonic: in seconds.
        begins: False for a replay, which begins no phase, and for commands that only look.
    """

    host: ReleaseHost
    authority: Authority
    clock: Callable[[], int]
    monotonic: Callable[[], float]
    begins: bool = True
    _live: dict[str, _Live] = field(default_factory=dict)

    def lane(self, request: HostTicketSpec) -> str:
        """One lane for releases, one for recoveries."""
        try:
            return RECOVERY_LANE if Ticket.of(request).recovery_only else RELEASE_LANE
        except (ProtocolError, PeftError):
            return RELEASE_LANE

    # -- planning -----------------------------------------------------------------------------------------

    def plan(self, request: HostTicketSpec) -> Plan:
        """Look at everything that could be refused later. Changes nothing.

        Raises:
            PlanRefusedError: the release can never be performed as it was asked for.
            PlanWaitsError: it cannot begin now: another release is not finished, a lock is held, or the host
                is not in order.
        """
        what = "peft.release"
        try:
            ticket = Ticket.of(request)
            what = f"peft.release {ticket.operation_id}"
            self._require_quiet(ticket)
            check = check_recovery if ticket.recovery_only else check_release
            accepted = check(self.host, ticket, now_unix_ms=self.clock())
        except _WAITS as error:
            raise PlanWaitsError(f"{what}: {error}") from error
        except (PeftError, ProtocolError) as error:
            raise PlanRefusedError(f"{what}: {error}") from error
        return Plan(
            before={"accepted": dict(accepted.members())},
            intent={
                "action": "peft.release",
                "operation_id": ticket.operation_id,
                "model": ticket.model_id,
                "request_sha256": ticket.request_sha256,
                "recovery_only": ticket.recovery_only,
                "ticket": request.encode().decode("utf-8"),
            },
        )

    def _require_quiet(self, ticket: Ticket) -> None:
        live = self._live.get(ticket.operation_id)
        if ticket.recovery_only and live is not None and not live.ambiguous:
            raise PlanWaitsError(
                f"peft.release {ticket.operation_id}: it still runs under ticket {live.ticket.ticket_id};"
                " a recovery begins when that has ended"
            )

    # -- driving ------------------------------------------------------------------------------------------

    def execute(self, plan: Plan) -> Outcome:
        """Claim the root and begin; the rest is driven by :meth:`observe`."""
        return self.observe(plan)

    def observe(self, plan: Plan) -> Outcome:
        """Drive the release on, and tell how it stands.

        Raises:
            JournalPoisonedError: a durable write failed in the private root; the process must end.
        """
        try:
            spec = parse_spec(text(plan.intent, "ticket").encode("utf-8"), source="admitted")
            ticket = Ticket.of(spec)
        except (PeftError, ProtocolError) as error:
            return Unknown(f"peft.release: the plan in the record is not one of this action: {error}")
        if not self.begins:
            return self._told(ticket)
        try:
            return self._advance(ticket, spec)
        except RootPoisonedError as error:
            raise JournalPoisonedError(str(error)) from error
        except _WAITS as error:
            return self._waiting(ticket, f"peft.release {ticket.operation_id} waits: {error}")
        except PeftError as error:
            return Unknown(f"peft.release {ticket.operation_id}: {error}")

    def _advance(self, ticket: Ticket, spec: HostTicketSpec) -> Outcome:
        allowed, why = self._allowed(spec)
        key = ticket.live_key
        live = self._live.get(key)
        if live is None:
            begun = begun_of(self.host.root, ticket)
            if begun is None:
                if allowed is not Allowed.HELD:
                    return self._not_begun(ticket, allowed, why)
                try:
                    begun = begin(self.host, ticket, now_unix_ms=self.clock())
                except RootBlockedError as error:
                    return Rejected(f"peft.release {ticket.operation_id} not begun: {error}")
            live = _Live(self._driver(ticket, begun), ticket, self.monotonic())
            self._live[key] = live
        if allowed is Allowed.HELD:
            live.proven_at = self.monotonic()
        else:
            self._stop_unproven(live)
        outcome = live.driver.advance(allowed, why)
        live.ambiguous = isinstance(outcome, Unknown)
        if not isinstance(outcome, Underway | Unknown):
            del self._live[key]
        return outcome

    def _not_begun(self, ticket: Ticket, allowed: Allowed, why: str) -> Outcome:
        if allowed is Allowed.LOST:
            abandon(self.host.root, ticket)
            return Rejected(f"peft.release {ticket.operation_id} not begun: {why}")
        return Underway(f"peft.release {ticket.operation_id} is not begun yet: {why}", poll_s=POLL_S)

    def _driver(self, ticket: Ticket, begun: Begun) -> ReleaseDriver:
        host = self.host
        request = parse_request(host.root.objects.load(ticket.request_sha256))
        files = ticket.files(host.config.root)
        original = None
        if ticket.recovery_only:
            first = OperationFiles(root=host.config.root, operation_id=ticket.operation_id)
            with host.root.operation(ticket.operation_id) as directory:
                told = read_begun(directory)
            if told is None:
                raise AbsentError(f"release {ticket.operation_id} never began; there is nothing to recover")
            original = (first, told)
        return ReleaseDriver(
            root=host.root,
            journal=host.journal,
            files=files,
            begun=begun,
            request=request,
            starter=host.starter(files, request, begun),
            conclude=host.conclude,
            clock=self.clock,
            original=original,
        )

    # -- authority ----------------------------------------------------------------------------------------

    def _allowed(self, spec: HostTicketSpec) -> tuple[Allowed, str]:
        if spec.expires_unix_ms is None or self.clock() >= spec.expires_unix_ms:
            return Allowed.LOST, "the ticket has expired"
        return self.authority(spec)

    def tend(self) -> None:
        """End what runs without being allowed, also while the hive cannot be asked. Never raises."""
        for live in self._live.values():
            self._stop_unproven(live)

    def _stop_unproven(self, live: _Live) -> None:
        expired = self.clock() >= live.ticket.expires_unix_ms
        overdue = self.monotonic() - live.proven_at > self.host.config.authority_grace_s
        if expired or overdue:
            try:
                live.driver.stop_running()
            except PeftError:
                return  # it is tried again with the next look

    # -- only looking ---------------------------------------------------------------------------------------

    def _told(self, ticket: Ticket) -> Outcome:
        """What the files tell; nothing is begun, stopped or written."""
        try:
            with self.host.reading() as root, root.operation(ticket.operation_id) as directory:
                if ticket.recovery_only:
                    with directory.open_dir(ticket.files(self.host.config.root).path.name) as attempt:
                        ended = read_end(attempt)
                else:
                    ended = read_end(directory)
        except PeftError as error:
            return Unobserved(f"peft.release {ticket.operation_id} cannot be observed: {error}")
        if ended is None:
            text_ = f"peft.release {ticket.operation_id} is not ended; the agent goes on with it"
            return Underway(text_, poll_s=POLL_S)
        return Underway(
            f"peft.release {ticket.operation_id} is {ended.state}; the agent concludes it", poll_s=POLL_S
        )

    def _waiting(self, ticket: Ticket, why: str) -> Outcome:
        if self.clock() >= ticket.expires_unix_ms and ticket.live_key not in self._live:
            # The host is not in order and nothing of it runs under our eyes: the ticket may end.
            return Unobserved(why)
        return Underway(why, poll_s=POLL_S)
