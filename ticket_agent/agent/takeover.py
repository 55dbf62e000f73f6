"""From the former agent's files to our records: each operation keeps its identity and its place.

* **Identity.** The name in the journal is the same in both programs (id length, id, idempotency key), and so
  is the admission sequence. The request is written in its canonical form, which is root's own; the former
  journal kept it parsed only.
* **Epochs.** The former agent did not tell the hive's lives apart, and its entries may be from several.
  What it had ended stands in epoch 1, what is open in epoch 2, the life in which it last worked. An admission
  that equals an ended entry in every member is that entry, whatever its epoch.
* **States** have the same names. ``executing`` stays ``executing`` and is only observed. A history is made up
  of the states that must have been passed; each carries the time and boot of the takeover, because the former
  journal holds none, and the former agent's name.
* **Plans.** The former journal holds none. A lease action gets the intent that follows from its request and
  says that there is no before-image; its observer then commits on the operation's own evidence or stays
  unknown. Any other action gets a plan that no observer understands, which is unknown too.
* **Results.** A staged path and line are kept byte for byte. Where the former agent had persisted an outcome
  but not staged it, the line is built from the outcome as that agent would have built it.
* **Fence.** Format 3 drops ended operations; what has no entry is covered by the fence alone
  (:mod:`ticket_agent.agent.predecessor`). In each lane it stands at the completion fence or the cursor,
  whichever is higher, since the former agent skips everything at or below either. Format 2 drops nothing and
  has no fence: what has no entry was never begun, unless the journal is empty and the cursor counts lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from ticket_agent.agent.foreign_journal import ForeignStateError
from ticket_agent.agent.keys import V2_FAMILY
from ticket_agent.agent.staging import RESULT_STATE
from ticket_agent.gpu.lease import taken_over_plan
from ticket_agent.journal.cursor import Cursor, EpochMark
from ticket_agent.journal.outcome import TAKEN_OVER, Plan, PlanRefusedError, bounded_detail
from ticket_agent.journal.record import HistoryEntry, ProviderResult, Record, StagedResult, Uncertainty
from ticket_agent.journal.takeover import Takeover
from ticket_agent.journal.transitions import State
from ticket_agent.protocol.members import DEFAULT_MAX_LINE_BYTES
from ticket_agent.protocol.paths import TicketPaths
from ticket_agent.protocol.result import build_result, stream_of_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ticket_agent.agent.foreign_journal import ForeignCursor, ForeignJournal, ForeignOperation
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = [
    "FORMER",
    "ForeignState",
    "Lane",
    "cursor_of",
    "history_of",
    "mount_of",
    "plan_of",
    "records_of",
    "takeover_of",
]

FORMER = "host-ticket-agent"
"""Name of the former agent, as the history of what it did carries it."""

ENDED_EPOCH = 1
OPEN_EPOCH = 2

_ORDER = (State.PREPARED, State.EXECUTING, State.PERSISTED, State.PUBLISHED, State.TERMINAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Journal and cursor of one of the former agent's lanes; it has one lane unless it was told otherwise."""

    journal: ForeignJournal
    cursor: ForeignCursor

    @property
    def through(self) -> int:
        """Sequence at or below which the former agent looks at nothing again; 0 where it went by lines."""
        if self.journal.completed_through is None:
            return self.cursor.last_sequence
        return max(self.journal.completed_through, self.cursor.last_sequence)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignState:
    """Everything that one former agent left.

    Raises:
        ForeignStateError: two lanes hold the same operation.
    """

    lanes: tuple[Lane, ...]

    def __post_init__(self) -> None:
        keys = [operation.key for operation in self.operations]
        if len(set(keys)) != len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ForeignStateError(f"operation {twice} stands in the journals of two lanes")

    @property
    def operations(self) -> list[ForeignOperation]:
        """Every entry of every lane, by sequence."""
        found = [operation for lane in self.lanes for operation in lane.journal.operations]
        return sorted(found, key=lambda operation: (operation.sequence, operation.key))


def takeover_of(state: ForeignState, *, directory: str, sha256: str, unix_ms: int, boot_id: str) -> Takeover:
    """What is remembered of the former agent beside its operations."""
    lanes = tuple([lane.through for lane in state.lanes])
    # Of a format that never forgets, only what is open is certainly of the hive's latest life.
    latest = [
        operation.sequence
        for lane in state.lanes
        for operation in lane.journal.operations
        if lane.journal.completed_through is not None or operation.state is not State.TERMINAL
    ]
    return Takeover(
        source=bounded_detail(f"{FORMER} at {directory}"),
        sha256=sha256,
        unix_ms=unix_ms,
        boot_id=boot_id,
        finished=False,
        epoch=OPEN_EPOCH,
        lanes=lanes,
        seen=max([*lanes, *latest]),
        lines=_lines_passed(state),
        callers=max(lane.cursor.raw_index for lane in state.lanes),
    )


def _lines_passed(state: ForeignState) -> int:
    """Admissions that the former agent had passed by counting, where no entry and no sequence is left."""
    if state.operations or any(lane.through for lane in state.lanes):
        return 0
    return max(lane.cursor.snapshot_index for lane in state.lanes)


def mount_of(state: ForeignState) -> str | None:
    """Where the former agent saw the hive's tree, by the paths that it staged; None if it staged none.

    Raises:
        ForeignStateError: it staged results below several mounts.
    """
    paths = {operation.path for operation in state.operations if operation.path is not None}
    mounts = sorted({path.rsplit("/tickets/", 1)[0] for path in paths})
    if len(mounts) > 1:
        raise ForeignStateError(f"results are staged below several mounts: {', '.join(mounts)}")
    return mounts[0] if mounts else None


def records_of(state: ForeignState, takeover: Takeover, *, mount: str) -> list[Record]:
    """Our record of every operation, in its present state."""
    return [_record(operation, takeover, TicketPaths(mount)) for operation in state.operations]


def cursor_of(state: ForeignState, takeover: Takeover) -> Cursor:
    """The cursor: both epochs, the former agent's completion fence, and no line consumed by us yet."""
    waiting = [entry.sequence for entry in state.operations if entry.state is not State.TERMINAL]
    completed = min([*takeover.lanes, *[sequence - 1 for sequence in waiting]])
    return Cursor(
        epoch=takeover.epoch,
        epochs=(
            EpochMark(
                number=ENDED_EPOCH,
                opened_unix_ms=takeover.unix_ms,
                evidence=f"ended by {takeover.source}, in one life of the hive or several",
            ),
            EpochMark(
                number=takeover.epoch,
                opened_unix_ms=takeover.unix_ms,
                evidence=f"taken over from {takeover.source}",
                completed_through=completed,
            ),
        ),
        consumed_sequence=takeover.seen,
    )


def plan_of(spec: HostTicketSpec, takeover: Takeover) -> Plan:
    """The plan of something that the former agent dispatched."""
    try:
        return taken_over_plan(spec, source=takeover.source, epoch=takeover.epoch)
    except PlanRefusedError:
        return Plan(
            before={TAKEN_OVER: takeover.source},
            intent={"action": spec.action, "id": spec.operation_id, "resource": spec.subject_ref},
        )


def history_of(states: Sequence[State], takeover: Takeover) -> tuple[HistoryEntry, ...]:
    """States that the former agent must have passed, all at the time of the takeover."""
    return tuple(
        HistoryEntry(state=state, unix_ms=takeover.unix_ms, boot_id=takeover.boot_id, agent=FORMER)
        for state in states
    )


def _record(operation: ForeignOperation, takeover: Takeover, paths: TicketPaths) -> Record:
    passed = [*takewhile(lambda state: state is not operation.state, _ORDER), operation.state]
    uncertain = None
    if operation.state is State.EXECUTING:
        uncertain = Uncertainty(
            since_unix_ms=takeover.unix_ms,
            detail=f"{FORMER} had begun it; it has not been observed since",
        )
    return Record(
        key=operation.key,
        family=V2_FAMILY,
        epoch=ENDED_EPOCH if operation.state is State.TERMINAL else takeover.epoch,
        sequence=operation.sequence,
        request=operation.spec.encode(),
        state=operation.state,
        history=history_of(passed, takeover),
        plan=plan_of(operation.spec, takeover) if State.EXECUTING in passed else None,
        uncertain=uncertain,
        result=_result(operation, takeover),
        staged=_staged(operation, paths),
    )


def _result(operation: ForeignOperation, takeover: Takeover) -> ProviderResult | None:
    found = operation.result
    if found is None:
        return None
    return ProviderResult(
        outcome=found.outcome,
        message=found.message,
        reconciled=found.reconciled,
        evidence={TAKEN_OVER: takeover.source},
    )


def _staged(operation: ForeignOperation, paths: TicketPaths) -> StagedResult | None:
    if operation.result is None:
        return None
    if operation.path is not None and operation.line is not None:
        return StagedResult(path=operation.path, line=operation.line)
    state = RESULT_STATE[operation.result.outcome]
    line = build_result(
        operation.spec,
        state=state,
        message=operation.result.message,
        max_line_bytes=DEFAULT_MAX_LINE_BYTES,
    )
    return StagedResult(path=paths.stream(stream_of_state(state)), line=line.decode())
