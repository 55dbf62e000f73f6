"""Deliberate faults of what drives releases, switched in inside the process of an agent."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release import driver, phase_look, phase_machine
from ticket_agent.peft.release.control_files import ControlFiles
from ticket_agent.peft.release.driver import ReleaseDriver
from ticket_agent.peft.release.phase_look import Seen, look
from ticket_agent.peft.release.phase_machine import AcceptedIs, Act, Allowed, Move, Standing, decide
from ticket_agent.peft.release.phases import Phase, ReleaseState
from ticket_agent.peft.release.running_phase import RunningPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _set(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


def _starts_before_the_intent() -> None:
    def begin(self: Any, story: Any, original: Any, move: Move, changed: str) -> Any:
        told = original or story
        assert move.phase is not None
        intent = self._starter.prepare(told, move.phase)
        self._starter.launch(told, move.phase, intent)()
        self._journal.dispatch(self._files, move.phase, self._begun, intent)
        return driver._Done()

    _set(ReleaseDriver, "_begin", begin)


def _begins_the_lost_again() -> None:
    again = True

    def once_more(situation: Any) -> Move:
        if again and situation.phases and situation.phases[-1][1] is Standing.LOST:
            return Move(act=Act.BEGIN, phase=situation.phases[-1][0])
        return decide(situation)

    def begin(self: Any, story: Any, original: Any, move: Move, changed: str) -> Any:
        nonlocal again
        assert move.phase is not None
        old = story.of(move.phase)
        if old is None:
            return real(self, story, original, move, changed)
        again = False
        run = self._files.run(move.phase)
        run.rename(run.with_name(f"{run.name}-old"))
        self._starter.launch(story, move.phase, dict(old.intent))()
        self._process(self._files, move.phase).wait(60)
        return driver._Done()

    real = ReleaseDriver._begin
    _set(driver, "decide", once_more)
    _set(ReleaseDriver, "_begin", begin)


def _forgets_what_is_lost() -> None:
    def seen(*arguments: Any) -> Seen:
        found = look(*arguments)
        return replace(found, standing=Standing.NOT_STARTED) if found.standing is Standing.LOST else found

    _set(driver, "look", seen)


def _rolls_nothing_back() -> None:
    def ended(situation: Any) -> Move:
        found = decide(situation)
        if found.act is Act.BEGIN and found.phase is Phase.ROLLBACK and not situation.recovers:
            return Move(act=Act.END, state=ReleaseState.FAILED, why=found.why)
        return found

    _set(driver, "decide", ended)


def _rolls_back_over_others() -> None:
    def always(situation: Any) -> Move:
        if situation.accepted is AcceptedIs.OTHER and situation.must_undo:
            situation = replace(situation, accepted=AcceptedIs.BASELINE)
        return decide(situation)

    _set(driver, "decide", always)


def _gives_the_root_away() -> None:
    real = ControlFiles.block

    def block(self: ControlFiles, blocker: Any) -> None:
        real(self, blocker)
        self.disclaim(blocker.owner)

    _set(ControlFiles, "block", block)


def _blocks_nothing() -> None:
    _set(ControlFiles, "block", lambda _, __: None)


def _asks_nobody() -> None:
    def allowed(situation: Any) -> Move:
        return decide(replace(situation, allowed=Allowed.HELD))

    _set(driver, "decide", allowed)


def _stops_nothing() -> None:
    def stop(self: RunningPhase, **_: Any) -> Any:
        return self.poll()

    _set(RunningPhase, "stop", stop)


def _takes_any_observation() -> None:
    from ticket_agent.peft.release.observation import parse_observation  # noqa: PLC0415

    _set(phase_look, "accept_observation", lambda data, **_: parse_observation(data))


def _forgets_to_keep() -> None:
    _set(ReleaseDriver, "_keep", lambda _, __: None)


def _ignores_the_baseline() -> None:
    rules = {phase: replace(rule, from_baseline=False) for phase, rule in phase_machine.RULES.items()}
    _set(phase_machine, "RULES", MappingProxyType(rules))


MUTANTS: Final[Mapping[str, Callable[[], None]]] = MappingProxyType(
    {
        "starts before the intent is durable": _starts_before_the_intent,
        "begins what is lost again": _begins_the_lost_again,
        "takes what is lost for never begun": _forgets_what_is_lost,
        "rolls nothing back": _rolls_nothing_back,
        "rolls back over a newer generation": _rolls_back_over_others,
        "gives the root away after a failed rollback": _gives_the_root_away,
        "blocks nothing after a failed rollback": _blocks_nothing,
        "asks nobody whether it is allowed": _asks_nobody,
        "stops nothing": _stops_nothing,
        "takes any observation": _takes_any_observation,
        "keeps no observation": _forgets_to_keep,
        "loads whatever is deployed": _ignores_the_baseline,
    }
)


def apply(name: str) -> None:
    """Let this process be wrong."""
    MUTANTS[name]()
