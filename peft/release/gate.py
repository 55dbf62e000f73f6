"""One thing that has to hold before a release begins, and what came of looking at it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ticket_agent.peft.errors import PeftError

if TYPE_CHECKING:
    from ticket_agent.peft.release.adapter_diff import Difference
    from ticket_agent.peft.release.detect import Detection
    from ticket_agent.peft.release.inputs import ReleaseInput
    from ticket_agent.peft.release.installed import Installed
    from ticket_agent.peft.release.private_root import PrivateRoot
    from ticket_agent.peft.release.profile import Profile
    from ticket_agent.peft.release.release_config import ReleaseConfig
    from ticket_agent.peft.release.request import ReleaseRequest

__all__ = ["Asked", "Gate", "GateVerdict", "HostFacts", "Look", "NotYetError"]


class GateVerdict(StrEnum):
    """What came of a look.

    A release with one gate refused can never succeed as it was asked for; one with a gate that waits may,
    once somebody else has finished or the host was put in order.
    """

    PASS = "pass"  # noqa: S105 - no password
    REFUSED = "refused"
    WAITS = "waits"


class NotYetError(PeftError):
    """Not now; it says nothing against the release."""

    code = "release-gate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One gate.

    Attributes:
        code: its stable name.
        verdict: what came of it.
        detail: one line: what was found.
        remedy: one line: what to do, where it did not pass.
        differences: what a candidate should be and is, member by member; only where they differ.
    """

    code: str
    verdict: GateVerdict
    detail: str
    remedy: str | None = None
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which release it is about, as a ticket would say it.

    Attributes:
        operation_id: the release.
        model_id: its model.
        request_sha256: its request.
        recovery_only: it began earlier, and is to be undone.
        ticket_id: of the ticket that asks; None: of one that does not exist yet.
    """

    operation_id: str
    model_id: str
    request_sha256: str
    recovery_only: bool = False
    ticket_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What was found out about the host beforehand, because it takes longer; None: that gate is left out.

    Attributes:
        launcher: what confines phases here.
        installed: what the interpreter has.
    """

    launcher: Detection | None = None
    installed: Installed | None = None


@dataclass(slots=True, kw_only=True)
class Look:
    """One round of looking. The documents are there from the gate ``request`` on.

    Attributes:
        config: how releases run here.
        asked: which release.
        facts: about the host.
        thorough: read large files whole, and talk to the server that serves now.
        root: the private root.
    """

    config: ReleaseConfig
    asked: Asked
    facts: HostFacts
    thorough: bool
    root: PrivateRoot
    found: tuple[ReleaseRequest, Profile, ReleaseInput] | None = None

    @property
    def request(self) -> ReleaseRequest:
        """The request."""
        return self._documents[0]

    @property
    def profile(self) -> Profile:
        """Its profile."""
        return self._documents[1]

    @property
    def input(self) -> ReleaseInput:
        """Its input."""
        return self._documents[2]

    @property
    def _documents(self) -> tuple[ReleaseRequest, Profile, ReleaseInput]:
        if self.found is None:
            raise TypeError("the gate `request` comes first")
        return self.found
