"""Watching a promoted candidate for a while: it must go on answering, from the same process, as evaluated."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ticket_agent.peft.names import shown
from ticket_agent.peft.release.canary import finding_of
from ticket_agent.peft.release.canary_run import SLACK_MS
from ticket_agent.peft.release.readiness import ask, check_ready
from ticket_agent.peft.release.serving_errors import ServingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.peft.release.canary import Expected, Finding
    from ticket_agent.peft.release.loopback import LoopbackClient
    from ticket_agent.peft.release.serving import Backend, Instance
    from ticket_agent.peft.release.settings import Canary

__all__ = ["Soak", "SoakReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakReport:
    """What came of it: how many looks, over how many seconds, and what ended it early, or None."""

    looks: int
    seconds: float
    finding: Finding | None

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        found = self.finding
        return {
            "looks": self.looks,
            "seconds": round(self.seconds, 3),
            "finding": None if found is None else {"rule": found.rule, "text": found.text},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """How a server is watched.

    Attributes:
        client: to the server's port.
        backend: its kind.
        instance: what should be running there.
        canary: its prompts, one of which is asked with each look, and what is accepted.
        expected: the evaluation's answer to each prompt.
        identity: names the very process that serves.
        allowed: whether the release is still allowed; when it is not, that is found.
        soak_s: how long, in seconds; 0: not at all.
        pause_s: between two looks.
        clock: in seconds.
        sleep: waits that many seconds.
    """

    client: LoopbackClient
    backend: Backend
    instance: Instance
    canary: Canary
    expected: tuple[Expected, ...]
    identity: Callable[[], str]
    allowed: Callable[[], bool]
    soak_s: float
    pause_s: float
    clock: Callable[[], float] = field(default=time.monotonic)
    sleep: Callable[[float], None] = field(default=time.sleep)

    def run(self) -> SoakReport:
        """Watch until the time is over or something is found; nothing is raised for what a server does."""
        begun, looks = self.clock(), 0
        identity = self.identity()
        wrong: dict[int, Finding] = {}
        # A host that was held up for the whole time has looked once all the same: nobody passes unseen.
        while (gone_by := self.clock() - begun) < self.soak_s or looks == 0 < self.soak_s:
            finding = self._look(looks % len(self.canary.prompts), identity, wrong)
            looks += 1
            if finding is not None:
                return SoakReport(looks=looks, seconds=self.clock() - begun, finding=finding)
            self.sleep(min(self.pause_s, max(0.0, self.soak_s - gone_by)))
        return SoakReport(looks=looks, seconds=self.clock() - begun, finding=None)

    def _look(self, number: int, identity: str, wrong: dict[int, Finding]) -> Finding | None:
        if not self.allowed():
            return finding_of(
                "release-authority-expired", "the ticket expired while the candidate was watched"
            )
        if self.identity() != identity:
            return finding_of("soak-identity", "the server was restarted, or ended, while it was watched")
        try:
            check_ready(self.client, self.backend, self.instance)
            said = ask(
                self.client,
                self.backend,
                self.instance.name,
                self.canary.prompts[number],
                max_tokens=self.canary.max_tokens,
                deadline_s=(self.canary.maximum_latency_ms + SLACK_MS) / 1000,
            ).text
        except ServingError as error:
            return finding_of(error.code, str(error))
        acceptance = self.canary.acceptance
        if self.expected[number].matches(said, acceptance):
            wrong.pop(number, None)
            return None
        # As in the canary, so many of the prompts may be answered in another way, each by its last answer.
        wrong[number] = finding_of(
            "soak-output",
            f"prompt {number + 1} gives '{shown(said, 32)}' instead of"
            f" '{shown(self.expected[number].text, 32)}'",
        )
        allowed = len(self.canary.prompts) - acceptance.minimum_matches
        return wrong[number] if len(wrong) > allowed else None
