"""What follows from the end of a release once that is durable: evidence, markers, the ticket's outcome."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ticket_agent.journal.outcome import Committed, Rejected
from ticket_agent.peft.release.conclude import result_message
from ticket_agent.peft.release.markers import Blocker, Owner
from ticket_agent.peft.release.phases import ReleaseState
from ticket_agent.peft.release.root_errors import RootBlockedError, RootOwnedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.journal.outcome import JsonValue, Outcome
    from ticket_agent.peft.release.conclude import Conclusion
    from ticket_agent.peft.release.layout import Begun, OperationFiles
    from ticket_agent.peft.release.private_root import PrivateRoot
    from ticket_agent.peft.release.release_record import ReleaseRecord

__all__ = ["after_end"]


def after_end(
    root: PrivateRoot,
    files: OperationFiles,
    begun: Begun,
    record: ReleaseRecord,
    *,
    conclude: Callable[[OperationFiles, Begun, ReleaseRecord], Conclusion],
    now_unix_ms: int,
) -> Outcome:
    """Do everything that follows from a durable end, and return the ticket's outcome; safe to repeat.

    Raises:
        LockHeldError: somebody works in the root.
        PeftError: evidence cannot be kept, or a marker cannot be changed; repeat it later.
    """
    owner = Owner(operation_id=record.operation_id, request_sha256=record.request_sha256)
    control = root.control
    with root.locked():
        concluded = conclude(files, begun, record)
        if record.state is ReleaseState.ROLLBACK_FAILED:
            reason = record.blocker or "the rollback failed"
            control.block(
                Blocker(
                    operation_id=record.operation_id,
                    request_sha256=record.request_sha256,
                    reason=reason,
                    since_unix_ms=now_unix_ms,
                )
            )
        else:
            # Once it is not ours any more, the next release may have claimed the root by now.
            with suppress(RootBlockedError, RootOwnedError):
                if record.recovery is not None:
                    control.unblock(owner)
                control.disclaim(owner)
    message = result_message(record, concluded.evidence_sha256)
    evidence: dict[str, JsonValue] = {
        "state": record.state.value,
        "native_evidence_sha256": concluded.evidence_sha256,
        "phases": [entry.phase.value for entry in record.phases],
    }
    if record.state is ReleaseState.SUCCEEDED:
        return Committed(message, evidence)
    return Rejected(message, evidence)
