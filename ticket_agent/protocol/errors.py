"""What the protocol refuses: one error per domain, each with a stable code and one line for the operator."""

from __future__ import annotations

from .redaction import redact_tickets

__all__ = [
    "ChunkError",
    "JsonError",
    "LeaseError",
    "ProtocolError",
    "RecordLineError",
    "ResultError",
    "SnapshotError",
    "SnapshotLimitError",
    "SpecError",
    "WorkerStateError",
    "one_line",
    "printable",
]

MAX_TEXT = 400
"""Longest error line, in characters; what is quoted from a peer is untrusted and may be long."""


class ProtocolError(Exception):
    """Bytes or values that the protocol does not allow.

    Attributes:
        code: stable name of the broken rule, for counters and scripts.
        member: dotted path of the JSON member (or the field of a record line) at fault; None when the whole
            line is at fault.
    """

    def __init__(self, text: str, *, code: str, member: str | None = None) -> None:
        super().__init__(one_line(text))
        self.code = code
        self.member = None if member is None else one_line(member)


class JsonError(ProtocolError):
    """Not one strict JSON object."""


class SpecError(ProtocolError):
    """A JSON object, but not a host ticket request."""


class ResultError(ProtocolError):
    """A JSON object, but not a host ticket result; or a result that cannot be built."""


class ChunkError(ProtocolError):
    """A broken C1 group, or a line too long to be sent as one."""


class WorkerStateError(ProtocolError):
    """Not a Worker state line, or not a Worker id."""


class LeaseError(ProtocolError):
    """A lease control line, name or number that the root would refuse."""


class RecordLineError(ProtocolError):
    """A malformed ``key=value`` record of the root."""


class SnapshotError(ProtocolError):
    """Not a host snapshot, its status, a step of its transfer or an enrolment that a receiver would take."""


class SnapshotLimitError(SnapshotError):
    """The same, because something is larger, or there is more of it, than the bounds allow."""


def one_line(text: str) -> str:
    """Escape what would break or forge a log line, and bound the rest."""
    line = printable(redact_tickets(text))
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 1]}…"


def printable(text: str) -> str:
    """Escape every character that is not printable, line breaks among them."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
