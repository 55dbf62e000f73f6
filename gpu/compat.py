"""The version-1 actions ``gpu.lease.*``, for hives from before Worker receipts.

A version-1 grant spawns a Worker with a reservation and a release kills it; only the renewal goes to the
lease ledger. No record of the hive names the ticket behind such an effect. An acknowledged write is therefore
taken as done, a lost answer stays uncertain, and an observation can at best prove that nothing was applied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from ticket_agent.gpu.compat_args import (
    ACTIVE,
    RELEASED,
    CompatArgsError,
    active_reservation,
    gpu_of,
    kill_line,
    newest_of,
    parse_reservations,
    renew_line,
    spawn_line,
    worker_of,
)
from ticket_agent.gpu.dispatch import Dispatcher
from ticket_agent.gpu.lease import LEASE_CONTROL
from ticket_agent.gpu.lease_evidence import (
    LeaseReader,
    PlanFormatError,
    origin_from_json,
    required_text,
    unseen,
)
from ticket_agent.journal.outcome import (
    Committed,
    Outcome,
    Plan,
    PlanRefusedError,
    Provider,
    Rejected,
    Unknown,
)
from ticket_agent.protocol.namespace import Acked, HiveError, HiveRefusedError, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ticket_agent.journal.outcome import JsonValue
    from ticket_agent.protocol.namespace import Namespace
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["QUEEN_CONTROL", "CompatGrant", "CompatRelease", "CompatRenew", "compat_lease_providers"]

QUEEN_CONTROL: Final = "/queen/ctl"
"""Where Workers are spawned and killed."""


def compat_lease_providers(
    namespace: Namespace,
    *,
    instance: str | None = None,
    single_owner: bool = True,
    epoch: Callable[[], int] | None = None,
) -> dict[str, Provider[HostTicketSpec]]:
    """The version-1 lease actions of one hive, by action name; arguments as for the version-2 ones."""
    dispatcher = Dispatcher(
        namespace,
        instance=uuid4().hex if instance is None else instance,
        single_owner=single_owner,
        epoch=epoch,
    )
    return {kind.action: kind(namespace, dispatcher) for kind in (CompatGrant, CompatRenew, CompatRelease)}


class _CompatAction(ABC):
    """What the three actions share: one planned line, and a log that shows whether anything changed."""

    action: str
    lane_prefix = "gpu-v1"

    def __init__(self, namespace: Namespace, dispatcher: Dispatcher) -> None:
        self._namespace: Final = namespace
        self._dispatcher: Final = dispatcher

    def lane(self, request: HostTicketSpec) -> str:
        """One lane per resource; a ticket that names none has a lane of its own, to be refused in."""
        try:
            return f"{self.lane_prefix}/{self._resource(request)}"
        except CompatArgsError:
            return f"gpu-v1-ticket/{request.id}"

    def plan(self, request: HostTicketSpec) -> Plan:
        """Check the arguments, keep the log as it is and fix the line to write. Reads only.

        Raises:
            PlanRefusedError: the arguments or the hive's state exclude the action.
            HiveError: the hive could not be read.
        """
        try:
            intent = self._intend(request)
        except CompatArgsError as error:
            raise PlanRefusedError(str(error)) from error
        log = self._log(required_text(intent, "resource"))
        origin = self._dispatcher.origin()
        before: dict[str, JsonValue] = {
            "instance": origin.instance,
            "session": origin.session,
            "epoch": origin.epoch,
            "log": None if log is None else list(log),
        }
        return Plan(before=before, intent=intent)

    def execute(self, plan: Plan) -> Outcome:
        """Append the planned line, once; an acknowledgement is all the proof there is."""
        path, line = required_text(plan.intent, "path"), required_text(plan.intent, "line")
        says = required_text(plan.intent, "says")
        if path not in {QUEEN_CONTROL, LEASE_CONTROL}:
            raise PlanFormatError(f"the plan's path is not one of {self.action}; nothing is written")
        try:
            session = origin_from_json(plan.before).session
            answer = self._dispatcher.append(path, line, session=session)
        except HiveError as error:
            return Rejected(f"{says} not applied: nothing was sent: {error}")
        if isinstance(answer, Refused):
            return Rejected(f"{says} refused by the hive: {answer.refusal.text}")
        if not isinstance(answer, Acked):
            return Unknown(f"{says} the hive's answer was lost: {answer.why}")
        return Committed(f"{says} {self._status(plan.intent)}")

    def observe(self, plan: Plan) -> Outcome:
        """Tell at best that nothing was applied. Reads only; a hive that cannot be read means Unknown."""
        try:
            return self._judge(plan)
        except (HiveError, PlanFormatError) as error:
            return unseen(self.action, error)

    def _judge(self, plan: Plan) -> Outcome:
        says, origin = required_text(plan.intent, "says"), origin_from_json(plan.before)
        path, line = required_text(plan.intent, "path"), required_text(plan.intent, "line")
        log = self._log(required_text(plan.intent, "resource"))
        dead = self._dispatcher.writer_dead(origin, path, line, session=self._namespace.session)
        acknowledged = self._dispatcher.acknowledged(origin, path, line)
        unchanged = log is not None and log == plan.before.get("log")
        telling = log is not None and self._would_show(plan.intent, log)
        # A reboot empties the log, so that an empty one is unchanged only within a known epoch.
        same_life = self._dispatcher.same_epoch(origin) and (origin.epoch is not None or bool(log))
        if dead and unchanged and telling and same_life and not acknowledged:
            return Rejected(f"{says} not applied: the log is unchanged and the connection is gone")
        return Unknown(f"{says} nothing in the hive ties an effect to this ticket")

    @abstractmethod
    def _resource(self, request: HostTicketSpec) -> str:
        """Name of what the request is about."""

    @abstractmethod
    def _intend(self, request: HostTicketSpec) -> dict[str, JsonValue]:
        """The planned line, its path and the words of its result."""

    @abstractmethod
    def _log(self, resource: str) -> list[str] | None:
        """The log that would show a change; None where there is none to read."""

    @abstractmethod
    def _status(self, intent: Mapping[str, JsonValue]) -> str:
        """The last word of the result's message."""

    def _would_show(self, intent: Mapping[str, JsonValue], log: list[str]) -> bool:  # noqa: ARG002
        """Whether the effect, had it happened, would have changed this log."""
        return True


class _ReservationAction(_CompatAction):
    """An action on a GPU's reservations; ``/gpu/<id>/lease`` is its log."""

    def _resource(self, request: HostTicketSpec) -> str:
        return gpu_of(request)

    def _log(self, resource: str) -> list[str] | None:
        try:
            lines = self._namespace.tail(f"/gpu/{resource}/lease")
        except HiveRefusedError:
            return None
        return [line for line in lines if line.strip()]


class CompatGrant(_ReservationAction):
    """Version-1 ``gpu.lease.grant``: spawn a Worker with a reservation on a GPU."""

    action = "gpu.lease.grant"

    def _intend(self, request: HostTicketSpec) -> dict[str, JsonValue]:
        gpu_id = gpu_of(request)
        line, terms = spawn_line(request, gpu_id)
        says = f"gpu lease grant {terms}"
        return {"path": QUEEN_CONTROL, "line": line, "resource": gpu_id, "says": says}

    def _status(self, intent: Mapping[str, JsonValue]) -> str:
        gpu_id = required_text(intent, "resource")
        try:
            log = self._log(gpu_id) or []
        except HiveError:
            return "status=queued"
        newest = parse_reservations(log[-1:], gpu_id)
        return "status=verified" if newest and newest[0].state == ACTIVE else "status=queued"


class CompatRelease(_ReservationAction):
    """Version-1 ``gpu.lease.release``: kill the Worker that holds a reservation."""

    action = "gpu.lease.release"

    def _intend(self, request: HostTicketSpec) -> dict[str, JsonValue]:
        gpu_id = gpu_of(request)
        worker_id = worker_of(request) or self._holder(request, gpu_id)
        return {
            "path": QUEEN_CONTROL,
            "line": kill_line(worker_id),
            "resource": gpu_id,
            "worker_id": worker_id,
            "says": f"gpu lease release gpu_id={gpu_id} worker_id={worker_id}",
        }

    def _holder(self, request: HostTicketSpec, gpu_id: str) -> str:
        held = active_reservation(parse_reservations(self._log(gpu_id) or [], gpu_id))
        if held is None:
            raise PlanRefusedError(f"{request.action}: GPU {gpu_id} has no active reservation to release")
        return held.worker_id

    def _would_show(self, intent: Mapping[str, JsonValue], log: list[str]) -> bool:
        # This log records ends of reservations only; the kill of any other Worker leaves it as it is.
        gpu_id, worker_id = required_text(intent, "resource"), required_text(intent, "worker_id")
        newest = newest_of(parse_reservations(log, gpu_id), worker_id)
        return newest is not None and newest.state == ACTIVE

    def _status(self, intent: Mapping[str, JsonValue]) -> str:
        gpu_id, worker_id = required_text(intent, "resource"), required_text(intent, "worker_id")
        try:
            newest = newest_of(parse_reservations(self._log(gpu_id) or [], gpu_id), worker_id)
        except HiveError:
            return "status=queued"
        return "status=released" if newest is not None and newest.state == RELEASED else "status=queued"


class CompatRenew(_CompatAction):
    """Version-1 ``gpu.lease.renew``: an untagged renewal in the lease ledger; the record there is its log."""

    action = "gpu.lease.renew"
    # The lane that version-2 actions on the same lease run in.
    lane_prefix = "gpu-lease"

    def _resource(self, request: HostTicketSpec) -> str:
        return renew_line(request)[1]

    def _intend(self, request: HostTicketSpec) -> dict[str, JsonValue]:
        line, lease_id, ttl_s = renew_line(request)
        says = f"gpu lease renew id={lease_id} ttl_s={ttl_s}"
        return {"path": LEASE_CONTROL, "line": line, "resource": lease_id, "says": says}

    def _log(self, resource: str) -> list[str] | None:
        record = LeaseReader(self._namespace).by_id(resource)
        return [] if record is None else [record.encode()]

    def _status(self, intent: Mapping[str, JsonValue]) -> str:  # noqa: ARG002 - nothing to look up
        return "queued"
