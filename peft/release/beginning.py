"""What a release or its recovery begins with: what has to hold before, and the files that say it began."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from ticket_agent.peft.errors import AbsentError
from ticket_agent.peft.release.canonical import encode
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.layout import BEGUN_FILE, RECOVERY_PREFIX, Begun, OperationFiles
from ticket_agent.peft.release.markers import Owner
from ticket_agent.peft.release.phases import ReleaseState
from ticket_agent.peft.release.release_record import Authority
from ticket_agent.peft.release.release_story import read_begun, read_end
from ticket_agent.peft.release.request import parse_request
from ticket_agent.peft.release.root_errors import RootOwnedError
from ticket_agent.peft.release.rules import check_operation_id
from ticket_agent.protocol.args import PeftReleaseArgs

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.release.deployment import DeploymentState
    from ticket_agent.peft.release.private_root import PrivateRoot
    from ticket_agent.peft.release.release_host import ReleaseHost
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = [
    "MAX_ATTEMPTS",
    "Ticket",
    "abandon",
    "begin",
    "begun_of",
    "check_recovery",
    "check_release",
]

MAX_ATTEMPTS: Final = 4
"""Attempts to recover one release."""

_RECOVERABLE: Final = frozenset({ReleaseState.ROLLBACK_FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """What a ticket says about a release.

    Attributes:
        operation_id: the release.
        model_id: the ticket's subject.
        request_sha256: digest of the request.
        recovery_only: undo an earlier release of this request, and nothing else.
        ticket_id: the ticket.
        idempotency_key: of the ticket.
        writer_epoch: the lease epoch that root resolved at the admission; it fences off former owners.
        expires_unix_ms: when the ticket's authority ends.
    """

    operation_id: str
    model_id: str
    request_sha256: str
    recovery_only: bool
    ticket_id: str
    idempotency_key: str
    writer_epoch: int
    expires_unix_ms: int

    @classmethod
    def of(cls, spec: HostTicketSpec) -> Self:
        """Read an admitted ticket.

        Raises:
            DocumentError: it lacks what a release needs, or an id has a form that others would refuse.
            SpecError: its arguments are not those of a release.
        """
        args = spec.action_args()
        if not isinstance(args, PeftReleaseArgs):
            raise DocumentError(f"{spec.action} is no release")
        if spec.expires_unix_ms is None:
            raise DocumentError(
                "the ticket must have expires_unix_ms: a release is allowed for a time only",
                rule="release-authority-expired",
            )
        if spec.subject_ref is None or spec.resolved_lease_epoch is None:
            raise DocumentError("the ticket must have a model as its subject, and root's admission")
        if args.recovery_only:
            check_operation_id(spec.id, "the id of a recovery's ticket")
        return cls(
            operation_id=check_operation_id(spec.operation_id),
            model_id=spec.subject_ref,
            request_sha256=args.request_sha256,
            recovery_only=args.recovery_only,
            ticket_id=spec.id,
            idempotency_key=spec.idempotency_key,
            writer_epoch=spec.resolved_lease_epoch,
            expires_unix_ms=spec.expires_unix_ms,
        )

    @property
    def authority(self) -> Authority:
        """The ticket, as records tell it."""
        return Authority(
            ticket_id=self.ticket_id,
            idempotency_key=self.idempotency_key,
            writer_epoch=self.writer_epoch,
        )

    @property
    def live_key(self) -> str:
        """Tells a release from the attempts to recover it."""
        return f"{self.operation_id}/{self.ticket_id}" if self.recovery_only else self.operation_id

    def files(self, root: Path) -> OperationFiles:
        """Where its things stand."""
        recovery = self.ticket_id if self.recovery_only else None
        return OperationFiles(root=root, operation_id=self.operation_id, recovery=recovery)


# -- before -----------------------------------------------------------------------------------------------


def check_release(host: ReleaseHost, ticket: Ticket, *, now_unix_ms: int) -> DeploymentState:
    """Hold that a release may begin; return what is deployed.

    Raises:
        RootOwnedError: another release is not finished.
        PeftError: what hinders it.
    """
    root = host.root
    begun = begun_of(root, ticket)
    if begun is not None and begun.authority != ticket.authority:
        raise DocumentError(
            f"operation {ticket.operation_id} was begun by ticket {begun.authority.ticket_id}; a release"
            " needs an operation id of its own",
            rule="release-journal-identity",
        )
    root.control.require_unblocked()
    owner = root.control.owner()
    if owner is not None and owner != _owner(ticket):
        raise RootOwnedError(f"release {owner.operation_id} is not finished; this one waits for it")
    resolved = host.resolve(ticket, now_unix_ms=now_unix_ms)
    accepted = root.control.accepted()
    if accepted != resolved.request.baseline:
        raise DocumentError(
            f"generation {accepted.generation} is deployed, and the request starts from generation"
            f" {resolved.request.baseline.generation}; prepare it again",
            rule="baseline-generation",
        )
    host.require_ready(resolved)
    with root.locked():
        pass
    return accepted


def check_recovery(host: ReleaseHost, ticket: Ticket, *, now_unix_ms: int) -> DeploymentState:  # noqa: ARG001
    """Hold that a release may be recovered; return what is deployed.

    Raises:
        PeftError: what hinders it.
    """
    root = host.root
    request = parse_request(root.objects.load(ticket.request_sha256))
    for name, found, told in (
        ("operation_id", request.operation_id, ticket.operation_id),
        ("model_id", request.model_id, ticket.model_id),
    ):
        if found != told:
            raise DocumentError(f"the request is of {name} {found}, the ticket of {told}")
    with _operation(root, ticket) as directory:
        begun = read_begun(directory)
        if begun is None or begun.request_sha256 != ticket.request_sha256:
            raise DocumentError(f"no release {ticket.operation_id} of this request ever began")
        if begun.authority.ticket_id == ticket.ticket_id:
            raise DocumentError(
                "a recovery needs a ticket of its own, with another id than the release's",
                rule="fresh-recovery-authority-required",
            )
        ended = read_end(directory)
        if ended is not None and ended.state not in _RECOVERABLE:
            raise DocumentError(
                f"release {ticket.operation_id} has ended as {ended.state}; there is nothing to recover",
                rule="recovery-scope",
            )
        _check_attempts(directory, ticket)
    host.require_launcher()
    return root.control.accepted()


def _check_attempts(directory: Directory, ticket: Ticket) -> None:
    names = [name for name in directory.names() if name.startswith(RECOVERY_PREFIX)]
    own = f"{RECOVERY_PREFIX}{ticket.ticket_id}"
    if own not in names and len(names) >= MAX_ATTEMPTS:
        raise DocumentError(
            f"release {ticket.operation_id} had {MAX_ATTEMPTS} attempts to recover it; somebody has to"
            " look at it by hand",
            rule="recovery-attempts",
        )
    for name in names:
        if name == own:
            continue
        with directory.open_dir(name) as attempt:
            ended = read_end(attempt)
        if ended is None:
            raise RootOwnedError(f"the attempt under ticket {name.removeprefix(RECOVERY_PREFIX)} goes on")
        if ended.state is ReleaseState.RECOVERED_FAILURE:
            raise DocumentError(f"release {ticket.operation_id} was recovered already", rule="recovery-scope")


# -- beginning --------------------------------------------------------------------------------------------


def begun_of(root: PrivateRoot, ticket: Ticket) -> Begun | None:
    """How the ticket's release, or attempt, began; None when it did not."""
    try:
        with _operation(root, ticket) as directory:
            if not ticket.recovery_only:
                return read_begun(directory)
            with directory.open_dir(f"{RECOVERY_PREFIX}{ticket.ticket_id}") as attempt:
                return read_begun(attempt)
    except AbsentError:
        return None


def begin(host: ReleaseHost, ticket: Ticket, *, now_unix_ms: int) -> Begun:
    """Claim the root for the release and durably note that it has begun; safe to repeat.

    Raises:
        LockHeldError: somebody works in the root.
        RootOwnedError: another release is not finished.
        RootBlockedError: a rollback failed.
        PeftError: the system failed.
    """
    begun = Begun(
        operation_id=ticket.operation_id,
        request_sha256=ticket.request_sha256,
        authority=ticket.authority,
        expires_unix_ms=ticket.expires_unix_ms,
        provider_graph_sha256=hashlib.sha256(encode(host.graph)).hexdigest(),
        launcher=host.launcher_facts,
        began_unix_ms=now_unix_ms,
    )
    root = host.root
    with root.locked():
        if not ticket.recovery_only:
            root.control.claim(_owner(ticket))
            with root.operation(ticket.operation_id, create=True) as directory:
                directory.write_file(BEGUN_FILE, begun.encode())
            return begun
        with (
            _operation(root, ticket) as directory,
            directory.open_dir(f"{RECOVERY_PREFIX}{ticket.ticket_id}", create=True) as attempt,
        ):
            attempt.write_file(BEGUN_FILE, begun.encode())
    return begun


def abandon(root: PrivateRoot, ticket: Ticket) -> None:
    """Take back the claim of a release that has not begun and will not; safe to repeat.

    Raises:
        LockHeldError: somebody works in the root.
        PeftError: the system failed.
    """
    if ticket.recovery_only or root.control.owner() != _owner(ticket):
        return
    with root.locked(), suppress(RootOwnedError):
        root.control.disclaim(_owner(ticket))


def _owner(ticket: Ticket) -> Owner:
    return Owner(operation_id=ticket.operation_id, request_sha256=ticket.request_sha256)


def _operation(root: PrivateRoot, ticket: Ticket) -> Directory:
    return root.operation(ticket.operation_id)
