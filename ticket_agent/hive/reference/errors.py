"""What the root task answers when it does not do something."""

from __future__ import annotations

__all__ = [
    "LabError",
    "RefusalError",
    "buffer_full",
    "busy",
    "denied",
    "invalid_path",
    "invalid_payload",
]


class RefusalError(Exception):
    """A command was refused and changed nothing.

    Attributes:
        code: stable code of this class.
        reason: pressure class of the refusal: ``policy``, ``quota`` or ``busy``.
        detail: the short word after ``detail=``.
        error: the free text after ``error=``.
    """

    code = "hive-refusal"

    def __init__(self, reason: str, detail: str, error: str) -> None:
        super().__init__(f"refused: reason={reason} detail={detail} error={error}")
        self.reason = reason
        self.detail = detail
        self.error = error

    def line(self, verb: str, path: str) -> str:
        """Return the console's answer line (transports, grammar of replies)."""
        line = f"ERR {verb} reason={self.reason} detail={self.detail} path={path}"
        # Recorded consoles leave the free text out for a TAIL of a node that does not offer it.
        if verb == "TAIL" and self.detail == "invalid-path":
            return line
        return f"{line} error={self.error}"


class LabError(Exception):
    """The lab asked for something that no hive could be in; nothing was changed."""

    code = "hive-lab"


def invalid_path() -> RefusalError:
    """There is no such node, or it does not offer this verb."""
    return RefusalError("policy", "invalid-path", "invalid path")


def denied() -> RefusalError:
    """The session's role or the lifecycle state does not allow it."""
    return RefusalError("policy", "denied", "EPERM")


def invalid_payload() -> RefusalError:
    """The payload breaks a rule of its node."""
    return RefusalError("policy", "invalid-payload", "invalid payload")


def buffer_full() -> RefusalError:
    """A log or an answer has no room."""
    return RefusalError("quota", "buffer-full", "buffer full")


def busy() -> RefusalError:
    """Something else has to finish first."""
    return RefusalError("busy", "busy", "busy")
