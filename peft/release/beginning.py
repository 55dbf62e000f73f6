"""What a release or its recovery begins with: what has to hold before, and the files that say it began."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from ticket_agent.peft.errors import AbsentError, PeftError
from ticket_agent.peft.release.canonical import encode
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.gate import Asked, GateVerdict, HostFacts, NotYetError
from ticket_agent.peft.release.gates import gates
from ticket_agent.peft.release.layout import BEGUN_FILE, RECOVERY_PREFIX, Begun, OperationFiles
from ticket_agent.peft.release.markers import Owner
from ticket_agent.peft.release.release_record import Authority
from ticket_agent.peft.release.release_story import read_begun
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
    "RefusedGateError",
    "Ticket",
    "abandon",
    "begin",
    "begun_of",
    "require_gates",
]


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


class RefusedGateError(PeftError):
    """A gate refuses the release; it can never be performed as it was asked for."""

    code = "release-refused"


def require_gates(host: ReleaseHost, ticket: Ticket) -> DeploymentState:
    """Hold that a release, or its recovery, may begin; return what is deployed.

    Raises:
        RefusedGateError: it can never be performed as it was asked for.
        NotYetError: it can begin later: another release is not finished, the host is not in order.
        PeftError: the host cannot be looked at.
    """
    asked = Asked(
        operation_id=ticket.operation_id,
        model_id=ticket.model_id,
        request_sha256=ticket.request_sha256,
        recovery_only=ticket.recovery_only,
        ticket_id=ticket.ticket_id,
    )
    waits: list[str] = []
    facts = HostFacts(launcher=host.detection)
    for gate in gates(host.config, asked, facts=facts, thorough=False, root=host.root):
        line = f"{gate.code}: {gate.detail}" + (f"; {gate.remedy}" if gate.remedy else "")
        if gate.verdict is GateVerdict.REFUSED:
            raise RefusedGateError(line)
        if gate.verdict is GateVerdict.WAITS:
            waits.append(line)
    if waits:
        raise NotYetError(waits[0])
    _ = host.journal
    return host.root.control.accepted()


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
