"""Carries out what :mod:`ticket_agent.peft.release.switching` decides, on real servers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.readiness import check_ready, port_is_free
from ticket_agent.peft.release.serving_errors import ServerUnreachableError, ServingError
from ticket_agent.peft.release.serving_pointer import PointerConflictError, ServingPointer
from ticket_agent.peft.release.switching import Act, Event, Outcome, Step, append, decide
from ticket_agent.peft.release.tcp_table import connections_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.peft.release.canary import CanaryReport
    from ticket_agent.peft.release.loopback import LoopbackClient
    from ticket_agent.peft.release.serving import Backend, Instance
    from ticket_agent.peft.release.switching import End, History

__all__ = ["BlueGreen", "Patience", "Pointer", "Servers", "drive"]

PAUSE_S: Final = 0.02


class Servers(Protocol):
    """The processes of instances."""

    def start(self, instance: Instance) -> None:
        """Start it, once.

        Raises:
            PeftError: it was not started, or that is not known.
        """

    def running(self, instance: Instance) -> bool | None:
        """Tell whether any process of it is alive; None: that cannot be told."""

    def stop(self, instance: Instance) -> None:
        """Ask it to end when it has answered what it has begun.

        Raises:
            PeftError: that it was asked is not known.
        """

    def kill(self, instance: Instance) -> None:
        """End every process of it at once.

        Raises:
            PeftError: that they end is not known.
        """


class Pointer(Protocol):
    """What says which instance is asked."""

    def read(self) -> ServingPointer | None:
        """Read it; see :meth:`PointerFile.read`."""

    def move(self, expected: ServingPointer | None, wanted: ServingPointer) -> bool:
        """Move it; see :meth:`PointerFile.move`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long looks go on, in seconds each.

    Attributes:
        ready_s: until a started instance answers.
        settle_s: how long the old instance must have had no connection. It is longer than anybody takes from
            reading the pointer to connecting.
        drain_s: until it must have had none for that long; then it is stopped all the same.
        gone_s: until a stopped instance has ended and left its port.
    """

    ready_s: float
    settle_s: float
    drain_s: float
    gone_s: float


@dataclass(kw_only=True)
class BlueGreen:
    """One replacement on this machine.

    Attributes:
        backend: kind of the candidate.
        incumbent: what serves now.
        candidate: what is to serve.
        servers: their processes.
        clients: one for each port.
        pointer: says which of the two is asked.
        canary: asks the candidate its canary; called before the switch and again after it.
        patience: how long looks go on.
        incumbent_backend: kind of the incumbent, where it is another one.
        clock: in seconds.
    """

    backend: Backend
    incumbent: Instance
    candidate: Instance
    servers: Servers
    clients: Callable[[Instance], LoopbackClient]
    pointer: Pointer
    canary: Callable[[], CanaryReport]
    patience: Patience
    incumbent_backend: Backend | None = None
    clock: Callable[[], float] = time.monotonic
    reports: list[CanaryReport] = field(default_factory=list)
    _since: dict[Step, float] = field(default_factory=dict)
    _busy_at: float | None = None

    def begin(self, step: Step) -> None:
        """Begin one effect.

        Raises:
            PeftError: it failed, or how it ended is not known; looking tells.
        """
        old, new = ServingPointer.of(self.incumbent), ServingPointer.of(self.candidate)
        match step:
            case Step.START:
                self.servers.start(self.candidate)
            case Step.SWITCH:
                self.pointer.move(old, new)
            case Step.SWITCH_BACK:
                self.pointer.move(new, old)
            case Step.STOP_OLD:
                self.servers.stop(self.incumbent)
            case Step.KILL_OLD:
                self.servers.kill(self.incumbent)
            case Step.KILL_CANDIDATE:
                self.servers.kill(self.candidate)
            case _:
                self.servers.stop(self.candidate)

    def look(self, step: Step) -> Outcome | None:  # noqa: C901 - one line for each step
        """Look how a step ended; None: it is still going on. Nothing but the looking itself is changed."""
        since = self._since.setdefault(step, self.clock())
        waited = self.clock() - since
        match step:
            case Step.START:
                return _outcome(self.servers.running(self.candidate))
            case Step.READY:
                return self._ready(waited)
            case Step.CANARY | Step.VERIFY:
                return self._canary()
            case Step.SWITCH:
                return self._names(self.candidate)
            case Step.SWITCH_BACK:
                return self._names(self.incumbent)
            case Step.DRAIN:
                return self._drained(self.incumbent, waited)
            case Step.VERIFY_OLD:
                return self._answers_again(waited)
            case Step.STOP_OLD | Step.KILL_OLD | Step.STOP_CANDIDATE | Step.KILL_CANDIDATE:
                # That it was told to end is all that this step is; that it did is the next one.
                return Outcome.DONE
            case Step.OLD_GONE | Step.OLD_KILLED:
                return self._gone(self.incumbent, waited)
            case Step.CANDIDATE_GONE | Step.CANDIDATE_KILLED:
                return self._gone(self.candidate, waited)

    def _ready(self, waited: float) -> Outcome | None:
        running = self.servers.running(self.candidate)
        try:
            check_ready(self.clients(self.candidate), self.backend, self.candidate)
        except ServerUnreachableError:
            return None if running and waited < self.patience.ready_s else Outcome.FAILED
        except ServingError:
            return Outcome.FAILED
        return Outcome.DONE

    def _canary(self) -> Outcome:
        report = self.canary()
        self.reports.append(report)
        return _outcome(report.passed)

    def _names(self, instance: Instance) -> Outcome:
        try:
            found = self.pointer.read()
        except PeftError:
            return Outcome.UNKNOWN
        return _outcome(found == ServingPointer.of(instance))

    def _drained(self, instance: Instance, waited: float) -> Outcome | None:
        now = self.clock()
        try:
            busy = connections_to(instance.port) > 0
        except OSError:
            busy = True
        if busy or self._busy_at is None:
            self._busy_at = now
        elif now - self._busy_at >= self.patience.settle_s:
            return Outcome.DONE
        return None if waited < self.patience.drain_s else Outcome.FAILED

    def _answers_again(self, waited: float) -> Outcome | None:
        backend, old = self.incumbent_backend or self.backend, self.incumbent
        try:
            check_ready(self.clients(old), backend, old)
        except ServingError:
            return Outcome.FAILED
        # What comes next ends the candidate, to which some were sent just before the pointer moved back.
        return Outcome.DONE if self._drained(self.candidate, waited) else None

    def _gone(self, instance: Instance, waited: float) -> Outcome | None:
        running = self.servers.running(instance)
        if running is False and port_is_free(self.clients(instance)):
            return Outcome.DONE
        if waited < self.patience.gone_s:
            return None
        return Outcome.UNKNOWN if running is None else Outcome.FAILED


def drive(
    history: History,
    hands: BlueGreen,
    *,
    record: Callable[[History], None],
    authority: Callable[[], bool],
    pause: Callable[[], None] = lambda: time.sleep(PAUSE_S),
) -> End:
    """Go on from a history to its end.

    Args:
        history: what was recorded; empty at first.
        hands: what begins and looks.
        record: makes a history durable; called before each effect begins and after each step has ended.
        authority: whether the release is still allowed.
        pause: between two looks.

    Returns:
        How it ended.

    Raises:
        PeftError: ``record`` failed. What was begun is not begun again by another call.
    """
    while True:
        decision = decide(history, authority=authority())
        if decision.end is not None:
            return decision.end
        step = decision.step
        assert step is not None  # every act but the end has one
        if decision.act is Act.LOOK:
            outcome = hands.look(step)
            if outcome is None:
                pause()
                continue
            record(history := append(history, Event(step, outcome)))
        elif decision.act is Act.DENY:
            record(history := append(history, Event(step, Outcome.DENIED)))
        else:
            record(history := append(history, Event(step, None)))
            try:
                hands.begin(step)
            except PointerConflictError:
                record(history := append(history, Event(step, Outcome.FAILED)))
            except PeftError:
                # It may have happened all the same: only what is seen counts.
                continue


def _outcome(good: bool | None) -> Outcome:
    if good is None:
        return Outcome.UNKNOWN
    return Outcome.DONE if good else Outcome.FAILED
