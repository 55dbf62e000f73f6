"""What may happen to a release in each of its phases, and how the release has to end then: data.

An :class:`Event` has one expected end for the phases before the candidate's server is started, one for those
that touch what is served, and one for the rollback; ``unlike`` has the phases that differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from ticket_agent.peft.release.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    Name = Literal["succeeded", "failed", "ambiguous", "recovered", "stuck", "stale"]

JOURNAL: Final = "ticket_agent.peft.release.phase_journal:PhaseJournal"
FORWARD: Final = (
    Phase.VALIDATE,
    Phase.TRAIN,
    Phase.EVALUATE,
    Phase.SCAN,
    Phase.STAGE,
    Phase.LOAD,
    Phase.CANARY,
    Phase.PROMOTE,
)
TOUCHING: Final = frozenset({Phase.LOAD, Phase.CANARY, Phase.PROMOTE})


@dataclass(frozen=True, kw_only=True)
class End:
    """How everything stands at the end.

    Attributes:
        ticket: how its record ends; None: it goes on.
        state: in ``release.json``; None: there is none.
        deployed: generations beyond the baseline; None: either, as long as the files agree.
        owned: the root still belongs to the release.
        blocked: nothing may begin.
        gone: the candidate's server is.
    """

    ticket: str | None
    state: str | None
    deployed: int | None = 0
    owned: bool = False
    blocked: bool = False
    gone: bool = True


ENDS: Final[Mapping[str, End]] = MappingProxyType(
    {
        "succeeded": End(ticket="confirmed", state="succeeded", deployed=1, gone=False),
        "failed": End(ticket="rejected", state="failed"),
        "recovered": End(ticket="rejected", state="recovered_failure"),
        "ambiguous": End(ticket=None, state=None, owned=True),
        # As before, and the ticket's time is over.
        "stale": End(ticket="stale", state=None, owned=True),
        "stuck": End(
            ticket="rejected", state="rollback_failed", deployed=None, owned=True, blocked=True, gone=False
        ),
    }
)


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happens.

    Attributes:
        do: how the driver of the tests does it.
        before: the end where the candidate's server was never to be started.
        touching: the end where it was.
        undoing: the end when it happens to the rollback.
        why: the rule, in a word or two.
        unlike: ends of phases that differ from these.
        only: the phases that it can happen in; empty: all.
        silent: nobody answers for a time, because the server that did was killed.
    """

    do: tuple[str, ...]
    before: Name
    touching: Name
    undoing: Name
    why: str
    unlike: Mapping[Phase, Name] = field(default_factory=dict)
    only: frozenset[Phase] = frozenset()
    silent: bool = False

    def expected(self, phase: Phase) -> Name:
        if phase in self.unlike:
            return self.unlike[phase]
        if phase is Phase.ROLLBACK:
            return self.undoing
        return self.touching if phase in TOUCHING else self.before


def _fine(*do: str, why: str, **more: Any) -> Event:
    return Event(do=do, before="succeeded", touching="succeeded", undoing="recovered", why=why, **more)


def _lost(*do: str, why: str = "unknown", only: frozenset[Phase] = frozenset()) -> Event:
    return Event(do=do, before="ambiguous", touching="recovered", undoing="stuck", why=why, only=only)


def _failed(*do: str, why: str, only: frozenset[Phase] = frozenset()) -> Event:
    return Event(do=do, before="failed", touching="recovered", undoing="stuck", why=why, only=only)


BOTH: Final = {Phase.PROMOTE, Phase.ROLLBACK}
_PROMOTED: Final = {"only": frozenset({Phase.PROMOTE}), "silent": True}

EVENTS: Final[Mapping[str, Event]] = MappingProxyType(
    {
        # The agent dies.
        "agent-intended": _failed("agent", "dispatch", "after", why="never begun"),
        "agent-running": _fine("agent-outside", why="observed later"),
        "agent-observed": _fine("agent", "settle", "before", why="observed later"),
        "agent-settled": _fine("agent", "settle", "after", why="journaled"),
        "agent-finished": _fine("agent", "finish", "after", why="journaled"),
        "agent-unbegun": _fine("agent", "dispatch", "before", why="not dispatched"),
        # The phase's process, or who watches it, dies.
        "phase-begin": _lost("fault", "begin", "kill"),
        "phase-done": _lost("fault", "unobserved", "kill"),
        **{
            f"phase-{name}": _lost(
                "fault", f"ticket_agent.peft.release.{place}", "kill", only=frozenset(phases)
            )
            for name, place, phases in (
                ("moved", "serving_pointer:PointerFile.move", BOTH),
                ("selected", "control_files:ControlFiles.select_runtime", BOTH),
                ("accepted", "control_files:ControlFiles.promote", {Phase.PROMOTE}),
                ("restored", "control_files:ControlFiles.restore", {Phase.ROLLBACK}),
                ("ended", "known_server:KnownServer.stop", BOTH),
            )
        },
        "server-started": Event(
            do=("agent-at", "ticket_agent.peft.release.server_room:ServerRoom.start"),
            before="failed",
            touching="recovered",
            undoing="stuck",
            why="never begun",
            only=frozenset({Phase.LOAD}),
        ),
        "server-noted": Event(
            do=("agent-at", "ticket_agent.peft.release.server_record:ServerRecord.encode"),
            before="failed",
            touching="recovered",
            undoing="stuck",
            why="never begun",
            only=frozenset({Phase.LOAD}),
        ),
        "phase-told": _fine("fault", "observed", "kill", why="it was observed"),
        "phase-exit": _lost("fault", "unobserved", "exit"),
        "supervisor": _lost("supervisor"),
        # What it leaves cannot be used.
        "garbage": _lost("fault", "unobserved", "garbage", why="not accepted"),
        "foreign": _lost("fault", "unobserved", "foreign", why="not accepted"),
        "other-phase": _lost("fault", "unobserved", "phase", why="not accepted"),
        "other-adapter": _lost(
            "fault", "unobserved", "adapter", why="not accepted", only=frozenset({Phase.SCAN, Phase.STAGE})
        ),
        "other-deployed": _lost(
            "fault",
            "unobserved",
            "deployed",
            why="not accepted",
            only=frozenset({Phase.PROMOTE, Phase.ROLLBACK}),
        ),
        "fails": _failed("fault", "unobserved", "fails", why="observed"),
        "out-full": _lost("fault", "unobserved", "full"),
        # The disk of the root is full, and is not any more later.
        "root-full": _fine("full", "observed", why="it waits"),
        "all-full": _lost("full", "begin"),
        # Servers die.
        "candidate-dies": Event(
            do=("server", "candidate"),
            before="succeeded",
            touching="recovered",
            undoing="recovered",
            why="not healthy",
            only=frozenset({*TOUCHING, Phase.ROLLBACK}),
        ),
        "candidate-dies-later": _fine("server-later", "candidate", why="not watched any more", **_PROMOTED),
        "incumbent-dies": Event(
            do=("server", "first.server"),
            before="succeeded",
            touching="succeeded",
            undoing="stuck",
            why="replaced",
            only=frozenset({Phase.EVALUATE, Phase.STAGE, *TOUCHING, Phase.ROLLBACK}),
            silent=True,
        ),
        "incumbent-died": Event(
            do=("server-then-fails", "first.server"),
            before="failed",
            touching="recovered",
            undoing="stuck",
            why="started again",
            only=frozenset({Phase.LOAD}),
            silent=True,
        ),
        # The authority.
        "lost": Event(
            do=("authority", "lost"), before="ambiguous", touching="stuck", undoing="stuck", why="stopped"
        ),
        "lost-between": Event(
            do=("authority-between",),
            before="failed",
            touching="stuck",
            undoing="recovered",
            why="nothing is begun",
            unlike={Phase.PROMOTE: "succeeded"},
        ),
        "expired": Event(do=("expired",), before="stale", touching="stuck", undoing="stuck", why="stopped"),
        "unproven-long": _lost("authority", "unproven", why="stopped"),
        "unproven-short": _fine("authority-short", why="within the grace"),
    }
)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One event in one phase of a release that trains, or imports."""

    phase: Phase
    name: str
    entry: str = "train"

    @property
    def event(self) -> Event:
        return EVENTS[self.name]

    @property
    def label(self) -> str:
        return f"{self.entry}-{self.phase}-{self.name}"

    @property
    def expected(self) -> Name:
        return self.event.expected(self.phase)


def cells() -> list[Cell]:
    """The whole table; what does not depend on the entry is done with the longer release."""
    found: list[Cell] = []
    for name, event in EVENTS.items():
        phases = [phase for phase in (*FORWARD, Phase.ROLLBACK) if not event.only or phase in event.only]
        found += [Cell(phase=phase, name=name) for phase in phases]
    importing = ("agent-intended", "agent-running", "agent-settled", "phase-begin", "phase-done", "fails")
    found += [
        Cell(phase=phase, name=name, entry="import")
        for name in importing
        for phase in FORWARD
        if phase is not Phase.TRAIN
    ]
    return found


def sample() -> list[Cell]:
    """One cell of each event, each in another phase as far as that goes; and an import."""
    table: dict[str, list[Cell]] = {}
    for cell in cells():
        if cell.entry == "train":
            table.setdefault(cell.name, []).append(cell)
    found = [each[3 * number % len(each)] for number, each in enumerate(table.values())]
    return [*found, Cell(phase=Phase.STAGE, name="agent-running", entry="import")]
