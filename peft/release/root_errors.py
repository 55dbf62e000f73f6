"""What working on the private root of the releases raises, besides the errors of all PEFT trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ticket_agent.peft.errors import FileChangedError, FileRefusedError, LockHeldError, PeftError, PeftIoError

if TYPE_CHECKING:
    from ticket_agent.peft.release.deployment import DeploymentState

__all__ = [
    "AcceptedConflictError",
    "CapacityError",
    "ObjectCorruptError",
    "RootBlockedError",
    "RootOwnedError",
    "RootPoisonedError",
    "may_pass",
]


class ObjectCorruptError(FileRefusedError):
    """An object or a bundle does not hold what its name says; it is not used, and not replaced either."""

    code = "release-object"


class CapacityError(PeftError):
    """The root holds as much as it may; what is no longer needed must be removed first."""

    code = "release-capacity"


class RootPoisonedError(PeftError):
    """A durable write failed, so what is on disk is not known: end the process and start again."""

    code = "release-poisoned"


class RootOwnedError(PeftError):
    """Another release is not finished; try again when it is."""

    code = "release-owned"


class RootBlockedError(PeftError):
    """A rollback failed, and no release may start before somebody has recovered it."""

    code = "release-blocked"


class AcceptedConflictError(PeftError):
    """What is deployed is not what the caller goes by; nothing was changed.

    Attributes:
        found: what is deployed.
    """

    code = "release-accepted"

    def __init__(self, text: str, *, found: DeploymentState) -> None:
        super().__init__(text)
        self.found = found


_PASSING = (FileChangedError, LockHeldError, PeftIoError, RootOwnedError, RootPoisonedError)


def may_pass(error: PeftError) -> bool:
    """Tell whether the same call can succeed later without anybody changing the release.

    Such a release waits. Everything else will be refused for ever, or until somebody has acted on the line.
    """
    return isinstance(error, _PASSING)
