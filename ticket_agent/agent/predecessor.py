"""The first look at a hive after a takeover: what of it the former agent had done with.

The former journal holds no offsets and, in format 3, no trace of most of what it had ended. So the first look
is judged by what there is: entries that equal retained lines, the fence, and the results that the hive shows.
Every retained line that the former agent had passed becomes a record that has ended, and from then on our own
records and cursor tell where reading stands. Nothing that it may have performed is performed again; a reboot
of the hive in between is told from evidence, and where there is none the range is held as a gap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from ticket_agent.agent.admission import Standing, Verdict
from ticket_agent.agent.keys import V1_FAMILY, V2_FAMILY
from ticket_agent.agent.staging import RESULT_STATE
from ticket_agent.agent.takeover import FORMER, history_of, plan_of
from ticket_agent.journal.outcome import bounded_detail
from ticket_agent.journal.record import ProviderResult, Record, StagedResult
from ticket_agent.journal.transitions import State
from ticket_agent.protocol.result import build_result, stream_of_state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ticket_agent.agent.streams import ResultStreams
    from ticket_agent.journal.store import JournalStore
    from ticket_agent.journal.takeover import Takeover
    from ticket_agent.protocol.paths import TicketPaths
    from ticket_agent.protocol.result import HostTicketResult
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["Meeting", "Predecessor", "lane_of", "meet"]

_LANE_DOMAIN = b"host-ticket-execution-lane/v1"
_OUTCOMES = {state: outcome for outcome, state in RESULT_STATE.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where the former agent stands in the admission log, and which lines, by index, it had passed."""

    standing: Standing
    passed: frozenset[int] = frozenset()


def lane_of(spec: HostTicketSpec, lanes: int) -> int:
    """Which of its lanes the former agent gave a ticket to (host tickets: lanes)."""
    if spec.action.startswith("gpu.lease."):
        family, key = "gpu-lease", spec.operation_id
    elif spec.action == "peft.export":
        family, key = "peft-export-operation", spec.operation_id
    else:
        family, key = "peft-mutating-subject", spec.subject_ref
    parts = (_LANE_DOMAIN, family.encode(), (key or "").encode())
    return int.from_bytes(sha256(b"\0".join(parts)).digest()[:8], "big") % lanes


def meet(
    takeover: Takeover,
    specs: Sequence[HostTicketSpec | None],
    entries: Mapping[int, AbstractSet[bytes]],
    *,
    base: int | None,
    shown: AbstractSet[int],
    dropped: bool,
) -> Meeting:
    """Judge the first look.

    Args:
        takeover: how far the former agent had come.
        specs: the retained lines, oldest first; None for a malformed one.
        entries: canonical requests of what was taken over, by admission sequence.
        base: offset of the first retained byte; None when the hive offers none and therefore drops nothing.
        shown: sequences of retained lines whose terminal result is visible.
        dropped: the hive's result logs have dropped lines since it booted.
    """
    equal = [
        index for index, spec in enumerate(specs) if spec and spec.encode() in entries.get(_number(spec), ())
    ]
    passed = {index for index, spec in enumerate(specs) if spec and _passed(takeover, spec, index)}
    passed -= set(equal)
    if equal:
        if len(takeover.lanes) == 1:
            # One lane went through the log in order, so what lies before an entry of it was passed.
            passed |= set(range(equal[-1])) - set(equal)
        last = specs[equal[-1]]
        evidence = f"admission {_number(last)} is still retained" if last else ""
        return Meeting(standing=_stands(Verdict.GREW, evidence), passed=frozenset(passed))
    if takeover.seen == 0:
        return _by_lines(takeover, len(specs), frozenset(passed), base)
    numbers = [_number(spec) for spec in specs if spec]
    rebooted = _reboot(takeover, specs, numbers, entries)
    if rebooted is not None:
        return Meeting(standing=_stands(Verdict.NEW_EPOCH, rebooted))
    if passed:
        return _by_results(specs, sorted(passed), shown=shown, dropped=dropped)
    return _by_numbers(takeover.seen, numbers, base, doubtful=None in specs)


def _number(spec: HostTicketSpec | None) -> int:
    return spec.admission_sequence or 0 if spec is not None else 0


def _passed(takeover: Takeover, spec: HostTicketSpec, index: int) -> bool:
    return index < takeover.lines or _number(spec) <= takeover.lanes[lane_of(spec, len(takeover.lanes))]


def _stands(verdict: Verdict, evidence: str) -> Standing:
    return Standing(verdict=verdict, start=0, evidence=evidence)


def _by_lines(takeover: Takeover, lines: int, passed: frozenset[int], base: int | None) -> Meeting:
    if lines < takeover.lines and not base:
        why = f"the log dropped nothing and has {lines} lines; the former agent had passed {takeover.lines}"
        return Meeting(standing=_stands(Verdict.NEW_EPOCH, why))
    first = _stands(Verdict.FIRST_CONTACT, "the former agent knew no admission of what is retained")
    return Meeting(standing=first, passed=passed)


def _reboot(
    takeover: Takeover,
    specs: Sequence[HostTicketSpec | None],
    numbers: Sequence[int],
    entries: Mapping[int, AbstractSet[bytes]],
) -> str | None:
    """Proof that the hive's log is of another life; only its oldest lines are ever dropped."""
    for number in numbers:
        if number in entries and number <= takeover.seen:
            return f"admission {number} is another one than the former agent's"
    if specs and specs[-1] is None:
        return None
    newest = numbers[-1] if numbers else 0
    if newest < takeover.seen:
        return f"the newest admission is {newest}, and the former agent had seen {takeover.seen}"
    return None


def _by_results(
    specs: Sequence[HostTicketSpec | None], passed: Sequence[int], *, shown: AbstractSet[int], dropped: bool
) -> Meeting:
    newest = _number(specs[passed[-1]])
    if newest in shown:
        standing = _stands(Verdict.GREW, f"the result of admission {newest} is visible")
        return Meeting(standing=standing, passed=frozenset(passed))
    gone = f"the former agent had ended admission {newest}, and its result is not visible"
    if not dropped:
        why = f"{gone} although nothing was dropped"
        return Meeting(standing=_stands(Verdict.NEW_EPOCH, why))
    standing = Standing(
        verdict=Verdict.POSSIBLE_LOSS,
        start=0,
        evidence=f"{gone}; either it was dropped or the hive has rebooted since",
        first=_number(specs[passed[0]]),
        through=newest,
        refetch=False,
    )
    return Meeting(standing=standing, passed=frozenset(passed))


def _by_numbers(seen: int, numbers: Sequence[int], base: int | None, *, doubtful: bool) -> Meeting:
    first = numbers[0] if numbers else seen + 2
    if first <= seen or (first == seen + 1 and (base or doubtful)):
        why = f"admission {first} follows on what the former agent had seen"
        return Meeting(standing=_stands(Verdict.GREW, why))
    if not base and not doubtful:
        why = f"the log dropped nothing, yet admission {seen} of the former agent is gone"
        return Meeting(standing=_stands(Verdict.NEW_EPOCH, why))
    standing = Standing(
        verdict=Verdict.POSSIBLE_LOSS,
        start=0,
        evidence=f"nothing shows what came after admission {seen}, the last that the former agent had seen",
        first=seen + 1,
        through=max(first - 1, seen + 1),
    )
    return Meeting(standing=standing)


class Predecessor:
    """What the intake asks about the former agent until the first look is accounted for."""

    def __init__(
        self, store: JournalStore, streams: ResultStreams, paths: TicketPaths, *, max_line_bytes: int
    ) -> None:
        self._store = store
        self._streams = streams
        self._paths = paths
        self._max_line_bytes = max_line_bytes

    @property
    def takeover(self) -> Takeover | None:
        """What is known of it; None when nothing was taken over."""
        return self._store.takeover

    def unmet(self, epoch: int) -> bool:
        """Whether the next look at the admission log is the first one of this life."""
        takeover = self._store.takeover
        return takeover is not None and takeover.epoch == epoch and not takeover.met

    def callers_unmet(self, epoch: int) -> bool:
        """Whether the next look at the callers' log is the first one of this life."""
        takeover = self._store.takeover
        return takeover is not None and takeover.epoch == epoch and not takeover.callers_met

    def ended_epoch(self, epoch: int) -> int | None:
        """Epoch of what the former agent had ended, if ``epoch`` is the life in which it last worked."""
        takeover = self._store.takeover
        return takeover.epoch - 1 if takeover is not None and takeover.epoch == epoch else None

    def meet(self, specs: Sequence[HostTicketSpec | None], *, base: int | None, dropped: bool) -> Meeting:
        """Judge the first look; the result streams must be those of its session."""
        takeover = self._required()
        entries: dict[int, set[bytes]] = {}
        for epoch in (takeover.epoch - 1, takeover.epoch):
            for record in self._store.between(V2_FAMILY, epoch, 0, 2**64):
                entries.setdefault(record.sequence, set()).add(record.request)
        shown = {_number(spec) for spec in specs if spec and self._visible(spec) is not None}
        return meet(takeover, specs, entries, base=base, shown=shown, dropped=dropped)

    def met(self) -> None:
        """The first look at the admission log is in the records."""
        self._store.save_takeover(replace(self._required(), met=True))

    def callers_met(self) -> None:
        """The first look at the callers' log is in the records."""
        self._store.save_takeover(replace(self._required(), callers_met=True))

    def passed_callers(self, lines: Sequence[str]) -> frozenset[str]:
        """Lines of the callers' log that the former agent had passed; it counted those that are not blank."""
        filled = [line for line in lines if line.strip()]
        return frozenset(filled[: self._required().callers])

    def begun(self, spec: HostTicketSpec) -> bool:
        """Whether the former agent had claimed a version-1 ticket and left it without a result."""
        return self._streams.shows(spec) and self._visible(spec) is None

    def enter_passed(
        self,
        spec: HostTicketSpec,
        *,
        key: str,
        sequence: int,
        request: bytes,
        place: tuple[str, int] | None = None,
    ) -> Record:
        """Journal a ticket that the former agent had passed, as ended: with its visible result or without.

        ``place`` is its family and epoch, where they do not follow from the request.
        """
        visible = self._visible(spec)
        if visible is None:
            result = self._result("stale", f"{FORMER} had ended it; its outcome is not known here")
            return self._enter(
                spec,
                key=key,
                sequence=sequence,
                request=request,
                passed=(State.PREPARED, State.EXECUTING, State.PERSISTED, State.TERMINAL),
                result=result,
                staged=self._expired(spec, result.message),
                place=place,
                withdrawn=f"{FORMER} had ended it before the takeover; nothing was done or published",
            )
        path, found = visible
        return self._enter(
            spec,
            key=key,
            sequence=sequence,
            request=request,
            passed=(State.PREPARED, State.EXECUTING, State.PERSISTED, State.PUBLISHED, State.TERMINAL),
            result=self._result(_OUTCOMES[found.state], found.message or f"ended by {FORMER}"),
            staged=StagedResult(path=path, line=found.encode().decode()),
            place=place,
        )

    def enter_begun(self, spec: HostTicketSpec, *, key: str, sequence: int, request: bytes) -> Record:
        """Journal a version-1 ticket that may have been performed: never repeated, published as expired."""
        result = self._result("stale", f"{FORMER} had begun it; whether it happened is unknown, not repeated")
        return self._enter(
            spec,
            key=key,
            sequence=sequence,
            request=request,
            passed=(State.PREPARED, State.EXECUTING, State.PERSISTED),
            result=result,
            staged=self._expired(spec, result.message),
        )

    def _enter(
        self,
        spec: HostTicketSpec,
        *,
        key: str,
        sequence: int,
        request: bytes,
        passed: Sequence[State],
        result: ProviderResult,
        staged: StagedResult,
        withdrawn: str | None = None,
        place: tuple[str, int] | None = None,
    ) -> Record:
        takeover = self._required()
        own = (V2_FAMILY if spec.admitted else V1_FAMILY, takeover.epoch)
        family, epoch = place if place is not None else own
        return self._store.enter(
            Record(
                key=key,
                family=family,
                epoch=epoch,
                sequence=sequence,
                request=request,
                state=passed[-1],
                history=history_of(passed, takeover),
                plan=plan_of(spec, takeover),
                result=result,
                staged=staged,
                withdrawn=withdrawn,
            )
        )

    def _required(self) -> Takeover:
        takeover = self._store.takeover
        if takeover is None:
            raise LookupError("nothing was taken over")
        return takeover

    def _result(self, outcome: str, message: str) -> ProviderResult:
        return ProviderResult(
            outcome=outcome,  # type: ignore[arg-type]
            message=bounded_detail(message),
            reconciled=True,
            evidence={"taken_over": self._required().source},
        )

    def _expired(self, spec: HostTicketSpec, message: str) -> StagedResult:
        line = build_result(spec, state="expired", message=message, max_line_bytes=self._max_line_bytes)
        return StagedResult(path=self._paths.stream(stream_of_state("expired")), line=line.decode())

    def _visible(self, spec: HostTicketSpec) -> tuple[str, HostTicketResult] | None:
        found = self._streams.terminal(spec.key)
        return next(((path, result) for path, result in found if result.echoes(spec)), None)
