"""What all control phases work with: the root, the documents of the release, and the servers."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from ticket_agent.peft.release.behaviour import BEHAVIOUR_FILE, MAX_BEHAVIOUR_BYTES, Behaviour
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.consistency import successor
from ticket_agent.peft.release.control_errors import (
    AuthorityExpiredError,
    CandidateChangedError,
    ControlJobError,
    ServerMissingError,
)
from ticket_agent.peft.release.control_job import CONTROL_FILE, MAX_CONTROL_BYTES, ControlFacts
from ticket_agent.peft.release.job_directory import JobDirectory
from ticket_agent.peft.release.markers import Owner
from ticket_agent.peft.release.private_root import PrivateRoot
from ticket_agent.peft.release.profile import Profile, parse_profile
from ticket_agent.peft.release.request import MAX_REQUEST_BYTES, ReleaseRequest, parse_request
from ticket_agent.peft.release.root_errors import RootOwnedError
from ticket_agent.peft.release.server_room import ServerRoom
from ticket_agent.peft.roots import open_to_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ticket_agent.peft.release.deployment import DeploymentState
    from ticket_agent.peft.release.server_room import KnownServer

__all__ = ["ControlJob"]

LOCK_WAIT_S: Final = 30.0
"""How long somebody else may hold the root's lock, in seconds."""


class ControlJob(JobDirectory):
    """The open job directory of a control phase, with the root that it works in; for a ``with`` statement.

    Attributes:
        facts: ``in/control.json``.
        now_unix_ms: the host's clock.
        room: the servers.
    """

    def __init__(self, path: Path, *, now_unix_ms: Callable[[], int]) -> None:
        super().__init__(path)
        self.now_unix_ms: Final = now_unix_ms
        data = self.inputs.read_file(CONTROL_FILE, max_bytes=MAX_CONTROL_BYTES)
        self.facts: Final = ControlFacts.parse(data)
        self._root: PrivateRoot | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        if self._root is not None:
            self._root.close()
        super().__exit__(*details)

    @property
    def root(self) -> PrivateRoot:
        """The private root."""
        if self._root is None:
            self._root = PrivateRoot.open(self.facts.root, create=False)
        return self._root

    @cached_property
    def room(self) -> ServerRoom:
        """The servers; none can be started from here."""
        return ServerRoom(Path(self.facts.root), None, self.facts.config)

    @cached_property
    def request(self) -> ReleaseRequest:
        """The request that the facts name."""
        data = self.root.objects.load(self.facts.request_sha256, max_bytes=MAX_REQUEST_BYTES)
        request = parse_request(data)
        if request.operation_id != self.facts.operation_id:
            raise ControlJobError(
                f"{CONTROL_FILE} and the request are of two operations; prepare the phase again"
            )
        return request

    @cached_property
    def profile(self) -> Profile:
        """The profile that the request names."""
        return parse_profile(self.root.objects.load(self.request.profile_sha256))

    @property
    def candidate_sha256(self) -> str:
        """Identity of the adapter that was compared.

        Raises:
            ControlJobError: there is none.
        """
        if self.facts.candidate_sha256 is None:
            raise ControlJobError(f"{CONTROL_FILE} names no candidate; {self.facts.phase} needs one")
        return self.facts.candidate_sha256

    @property
    def promoted(self) -> DeploymentState | None:
        """What this release would promote, or has promoted; None where it has no candidate."""
        candidate = self.facts.candidate_sha256
        return None if candidate is None else successor(self.request, candidate)

    @cached_property
    def behaviour(self) -> Behaviour | None:
        """What the evaluated models answered; None where nothing was evaluated.

        Raises:
            ControlJobError: the file is another one than the evaluation has told.
            PeftError: it cannot be read.
        """
        if self.facts.evaluate_out is None:
            return None
        with open_to_read(self.facts.evaluate_out, label="what evaluate left") as directory:
            data = directory.read_file(BEHAVIOUR_FILE, max_bytes=MAX_BEHAVIOUR_BYTES)
        if (found := digest(data)) != self.facts.behaviour_sha256:
            raise ControlJobError(
                f"{BEHAVIOUR_FILE} is {found}; the evaluation left {self.facts.behaviour_sha256}"
            )
        return Behaviour.parse(data)

    # -- effects --------------------------------------------------------------------------------------------

    @property
    def allowed(self) -> bool:
        """The ticket has not expired."""
        return self.now_unix_ms() < self.facts.expires_unix_ms

    def require_authority(self, doing: str) -> None:
        """Hold that an effect may begin.

        Raises:
            AuthorityExpiredError: the ticket has expired.
        """
        if not self.allowed:
            raise AuthorityExpiredError(f"the ticket expired before {doing}; nothing more is begun")

    @contextmanager
    def changing(self, doing: str) -> Iterator[PrivateRoot]:
        """Hold the root's lock for an effect on its files, if this release may still have one.

        Raises:
            LockHeldError: somebody else works in the root, for longer than this waits.
            AuthorityExpiredError: the ticket has expired.
            RootOwnedError: the root is not this release's.
        """
        with self.root.locked(wait_s=LOCK_WAIT_S):
            self.require_authority(doing)
            owner, own = (
                self.root.control.owner(),
                Owner(operation_id=self.facts.operation_id, request_sha256=self.facts.request_sha256),
            )
            if owner != own:
                named = "nobody" if owner is None else f"release {owner.operation_id}"
                raise RootOwnedError(
                    f"the root belongs to {named}, not to release {own.operation_id}: {doing} is not begun"
                )
            yield self.root

    # -- servers --------------------------------------------------------------------------------------------

    def candidate(self) -> KnownServer:
        """The candidate's server.

        Raises:
            ServerMissingError: it was never noted down.
            CandidateChangedError: it serves something else than what was staged.
        """
        found = self._server(self.facts.candidate, "the candidate")
        instance, bundle = found.instance, self.facts.candidate_bundle_sha256
        generation = self.request.baseline.generation + 1
        if (instance.artifact_sha256, found.bundle_sha256, instance.generation) != (
            self.candidate_sha256,
            bundle,
            generation,
        ):
            raise CandidateChangedError(
                f"server {found.launch_id} serves {instance.name}, which is not what was staged"
            )
        return found

    def incumbent(self) -> KnownServer:
        """The server of what the release began with.

        Raises:
            ServerMissingError: it was never noted down, or serves something else.
        """
        found = self._server(self.facts.incumbent, "the incumbent")
        baseline = self.request.baseline
        instance = found.instance
        if (instance.generation, instance.artifact_sha256) != (
            baseline.generation,
            baseline.served_artifact_sha256,
        ):
            raise ServerMissingError(
                f"server {found.launch_id} serves {instance.name}; the release began with generation"
                f" {baseline.generation} of {baseline.served_artifact_sha256[:12]}"
            )
        return found

    def _server(self, launch_id: str | None, what: str) -> KnownServer:
        if launch_id is None:
            raise ControlJobError(f"{CONTROL_FILE} names no server of {what}; {self.facts.phase} needs one")
        found = self.room.known(launch_id)
        if found is None:
            raise ServerMissingError(f"no server was ever noted down as {launch_id}, which is {what}")
        return found
