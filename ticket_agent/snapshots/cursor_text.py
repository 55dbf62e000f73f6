"""The file ``cursor.json``: what a source has reserved so far (publisher, state directory)."""

from __future__ import annotations

from dataclasses import dataclass

from ticket_agent.protocol.errors import JsonError
from ticket_agent.protocol.json_strict import dumps, parse_object
from ticket_agent.protocol.tokens import U64_MAX
from ticket_agent.snapshots.publish_errors import CursorError, DamagedCursorError

__all__ = ["CURSOR_SCHEMA", "MAX_CURSOR_BYTES", "Cursor", "decode_cursor", "encode_cursor"]

CURSOR_SCHEMA = "cohesix-snapshot-cursor/v1"
MAX_CURSOR_BYTES = 1024
_MEMBERS = ("schema", "source_id", "epoch", "sequence", "observed_unix_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far one source has come in one epoch.

    Attributes:
        source_id: the source.
        epoch: the writer epoch.
        sequence: the last number that was reserved; 0 before the first.
        observed_unix_ms: the latest time of an observation with a reserved number; 0 before the first.
    """

    source_id: str
    epoch: int
    sequence: int = 0
    observed_unix_ms: int = 0


def encode_cursor(cursor: Cursor) -> bytes:
    """Return the file's bytes."""
    return dumps(
        {
            "schema": CURSOR_SCHEMA,
            "source_id": cursor.source_id,
            "epoch": cursor.epoch,
            "sequence": cursor.sequence,
            "observed_unix_ms": cursor.observed_unix_ms,
        }
    )


def decode_cursor(data: bytes, *, source_id: str, epoch: int) -> Cursor:
    """Read the file of a source and epoch.

    Raises:
        DamagedCursorError: it is no cursor.
        CursorError: it is another's.
    """
    try:
        document = parse_object(data, what="cursor.json", max_bytes=MAX_CURSOR_BYTES)
    except JsonError as error:
        raise _damaged(str(error)) from None
    if set(document) != set(_MEMBERS):
        raise _damaged(f"its members must be {', '.join(_MEMBERS)}")
    for name, wanted in (("schema", CURSOR_SCHEMA), ("source_id", source_id), ("epoch", epoch)):
        if document[name] != wanted or type(document[name]) is not type(wanted):
            raise CursorError(
                f"cursor.json belongs to something else: its {name} is {document[name]!r}, not {wanted!r};"
                " name the right state directory, or move the file back to where it came from"
            )
    for name in ("sequence", "observed_unix_ms"):
        if type(document[name]) is not int or not 0 <= document[name] <= U64_MAX:
            raise _damaged(f"its {name} must be an integer in 0..={U64_MAX}")
    return Cursor(
        source_id=source_id,
        epoch=epoch,
        sequence=document["sequence"],
        observed_unix_ms=document["observed_unix_ms"],
    )


def _damaged(why: str) -> DamagedCursorError:
    return DamagedCursorError(
        f"cursor.json is damaged: {why}. Start once with --continue-after the highest sequence that"
        " `snapshots list` shows for this source: the damaged file is then kept beside a new one"
    )
