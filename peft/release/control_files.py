"""What is deployed, and who works on it: the few files of the private root that change.

What is deployed moves by compare and set alone. Every step that a crash can leave between is either before or
after the one rename, and each call can be repeated: it finds that its work is done, and makes it durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ticket_agent.peft.errors import AbsentError
from ticket_agent.peft.names import shown
from ticket_agent.peft.release.deployment import (
    MAX_STATE_BYTES,
    DeploymentState,
    encode_deployment,
    parse_deployment,
)
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.markers import (
    BLOCKED_FILE,
    MAX_MARKER_BYTES,
    OWNER_FILE,
    RUNTIME_FILE,
    Blocker,
    Owner,
    RuntimeSelection,
)
from ticket_agent.peft.release.replaced import read_replaced
from ticket_agent.peft.release.root_errors import (
    AcceptedConflictError,
    RootBlockedError,
    RootOwnedError,
)

if TYPE_CHECKING:
    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.release.guard import Guard

__all__ = ["ACCEPTED_FILE", "ControlFiles"]

ACCEPTED_FILE: Final = "accepted.json"


class ControlFiles:
    """The control files of one root. Whoever changes one holds the root's lock; whoever reads need not."""

    def __init__(self, root: Directory, guard: Guard) -> None:
        self._root = root
        self._guard = guard

    # -- what is deployed ---------------------------------------------------------------------------------

    def accepted(self) -> DeploymentState:
        """Read what is deployed.

        Raises:
            AbsentError: nothing was ever deployed here.
            DocumentError: the file is no deployment state. It is damaged; nothing follows from it.
            FileRefusedError: it is no plain file of its size.
            FileChangedError: it is replaced faster than it can be read.
            PeftIoError: the system failed; nothing follows from that either.
        """
        return parse_deployment(read_replaced(self._root, ACCEPTED_FILE, max_bytes=MAX_STATE_BYTES))

    def initialise(self, state: DeploymentState) -> None:
        """Write the first deployment state of a root.

        Raises:
            AcceptedConflictError: there is another one.
        """
        with self._guard.changing():
            try:
                found = self.accepted()
            except AbsentError:
                self._root.write_file(ACCEPTED_FILE, encode_deployment(state))
                return
            if found != state:
                raise AcceptedConflictError(
                    f"generation {found.generation} is deployed here already", found=found
                )
            self._root.sync()

    def promote(self, baseline: DeploymentState, successor: DeploymentState) -> bool:
        """Make ``successor`` what is deployed, if ``baseline`` is; safe to repeat.

        Returns:
            False: it had been promoted already, by an earlier call that could not tell.

        Raises:
            DocumentError: ``successor`` is not the next generation of a verified deployment.
            AcceptedConflictError: something else is deployed; nothing was changed.
        """
        if (
            successor.generation != baseline.generation + 1
            or successor.adapter_sha256 is None
            or successor.runtime_sha256 != baseline.runtime_sha256
            or not (successor.healthy and successor.rollback_verified)
        ):
            raise DocumentError(
                f"generation {successor.generation} is no promotion of generation {baseline.generation}: it"
                " must be the next one, with an adapter, on the same runtime, healthy, its rollback verified",
                rule="promotion-postcondition",
            )
        return self._set(frozenset({baseline}), successor)

    def restore(self, baseline: DeploymentState, promoted: DeploymentState | None) -> bool:
        """Make ``baseline`` what is deployed again; safe to repeat.

        Args:
            baseline: what was deployed when the release began.
            promoted: what this very release promoted, or None when it cannot have promoted anything. A newer
                deployment of somebody else is never taken back.

        Returns:
            False: it was deployed already.

        Raises:
            AcceptedConflictError: something else is deployed; nothing was changed.
        """
        return self._set(frozenset() if promoted is None else frozenset({promoted}), baseline)

    def _set(self, expected: frozenset[DeploymentState], wanted: DeploymentState) -> bool:
        with self._guard.changing():
            found = self.accepted()
            if found == wanted:
                # Whoever wrote it may have died before the directory was synced.
                self._root.sync()
                return False
            if found not in expected:
                raise AcceptedConflictError(
                    f"generation {found.generation} ({found.served_artifact_sha256[:12]}) is deployed, which"
                    f" this release does not go by; generation {wanted.generation} is not written",
                    found=found,
                )
            self._root.write_file(ACCEPTED_FILE, encode_deployment(wanted))
            return True

    # -- markers ------------------------------------------------------------------------------------------

    def runtime(self) -> RuntimeSelection:
        """Read what the server loads.

        Raises:
            AbsentError: nothing was ever selected.
            DocumentError: the file is damaged.
        """
        return RuntimeSelection.parse(read_replaced(self._root, RUNTIME_FILE, max_bytes=MAX_MARKER_BYTES))

    def select_runtime(self, selection: RuntimeSelection) -> None:
        """Durably say what the server loads when it is started next."""
        with self._guard.changing():
            self._root.write_file(RUNTIME_FILE, selection.encode())

    def owner(self) -> Owner | None:
        """The release that is not finished, or None.

        Raises:
            DocumentError: the marker is damaged; whether a release is unfinished is not known.
        """
        data = self._marker(OWNER_FILE)
        return None if data is None else Owner.parse(data)

    def claim(self, owner: Owner) -> None:
        """Durably note that a release is under way; the same release may do so again.

        Raises:
            RootBlockedError: a rollback failed.
            RootOwnedError: another release is not finished.
        """
        self.require_unblocked()
        with self._guard.changing():
            found = self.owner()
            if found is None:
                self._root.write_file(OWNER_FILE, owner.encode())
            elif found == owner:
                self._root.sync()
            else:
                raise RootOwnedError(
                    f"{self._root.label}: release {found.operation_id} is not finished; this one waits for it"
                )

    def disclaim(self, owner: Owner) -> None:
        """Durably note that a release is finished; safe to repeat.

        Raises:
            RootOwnedError: it is another one's root.
        """
        with self._guard.changing():
            found = self.owner()
            if found is not None and found != owner:
                raise RootOwnedError(
                    f"{self._root.label} belongs to release {found.operation_id}, not to {owner.operation_id}"
                )
            self._remove(OWNER_FILE)

    def blocker(self) -> Blocker | None:
        """Why no release may start, or None.

        Raises:
            DocumentError: the marker is damaged; the root is blocked all the same.
        """
        data = self._marker(BLOCKED_FILE)
        return None if data is None else Blocker.parse(data)

    def require_unblocked(self) -> None:
        """Refuse to start a release in a blocked root.

        Raises:
            RootBlockedError: a rollback failed.
            DocumentError: the marker is damaged; the root is blocked all the same.
        """
        found = self.blocker()
        if found is not None:
            raise RootBlockedError(
                f"{self._root.label} is blocked: the rollback of release {found.operation_id} failed"
                f" ({shown(found.reason, 160)}); recover that release first"
            )

    def block(self, blocker: Blocker) -> None:
        """Durably block the root. The first reason stays.

        Raises:
            RootBlockedError: another release blocks it already.
        """
        with self._guard.changing():
            found = self.blocker()
            if found is None:
                self._root.write_file(BLOCKED_FILE, blocker.encode())
            elif found.owner == blocker.owner:
                self._root.sync()
            else:
                raise RootBlockedError(
                    f"{self._root.label} is blocked by release {found.operation_id} already"
                )

    def unblock(self, owner: Owner) -> None:
        """Durably take away the block of a release that was recovered; safe to repeat.

        Raises:
            RootBlockedError: another release blocks the root.
        """
        with self._guard.changing():
            found = self.blocker()
            if found is not None and found.owner != owner:
                raise RootBlockedError(
                    f"{self._root.label} is blocked by release {found.operation_id}, not by"
                    f" {owner.operation_id}"
                )
            self._remove(BLOCKED_FILE)

    def _marker(self, name: str) -> bytes | None:
        try:
            return read_replaced(self._root, name, max_bytes=MAX_MARKER_BYTES)
        except AbsentError:
            return None

    def _remove(self, name: str) -> None:
        if self._root.kind(name) is not None:
            self._root.unlink(name)
        self._root.sync()
