"""Driving one release: decide, act, make durable, and answer; never waiting for anything.

Whatever takes long is a process that is looked at. So :meth:`ReleaseDriver.advance` returns after at most a
few steps, and is called again until the release has ended. Each step can be the last one before a crash.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ticket_agent.journal.errors import StorageFullError
from ticket_agent.journal.outcome import Rejected, Underway, Unknown
from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.conclude import result_message
from ticket_agent.peft.release.deciding import because_of, decide_candidate, outdated
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.ending import after_end
from ticket_agent.peft.release.launching import Launching
from ticket_agent.peft.release.layout import RECOVERY_PREFIX
from ticket_agent.peft.release.phase_look import Expectation, look
from ticket_agent.peft.release.phase_machine import (
    AcceptedIs,
    Act,
    Allowed,
    Compared,
    Situation,
    Standing,
    decide,
)
from ticket_agent.peft.release.phases import Phase, ReleaseState
from ticket_agent.peft.release.release_story import (
    COMPARISON_FILE,
    read_begun,
    read_end,
    read_story,
    write_end,
)
from ticket_agent.peft.release.root_errors import ObjectCorruptError
from ticket_agent.peft.release.running_phase import RunningPhase

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ticket_agent.journal.outcome import Outcome
    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.release.conclude import Conclusion
    from ticket_agent.peft.release.launching import Starter
    from ticket_agent.peft.release.layout import Begun, OperationFiles
    from ticket_agent.peft.release.observation import PhaseObservation
    from ticket_agent.peft.release.phase_journal import PhaseJournal
    from ticket_agent.peft.release.phase_look import Seen
    from ticket_agent.peft.release.phase_machine import Move
    from ticket_agent.peft.release.private_root import PrivateRoot
    from ticket_agent.peft.release.release_record import ReleaseRecord
    from ticket_agent.peft.release.release_story import Story
    from ticket_agent.peft.release.request import ReleaseRequest

__all__ = ["POLL_S", "ReleaseDriver"]

POLL_S: Final = 0.25
"""How often a running phase, and the authority for it, are looked at."""
START_POLL_S: Final = 0.02
"""How often it is looked whether a supervisor has answered."""
MAX_MOVES: Final = 8

_DAMAGED: Final = (DocumentError, ObjectCorruptError)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    """What a move came to: the answer, or None to go on."""

    answer: Outcome | None = None


class ReleaseDriver:
    """One release, or one attempt to recover it.

    Args:
        root: the private root.
        journal: of its phases.
        files: places of the operation.
        begun: under which ticket it began.
        request: what was asked for.
        starter: prepares and starts phases.
        conclude: makes evidence of an ended release; may be repeated.
        clock: in Unix milliseconds.
        original: places of the release that this is an attempt to recover, and how it began.
    """

    def __init__(
        self,
        *,
        root: PrivateRoot,
        journal: PhaseJournal,
        files: OperationFiles,
        begun: Begun,
        request: ReleaseRequest,
        starter: Starter,
        conclude: Callable[[OperationFiles, Begun, ReleaseRecord], Conclusion],
        clock: Callable[[], int],
        original: tuple[OperationFiles, Begun] | None = None,
    ) -> None:
        self._root = root
        self._journal = journal
        self._files = files
        self._begun = begun
        self._request = request
        self._starter = starter
        self._conclude = conclude
        self._clock = clock
        self._original = original
        self._launching: Launching | None = None

    @property
    def _what(self) -> str:
        kind = "release" if self._original is None else "recovery of release"
        return f"{kind} {self._files.operation_id}"

    # -- driving ------------------------------------------------------------------------------------------

    def advance(self, allowed: Allowed, why: str = "") -> Outcome:
        """Go on as far as it goes without waiting, and say how the release stands.

        Args:
            allowed: the ticket's authority at this moment.
            why: what is known about it, in words.

        Raises:
            JournalPoisonedError: a write to the journal failed; the process must end.
        """
        try:
            if self._launching is not None:
                if self._launching.goes_on:
                    return Underway(f"{self._what}: {self._launching.phase} starts", poll_s=START_POLL_S)
                self._launched()
            with ExitStack() as opened:
                directory = self._opened(opened)
                ended = read_end(directory)
                if ended is not None:
                    return self._ended(ended)
                for _ in range(MAX_MOVES):
                    done = self._move(directory, allowed, why)
                    if done.answer is not None:
                        return done.answer
                return Underway(f"{self._what} goes on", poll_s=POLL_S)
        except _DAMAGED as error:
            # Nothing passes by itself here: somebody has to look, and the ticket's time may end it meanwhile.
            return Unknown(f"{self._what} cannot go on: {error}")
        except (PeftError, StorageFullError) as error:
            return Underway(f"{self._what} waits: {error}", poll_s=POLL_S)

    def stop_running(self) -> bool:
        """End the phase that runs, if one does: nobody allows it any more. Tell whether there was one.

        Raises:
            PeftError: something of it may still run; call again.
        """
        if self._launching is not None and self._launching.goes_on:
            return True  # what is about to run is ended with the next call
        for phase in Phase:
            if self._journal.standing(self._files, phase) is Standing.OPEN:
                self._process(self._files, phase).stop()
                return True
        return False

    def close(self) -> None:
        """Wait for a launch that goes on; what was launched goes on without us."""
        if self._launching is not None:
            with suppress(Exception):
                self._launching.finish()

    def _opened(self, opened: ExitStack) -> Directory:
        directory = opened.enter_context(self._root.operation(self._files.operation_id))
        if self._files.recovery is not None:
            directory = opened.enter_context(directory.open_dir(self._files.path.name))
        return directory

    def _story(self, directory: Directory) -> Story:
        return read_story(
            directory, files=self._files, begun=self._begun, request=self._request, journal=self._journal
        )

    def _move(self, directory: Directory, allowed: Allowed, why: str) -> _Done:
        story = self._story(directory)
        if self._finish_settled(self._files, story):
            return _Done()
        original = self._original_story()
        if original is None and (attempts := _attempts(directory)):
            return _Done(answer=self._left_to(directory, attempts))
        if original is not None and self._quiet(original):
            return _Done()
        changed = outdated(story, self._root.control.accepted, now_unix_ms=self._clock())
        move = decide(self._situation(story, original, allowed, changed))
        match move.act:
            case Act.BEGIN:
                return self._begin(story, original, move, changed)
            case Act.AWAIT:
                return self._await(story, _phase(move))
            case Act.STOP:
                self._process(self._files, _phase(move)).stop()
                return self._await(story, _phase(move))
            case Act.WAIT:
                reason = f": {why}" if why and allowed is Allowed.UNPROVEN else ""
                return _Done(answer=Underway(f"{self._what}: {move.why}{reason}", poll_s=POLL_S))
            case Act.COMPARE:
                decided = decide_candidate(story, self._root.control.accepted(), now_unix_ms=self._clock())
                directory.write_file(COMPARISON_FILE, decided.encode())
                return _Done()
            case Act.END:
                because = because_of(story, move.why, why if allowed is Allowed.LOST else changed)
                return self._end(directory, story, original, _state(move), because)

    def _situation(self, story: Story, original: Story | None, allowed: Allowed, changed: str) -> Situation:
        decided = story.decided
        compared = Compared.NOT_YET
        if decided is not None:
            compared = Compared.REFUSED if decided.comparison is None else Compared.ACCEPTED
        if changed:
            compared = Compared.OUTDATED
        promoted = original is not None and original.of(Phase.PROMOTE) is not None
        return Situation(
            entry=self._request.entry if original is None else None,
            phases=tuple((entry.phase, entry.standing) for entry in story.phases),
            allowed=allowed,
            accepted=self._accepted(story if original is None else original),
            compared=compared,
            promoted=promoted,
        )

    def _accepted(self, story: Story) -> AcceptedIs:
        try:
            found = self._root.control.accepted()
        except PeftError:
            # Damaged, gone, or the disk fails: somebody has to look, and until then nothing follows from it.
            return AcceptedIs.UNREADABLE
        if found == self._request.baseline:
            return AcceptedIs.BASELINE
        return AcceptedIs.SUCCESSOR if found == story.successor else AcceptedIs.OTHER

    # -- one phase ----------------------------------------------------------------------------------------

    def _begin(self, story: Story, original: Story | None, move: Move, changed: str) -> _Done:
        phase = _phase(move)
        told = original or story
        intent = self._starter.prepare(told, phase)
        if move.why:
            intent |= {"because": because_of(story, move.why, changed)}
        self._journal.dispatch(self._files, phase, self._begun, intent)
        try:
            self._launching = Launching(phase, self._starter.launch(told, phase, intent))
        except PeftError as error:
            self._refused(phase, str(error))
            return _Done()
        return _Done(answer=Underway(f"{self._what}: {phase} starts", poll_s=START_POLL_S))

    def _launched(self) -> None:
        """A launch has come to its end."""
        assert self._launching is not None  # there is one
        launching, self._launching = self._launching, None
        refused = launching.finish()
        if refused is not None:
            self._refused(launching.phase, refused)

    def _refused(self, phase: Phase, why: str) -> None:
        """The start was refused; that nothing runs is looked at all the same."""
        seen = look(self._process(self._files, phase), self._out(self._files, phase), self._expected(phase))
        if seen.standing is Standing.NOT_STARTED:
            self._settle(self._files, phase, replace(seen, why=why))

    def _await(self, story: Story, phase: Phase) -> _Done:
        seen = look(
            self._process(self._files, phase),
            self._out(self._files, phase),
            self._expected(phase, story),
        )
        if seen.standing is Standing.OPEN:
            return _Done(answer=Underway(f"{self._what}: {phase} runs", poll_s=POLL_S))
        self._settle(self._files, phase, seen)
        return _Done()

    def _settle(self, files: OperationFiles, phase: Phase, seen: Seen) -> None:
        """Make durable how a phase ended, and keep what it observed."""
        observation = seen.observation
        if observation is not None:
            self._journal.settle(files, phase, observation, why=seen.why or f"{phase} succeeded")
        elif seen.standing is Standing.NOT_STARTED:
            self._journal.settle_not_started(files, phase, why=seen.why)
        else:
            self._journal.settle_lost(files, phase, why=seen.why)
        self._journal.finish(files, phase, lambda: self._keep(observation))

    def _keep(self, observation: PhaseObservation | None) -> None:
        if observation is not None:
            with self._root.locked():
                self._root.objects.store(observation.encode())

    def _expected(self, phase: Phase, story: Story | None = None) -> Expectation:
        deployed = None
        if phase is Phase.ROLLBACK:
            deployed = self._request.baseline
        elif phase is Phase.PROMOTE and story is not None:
            deployed = story.successor
        return Expectation(
            operation_id=self._begun.operation_id,
            request_sha256=self._begun.request_sha256,
            phase=phase,
            candidate_sha256=None if story is None else story.candidate_sha256,
            deployed=deployed,
        )

    def _finish_settled(self, files: OperationFiles, story: Story) -> bool:
        """Bring to its end what was settled by a process that then died."""
        found = False
        for entry in story.phases:
            if self._journal.unfinished(files, entry.phase):
                found = True
                observation = entry.observation
                self._journal.finish(files, entry.phase, lambda kept=observation: self._keep(kept))  # type: ignore[misc]
        return found

    # -- the release that is recovered -----------------------------------------------------------------------

    def _original_story(self) -> Story | None:
        if self._original is None:
            return None
        files, begun = self._original
        with self._root.operation(files.operation_id) as directory:
            return read_story(
                directory, files=files, begun=begun, request=self._request, journal=self._journal
            )

    def _quiet(self, original: Story) -> bool:
        """End what the release still runs, and settle it; tell whether there was something."""
        assert self._original is not None  # there is an original
        files = self._original[0]
        if self._finish_settled(files, original):
            return True
        for entry in original.phases:
            if entry.standing is Standing.OPEN:
                process = self._process(files, entry.phase)
                process.stop()
                expected = self._expected(entry.phase, original)
                self._settle(files, entry.phase, look(process, self._out(files, entry.phase), expected))
                return True
        return False

    def _left_to(self, directory: Directory, attempts: list[str]) -> Outcome:
        """A release that somebody recovers under another ticket: once all is put back, it has failed."""
        for ticket in attempts:
            with directory.open_dir(f"{RECOVERY_PREFIX}{ticket}") as attempt:
                begun, ended = read_begun(attempt), read_end(attempt)
            if begun is not None and ended is not None and ended.state is ReleaseState.RECOVERED_FAILURE:
                with self._root.locked():
                    concluded = self._conclude(replace(self._files, recovery=ticket), begun, ended)
                return Rejected(
                    result_message(ended, concluded.evidence_sha256), {"recovered_under_ticket": ticket}
                )
        return Unknown(f"{self._what} is left to its recovery under ticket {attempts[0]}")

    # -- the end ---------------------------------------------------------------------------------------------

    def _end(
        self,
        directory: Directory,
        story: Story,
        original: Story | None,
        state: ReleaseState,
        because: str,
    ) -> _Done:
        if state is ReleaseState.AMBIGUOUS:
            answer = Unknown(f"{self._what} is ambiguous, nothing served was touched: {because}")
            return _Done(answer=answer)
        blocker = None if state is ReleaseState.SUCCEEDED else because
        record = story.ended(state, blocker, original=original)
        write_end(directory, record)
        return _Done(answer=self._ended(record))

    def _ended(self, record: ReleaseRecord) -> Outcome:
        return after_end(
            self._root, self._files, self._begun, record, conclude=self._conclude, now_unix_ms=self._clock()
        )

    @staticmethod
    def _process(files: OperationFiles, phase: Phase) -> RunningPhase:
        return RunningPhase(files.run(phase), launch_id=files.launch_id(phase.value))

    @staticmethod
    def _out(files: OperationFiles, phase: Phase) -> Path:
        return files.job(phase) / "out"


def _phase(move: Move) -> Phase:
    assert move.phase is not None  # every move but the end, the comparison and waiting has one
    return move.phase


def _state(move: Move) -> ReleaseState:
    assert move.state is not None  # every end has one
    return move.state


def _attempts(directory: Directory) -> list[str]:
    names = directory.names()
    return [name.removeprefix(RECOVERY_PREFIX) for name in names if name.startswith(RECOVERY_PREFIX)]
