"""What the hive shows about a lease, as values: the before-image of a plan, the facts of an observation.

Two nodes are bounded windows and are treated as such. ``/proc/lease/active`` is never read, since it shows
only the first few leases. ``/proc/lease/preemptions`` shows the oldest retained records that fit 256 bytes,
so a record may be missing from it, or appear in it long after it was made; ``/proc/lease/summary`` counts all
preemptions since boot and tells which of the visible ones are new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeVar

from ticket_agent.gpu.dispatch import Origin
from ticket_agent.journal.outcome import TAKEN_OVER, Unknown, Unobserved
from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.lease import (
    RESERVED_GPU_NAMES,
    LeaseRecord,
    LeaseSummary,
    PreemptionRecord,
    parse_lease_record,
    parse_lease_summary,
    parse_preemption_record,
)
from ticket_agent.protocol.namespace import (
    HiveBusyError,
    HiveError,
    HiveRefusedError,
    HiveUnreachableError,
    HiveViolationError,
    RefusalKind,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ticket_agent.journal.outcome import JsonValue
    from ticket_agent.protocol.namespace import Namespace

__all__ = [
    "BeforeImage",
    "LeaseFacts",
    "LeaseReader",
    "PlanFormatError",
    "optional_integer",
    "optional_text",
    "origin_from_json",
    "required_text",
    "unseen",
]

T = TypeVar("T")

GPU_ROOT: Final = "/gpu"
BY_ID: Final = "/proc/lease/by-id"
PREEMPTIONS: Final = "/proc/lease/preemptions"
SUMMARY: Final = "/proc/lease/summary"


class PlanFormatError(Exception):
    """A journaled plan lacks a member or holds one of another type; it was not written by this provider."""

    code = "plan-format"


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeImage:
    """What a plan saw before its write.

    Attributes:
        origin: process, session and hive epoch of the plan.
        by_id: the active lease of the operation's id, or None.
        preemptions_total: preemptions since the hive's boot, None if the hive does not show them.
        window_empty: whether the window of preemption records was readable and showed none at all.
        preemptions: visible preemption records of the id, as printed; for the reader of a journal.
        taken_over: whose operation this was before; nothing else here was seen then. None for our own plans.
    """

    origin: Origin
    by_id: LeaseRecord | None
    preemptions_total: int | None = None
    window_empty: bool = False
    preemptions: tuple[str, ...] = ()
    taken_over: str | None = None

    def to_json(self) -> dict[str, JsonValue]:
        """The members of ``Plan.before``."""
        taken_over: dict[str, JsonValue] = {} if self.taken_over is None else {TAKEN_OVER: self.taken_over}
        return taken_over | {
            "instance": self.origin.instance,
            "session": self.origin.session,
            "epoch": self.origin.epoch,
            "by_id": None if self.by_id is None else self.by_id.encode(),
            "preemptions_total": self.preemptions_total,
            "preemptions_empty": self.window_empty,
            "preemptions": list(self.preemptions),
        }

    @classmethod
    def from_json(cls, before: Mapping[str, JsonValue]) -> Self:
        """Read ``Plan.before`` back.

        Raises:
            PlanFormatError: it is not such an object.
        """
        line = optional_text(before, "by_id")
        try:
            by_id = None if line is None else parse_lease_record(line)
        except ProtocolError as error:
            raise PlanFormatError(f"the plan's before.by_id is no lease record: {error}") from error
        window = before.get("preemptions")
        return cls(
            origin=origin_from_json(before),
            by_id=by_id,
            preemptions_total=optional_integer(before, "preemptions_total"),
            window_empty=before.get("preemptions_empty") is True,
            preemptions=tuple(str(line) for line in window) if isinstance(window, list) else (),
            taken_over=required_text(before, TAKEN_OVER) if TAKEN_OVER in before else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseFacts:
    """What an observation saw.

    Attributes:
        by_id: the active lease of the operation's id, or None.
        preemptions: the visible window of preemption records, oldest first.
        summary: the counters, None if the hive does not show them or they moved while the window was read.
        writer_dead: the connection that carried the write is proven dead, before any of this was read.
        acknowledged: this process saw the hive accept the write.
        same_epoch: the hive has not rebooted since the plan.
    """

    by_id: LeaseRecord | None
    preemptions: tuple[PreemptionRecord, ...] = ()
    summary: LeaseSummary | None = None
    writer_dead: bool = False
    acknowledged: bool = False
    same_epoch: bool = True


class LeaseReader:
    """Reads lease nodes; everything that is not a well-formed answer raises."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def gpus(self) -> frozenset[str]:
        """The GPU ids of the root-owned inventory, without the names below ``/gpu`` that are no GPU."""
        return frozenset(self._namespace.ls(GPU_ROOT)) - RESERVED_GPU_NAMES

    def by_id(self, lease_id: str) -> LeaseRecord | None:
        """The active lease of an id; hives answer for an id without one with nothing or with not-found.

        Raises:
            HiveError: no answer, several records, or a record of another id.
        """
        path = f"{BY_ID}/{lease_id}"
        try:
            lines = _text_lines(self._namespace.read(path))
        except HiveRefusedError as refused:
            if refused.absent:
                return None
            raise
        if not lines:
            return None
        if len(lines) > 1:
            raise HiveViolationError(f"{path} shows multiple records; check the hive")
        record = _parsed(parse_lease_record, lines[0], path)
        if record.id != lease_id:
            raise HiveViolationError(f"{path} shows a record of another id; check the hive")
        return record

    def preemptions(self) -> tuple[PreemptionRecord, ...] | None:
        """The visible preemption records, oldest first; None if the hive does not show the node.

        Raises:
            HiveError: no answer, or a malformed record.
        """
        try:
            lines = _text_lines(self._namespace.read(PREEMPTIONS))
        except HiveRefusedError:
            return None
        return tuple(_parsed(parse_preemption_record, line, PREEMPTIONS) for line in lines)

    def summary(self) -> LeaseSummary | None:
        """The ledger's counters; None if the hive does not show them.

        Raises:
            HiveError: no answer, or a malformed one.
        """
        try:
            lines = _text_lines(self._namespace.read(SUMMARY))
        except HiveRefusedError:
            return None
        if len(lines) != 1:
            raise HiveViolationError(f"{SUMMARY} shows {len(lines)} lines; check the hive")
        return _parsed(parse_lease_summary, lines[0], SUMMARY)

    def window(self) -> tuple[tuple[PreemptionRecord, ...] | None, LeaseSummary | None]:
        """The visible preemption records with the counters that belong to them.

        The counters are None if the hive does not show them, or if they moved while the window was read.
        """
        first = self.summary()
        records = self.preemptions()
        last = self.summary()
        return records, last if first == last else None


def required_text(members: Mapping[str, JsonValue], name: str) -> str:
    """A member that is a text.

    Raises:
        PlanFormatError: it is missing or something else.
    """
    value = optional_text(members, name)
    if value is None:
        raise PlanFormatError(f"the plan's {name} is missing or no text")
    return value


def unseen(action: str, error: HiveError | PlanFormatError) -> Unknown:
    """What an observation that failed tells: nothing, for now or for good."""
    detail = f"{action} could not be observed: {error}"
    passes = isinstance(error, HiveUnreachableError | HiveBusyError) or (
        isinstance(error, HiveRefusedError) and error.refusal.kind in {RefusalKind.BUSY, RefusalKind.LIMIT}
    )
    return Unobserved(detail) if passes else Unknown(detail)


def origin_from_json(before: Mapping[str, JsonValue]) -> Origin:
    """Read a plan's origin back.

    Raises:
        PlanFormatError: a member is missing or of another type.
    """
    session = optional_integer(before, "session")
    if session is None:
        raise PlanFormatError("the plan's session is missing or no integer")
    return Origin(
        instance=required_text(before, "instance"),
        session=session,
        epoch=optional_integer(before, "epoch"),
    )


def optional_text(members: Mapping[str, JsonValue], name: str) -> str | None:
    """A member that is a text or null.

    Raises:
        PlanFormatError: it is missing or something else.
    """
    value = members.get(name, ())
    if value is None or isinstance(value, str):
        return value
    raise PlanFormatError(f"the plan's {name} is missing or no text")


def optional_integer(members: Mapping[str, JsonValue], name: str) -> int | None:
    """A member that is an integer or null.

    Raises:
        PlanFormatError: it is missing or something else.
    """
    value = members.get(name, ())
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise PlanFormatError(f"the plan's {name} is missing or no integer")


def _text_lines(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if line.strip()]


def _parsed(parse: Callable[[str], T], line: str, path: str) -> T:
    try:
        return parse(line)
    except ProtocolError as error:
        raise HiveViolationError(f"{path} shows a malformed record: {error}") from error
