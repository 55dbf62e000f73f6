"""What the releases of one agent share: private root, journal of the phases, launcher and servers.

Nothing is opened before a ticket needs it. From then on the journal's fence is held until the agent ends.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from ticket_agent.journal.errors import FenceHeldError, JournalError, JournalPoisonedError
from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.conclude import conclude
from ticket_agent.peft.release.detect import detect
from ticket_agent.peft.release.evidence_limits import MAX_LABEL_BYTES
from ticket_agent.peft.release.keys import read_private_key
from ticket_agent.peft.release.phase_journal import PhaseJournal
from ticket_agent.peft.release.phase_starter import PhaseStarter
from ticket_agent.peft.release.private_root import PrivateRoot
from ticket_agent.peft.release.profile import parse_profile
from ticket_agent.peft.release.resolve import resolve
from ticket_agent.peft.release.resume_choice import published_checkpoint
from ticket_agent.peft.release.root_errors import RootOwnedError
from ticket_agent.peft.release.server_room import ServerRoom
from ticket_agent.peft.release.statement import LauncherFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ticket_agent.peft.release.conclude import Conclusion
    from ticket_agent.peft.release.detect import Detection
    from ticket_agent.peft.release.layout import Begun, OperationFiles
    from ticket_agent.peft.release.release_config import ReleaseConfig
    from ticket_agent.peft.release.release_record import ReleaseRecord
    from ticket_agent.peft.release.request import ReleaseRequest
    from ticket_agent.peft.release.resolve import ResolvedRelease

__all__ = ["ReleaseHost", "launcher_facts"]

OWN_PHASES: Final = "stage, load, canary, promote, rollback: this agent's own code, supervised, not confined"
SERVERS: Final = "servers: reach the host's network, so that they can be reached"
"""What no launcher confines here, as the evidence says it."""


@dataclass(kw_only=True)
class ReleaseHost:
    """See the module.

    Attributes:
        config: how releases run here.
        owner_uid: account of the service.
        clock: in Unix milliseconds.
        boot_id: identity of the host's boot.
        agent_version: as records name this process.
        actions: every action that this agent performs.
    """

    config: ReleaseConfig
    owner_uid: int
    clock: Callable[[], int]
    boot_id: str
    agent_version: str
    actions: tuple[str, ...] = ("peft.release",)
    _root: PrivateRoot | None = None
    _journal: PhaseJournal | None = None
    _detection: Detection | None = None
    _warming: threading.Thread | None = None
    _detecting: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        """Give everything back that was opened; what runs goes on."""
        if self._warming is not None:
            self._warming.join()
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        if self._root is not None:
            self._root.close()
            self._root = None

    # -- opened at the first use ----------------------------------------------------------------------------

    @property
    def root(self) -> PrivateRoot:
        """The private root.

        Raises:
            RootRefusedError: it does not exist, or is not private.
            PeftError: it cannot be opened.
        """
        if self._root is None:
            self._root = PrivateRoot.open(self.config.root, create=False, owner_uid=self.owner_uid)
        return self._root

    @property
    def journal(self) -> PhaseJournal:
        """The journal of the phases.

        Raises:
            RootOwnedError: another process drives releases in this root, or a record in it cannot be read, so
                that nobody knows what was dispatched.
            JournalPoisonedError: a write to it failed; the process must end.
            PeftError: it cannot be opened.
        """
        if self._journal is None:
            try:
                self._journal = PhaseJournal.open(
                    self.config.root,
                    clock=self.clock,
                    boot_id=self.boot_id,
                    agent_version=self.agent_version,
                )
            except JournalPoisonedError:
                raise
            except FenceHeldError as error:
                raise RootOwnedError(f"another process drives releases in this root: {error}") from error
            except JournalError as error:
                raise PeftError(f"the journal of the releases cannot be opened: {error}") from error
        if names := self._journal.unreadable():
            raise RootOwnedError(
                f"{len(names)} records in the journal of the releases cannot be read, like {names[0]};"
                " nothing is begun before somebody has looked"
            )
        return self._journal

    @property
    def detection(self) -> Detection:
        """What confines the phases; found out once.

        Raises:
            NoLauncherError: nothing does, and running without is not allowed.
        """
        with self._detecting:
            if self._detection is None:
                self._detection = detect(unconfined=self.config.unconfined)
            return self._detection

    def warm(self) -> None:
        """Do ahead, once and in a thread of its own, what would hold up the first release."""
        if self._warming is None:
            self._warming = threading.Thread(target=self._warm, name="release-warm")
            self._warming.start()

    def _warm(self) -> None:
        with suppress(PeftError):
            _ = self.detection
        if self.config.signing_key is not None:
            # Signing imports a library of tens of milliseconds.
            with suppress(PeftError):
                read_private_key(self.config.signing_key)

    @cached_property
    def launcher_facts(self) -> LauncherFacts:
        """What the evidence says about how phases are confined. Raises as :attr:`detection`."""
        return launcher_facts(self.detection)

    @property
    def graph(self) -> dict[str, object]:
        """What this agent can do, for the evidence."""
        return {
            "schema": "ticket-agent-provider-graph/v1",
            "actions": sorted(self.actions),
            "agent": self.agent_version.partition("+")[0],
        }

    @contextmanager
    def reading(self) -> Iterator[PrivateRoot]:
        """The root for commands that only look: nothing stays open."""
        with PrivateRoot.open(self.config.root, create=False, owner_uid=self.owner_uid) as root:
            yield root

    def room(self) -> ServerRoom:
        """The servers. Raises as :attr:`detection`."""
        return ServerRoom(self.config.root, self.detection.launcher, self.config)

    # -- what a release needs -------------------------------------------------------------------------------

    def starter(self, files: OperationFiles, request: ReleaseRequest, begun: Begun) -> PhaseStarter:
        """Prepares and starts the phases of an operation.

        Raises:
            PeftError: the profile cannot be read.
        """
        root = self.root
        kept: list[ResolvedRelease] = []

        def resolved() -> ResolvedRelease:
            if not kept:
                kept.append(
                    resolve(
                        root.objects,
                        begun.request_sha256,
                        operation_id=request.operation_id,
                        model_id=request.model_id,
                        published=partial(published_checkpoint, root),
                    )
                )
            return kept[0]

        return PhaseStarter(
            root=root,
            files=files,
            config=self.config,
            launcher=self.detection.launcher,
            room=self.room(),
            resolved=resolved,
            profile=parse_profile(root.objects.load(request.profile_sha256)),
            expires_unix_ms=begun.expires_unix_ms,
            clock=self.clock,
        )

    def conclude(self, files: OperationFiles, begun: Begun, record: ReleaseRecord) -> Conclusion:
        """Keep what a release has come to; see :func:`~ticket_agent.peft.release.conclude.conclude`."""
        return conclude(self.root, self.config, files, begun, record)


def launcher_facts(detection: Detection) -> LauncherFacts:
    """What the evidence says about how phases are confined."""
    told = {True: list[str](), False: [OWN_PHASES[:MAX_LABEL_BYTES], SERVERS]}
    for verdict in detection.verdicts:
        told[verdict.held].append(f"{verdict.guarantee}: {verdict.detail}"[:MAX_LABEL_BYTES])
    return LauncherFacts(
        name=detection.launcher.name, guarantees=tuple(told[True]), missing=tuple(told[False])
    )
