"""The phase ``promote``: the pointer moves to the candidate, which is accepted and watched.

Once the pointer has moved, whatever is found wrong takes it back at once, and what is deployed with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.blue_green import BlueGreen, Patience, drive
from ticket_agent.peft.release.canary import finding_of
from ticket_agent.peft.release.control_canary import bounded, candidate_canary
from ticket_agent.peft.release.control_errors import AuthorityExpiredError, ControlError
from ticket_agent.peft.release.control_load import await_server
from ticket_agent.peft.release.loopback import LoopbackClient
from ticket_agent.peft.release.markers import RuntimeSelection
from ticket_agent.peft.release.observing import PhaseFailedError
from ticket_agent.peft.release.root_errors import AcceptedConflictError
from ticket_agent.peft.release.server_room import RoomServers
from ticket_agent.peft.release.serving_pointer import PointerConflictError, ServingPointer
from ticket_agent.peft.release.soak import Soak
from ticket_agent.peft.release.switching import End, Event, Outcome, Step, history_members

if TYPE_CHECKING:
    from ticket_agent.peft.release.canary import CanaryReport
    from ticket_agent.peft.release.control_work import ControlJob
    from ticket_agent.peft.release.deployment import DeploymentState
    from ticket_agent.peft.release.server_room import KnownServer
    from ticket_agent.peft.release.soak import SoakReport
    from ticket_agent.peft.release.switching import History

__all__ = ["promote", "restore_files"]

HISTORY_FILE: Final = "switch.json"
_PROVEN: Final = (
    Event(Step.START, None),
    Event(Step.START, Outcome.DONE),
    Event(Step.READY, Outcome.DONE),
    Event(Step.CANARY, Outcome.DONE),
)
"""What the phases before this one have done of a switch."""


def promote(job: ControlJob) -> dict[str, Any]:
    """Put the candidate in the incumbent's place.

    Raises:
        PhaseFailedError: it was taken back, or could not be; with what was found.
        PeftError: nothing was begun.
    """
    promotion = _Promotion(job)
    promotion.check()
    end = promotion.run()
    detail = promotion.detail()
    if end not in {End.SWITCHED, End.LINGERING}:
        rule, text = promotion.reason(end)
        raise PhaseFailedError(text, rule=rule, detail=detail | {"ended": end.value})
    accepted = job.root.control.accepted()
    if accepted != promotion.promoted:
        raise PhaseFailedError(
            "what is deployed was changed by somebody else", rule="promotion-postcondition", detail=detail
        )
    return detail | {"accepted": accepted.members(), "incumbent_gone": end is End.SWITCHED}


class _Promotion:
    """One promotion: what a switch asks its root, its pointer and its canary."""

    def __init__(self, job: ControlJob) -> None:
        self._job = job
        self._baseline: Final = job.request.baseline
        self._candidate: Final = job.candidate()
        self._incumbent: Final = job.incumbent()
        self._old: Final = ServingPointer.of(self._incumbent.instance)
        self.report: CanaryReport | None = None
        self.soaked: SoakReport | None = None

    @property
    def promoted(self) -> DeploymentState:
        """What is deployed when all went well."""
        promoted = self._job.promoted
        assert promoted is not None  # there is a candidate, or its server would have been refused
        return promoted

    def check(self) -> None:
        """Look whether a promotion may begin.

        Raises:
            PhaseFailedError: the candidate is not ready any more; nobody is sent to it.
            PeftError: it may not begin.
        """
        job, timing = self._job, self._job.facts.timing
        need_ms = round(1000 * (timing.soak_s + timing.settle_s + timing.gone_s))
        if job.now_unix_ms() + need_ms >= job.facts.expires_unix_ms:
            raise AuthorityExpiredError(
                f"the ticket expires before the candidate could be watched for {timing.soak_s:g} s and the"
                " old server be stopped; ask again with a ticket that lives longer"
            )
        found = job.root.control.accepted()
        if found != self._baseline:
            raise AcceptedConflictError(
                f"generation {found.generation} is deployed, not generation {self._baseline.generation} that"
                " the candidate was compared with",
                found=found,
            )
        named = job.root.pointer.read()
        if named != self._old:
            raise PointerConflictError(
                f"{'nothing' if named is None else named.name} is served, not {self._old.name} on port"
                f" {self._old.port}"
            )
        # It may have died since its canary; the pointer would then send everybody to nobody.
        await_server(job, self._candidate)

    def run(self) -> End:
        """Carry it out."""
        job, timing = self._job, self._job.facts.timing
        hands = BlueGreen(
            backend=self._candidate.backend,
            incumbent=self._incumbent.instance,
            incumbent_backend=self._incumbent.backend,
            candidate=self._candidate.instance,
            servers=RoomServers(room=job.room, backend=self._candidate.backend, caps=self._candidate.caps),
            clients=lambda instance: LoopbackClient(port=instance.port, token=instance.token),
            pointer=self,
            canary=self._verify,
            patience=Patience(
                ready_s=timing.ready_s,
                settle_s=timing.settle_s,
                drain_s=timing.drain_s,
                gone_s=timing.gone_s,
            ),
        )
        return drive(_PROVEN, hands, record=self._record, authority=lambda: job.allowed)

    def detail(self) -> dict[str, Any]:
        """What was found, for the observation."""
        return {
            "canary": None if self.report is None else bounded(self.report),
            "soak": None if self.soaked is None else self.soaked.members(),
        }

    def reason(self, end: End) -> tuple[str, str]:
        """Why it did not come to a good end: a rule and a line."""
        if self.report is not None and self.report.findings:
            first = self.report.findings[0]
            return first.rule, f"{self.report.name}: {first.text}"
        if not self._job.allowed:
            return AuthorityExpiredError.code, "the ticket expired during the promotion"
        return "switch", f"the pointer could not be moved to {self._candidate.instance.name} ({end})"

    def _record(self, history: History) -> None:
        self._job.leave_members(HISTORY_FILE, {"history": history_members(history)})

    # -- the pointer, as a switch sees it -------------------------------------------------------------------

    def read(self) -> ServingPointer | None:
        """Read the pointer."""
        return self._job.root.pointer.read()

    def move(self, expected: ServingPointer | None, wanted: ServingPointer) -> bool:
        """Move the pointer; back to the incumbent, and what is deployed goes back with it."""
        with self._job.changing("moving the pointer") as root:
            moved = root.pointer.move(expected, wanted)
            if wanted == self._old:
                restore_files(self._job, self._incumbent)
        return moved

    # -- the second canary, and all that its success allows -------------------------------------------------

    def _verify(self) -> CanaryReport:
        report = candidate_canary(self._job, self._candidate)
        if report.passed:
            try:
                self._accept()
                self.soaked = self._soak().run()
                found = self.soaked.finding
            except PeftError as error:
                rule = error.code if isinstance(error, ControlError) else "promotion"
                found = finding_of(rule, str(error))
            if found is not None:
                report = replace(report, findings=(found,))
        self.report = report
        return report

    def _accept(self) -> None:
        with self._job.changing("accepting the candidate") as root:
            selection = RuntimeSelection(
                bundle_sha256=self._candidate.bundle_sha256, adapter_sha256=self._job.candidate_sha256
            )
            root.control.select_runtime(selection)
            root.control.promote(self._baseline, self.promoted)

    def _soak(self) -> Soak:
        job, behaviour = self._job, self._job.behaviour
        assert behaviour is not None  # the canary has used it
        return Soak(
            client=self._candidate.client(),
            backend=self._candidate.backend,
            instance=self._candidate.instance,
            canary=job.profile.canary,
            expected=behaviour.candidate,
            identity=self._candidate.identity,
            allowed=lambda: job.allowed,
            soak_s=job.facts.timing.soak_s,
            pause_s=job.facts.timing.soak_pause_s,
        )


def restore_files(job: ControlJob, incumbent: KnownServer) -> None:
    """Let the root's files say what they said when the release began; the root's lock is held. Idempotent.

    Raises:
        AcceptedConflictError: something newer is deployed; nothing was changed.
        PeftError: the system failed.
    """
    control, baseline = job.root.control, job.request.baseline
    control.restore(baseline, job.promoted)
    wanted = RuntimeSelection(bundle_sha256=incumbent.bundle_sha256, adapter_sha256=baseline.adapter_sha256)
    # Written even if it is there already: whoever wrote it may have died before the directory was synced.
    control.select_runtime(wanted)
