"""How a record is transferred: the lines of a ``ctl`` node, one command per append (control grammar).

::

    begin bytes=<decimal> sha256=<64 lowercase hex>
    b64:<base64 text>
    end
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import SnapshotError
from .snapshot import snapshot_digest
from .tokens import SHA256_PATTERN

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "CHUNK_CHARACTERS",
    "MAX_PAYLOAD_BYTES",
    "Begin",
    "Chunk",
    "Command",
    "End",
    "decode_body",
    "encoded_characters",
    "parse_command",
    "transfer_lines",
]

MAX_PAYLOAD_BYTES = 2048
"""Longest payload of one console append, its newline included (transports, ECHO)."""
CHUNK_PREFIX = "b64:"
CHUNK_CHARACTERS = (MAX_PAYLOAD_BYTES - len(CHUNK_PREFIX) - 1) // 4 * 4
"""Base64 characters of one append: 2040, so that prefix, text and newline take 2045 bytes."""

_WHAT = "snapshot transfer"
_DECIMAL = re.compile(r"[1-9][0-9]{0,8}")
_SHA256 = re.compile(SHA256_PATTERN)


@dataclass(frozen=True, slots=True)
class Begin:
    """A transfer begins: how many bytes will come, and their digest."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of the record's base64 text; its alphabet is looked at when the transfer ends."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The transfer is complete."""


Command = Begin | Chunk | End


def parse_command(payload: str, *, max_bytes: int) -> Command:
    """Read one append to a ``ctl`` node.

    Stricter than the first receivers, as the document is: no repeated key, no sign, no upper-case digest.

    Args:
        payload: without its newline.
        max_bytes: longest record of the enrolment.

    Raises:
        SnapshotError: no command.
    """
    if "\n" in payload or "\r" in payload:
        raise _refused("holds more than one line; append one command at a time")
    if payload == "end":
        return End()
    if payload.startswith(CHUNK_PREFIX):
        if len(payload) == len(CHUNK_PREFIX):
            raise _refused("has an empty chunk")
        return Chunk(payload.removeprefix(CHUNK_PREFIX))
    if payload.startswith("begin "):
        return _begin(payload.removeprefix("begin "), max_bytes)
    raise _refused("has an unknown command; it is begin, b64: or end")


def encoded_characters(size: int) -> int:
    """How long the base64 text of ``size`` bytes is, padding included."""
    return 4 * ((size + 2) // 3)


def decode_body(text: str, begun: Begin) -> bytes:
    """Return the record that was transferred as ``text``.

    Raises:
        SnapshotError: not canonical base64, or not the bytes that ``begin`` announced.
    """
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (ValueError, UnicodeEncodeError):
        raise _refused("is not standard base64") from None
    # The decoder lets unused bits of the last character pass.
    if base64.b64encode(data).decode("ascii") != text:
        raise _refused("is not canonical base64")
    if len(data) != begun.bytes:
        raise _refused(f"has {len(data)} bytes; {begun.bytes} were announced")
    if snapshot_digest(data) != begun.sha256:
        raise _refused("does not have the digest that was announced")
    return data


def transfer_lines(data: bytes, *, chunk_characters: int = CHUNK_CHARACTERS) -> Iterator[str]:
    """Yield the appends that transfer ``data``, in order.

    Args:
        data: the canonical record.
        chunk_characters: base64 characters of one append, at least 1.
    """
    yield f"begin bytes={len(data)} sha256={snapshot_digest(data)}"
    text = base64.b64encode(data).decode("ascii")
    for start in range(0, len(text), chunk_characters):
        yield f"{CHUNK_PREFIX}{text[start : start + chunk_characters]}"
    yield "end"


def _begin(rest: str, max_bytes: int) -> Begin:
    fields: dict[str, str] = {}
    for token in rest.split():
        key, separator, value = token.partition("=")
        if not separator or key not in {"bytes", "sha256"} or key in fields:
            raise _refused("begins with something else than bytes= and sha256=, each once")
        fields[key] = value
    if len(fields) != 2:  # noqa: PLR2004 - both of them
        raise _refused("begins without bytes= or without sha256=")
    size = int(fields["bytes"]) if _DECIMAL.fullmatch(fields["bytes"]) else 0
    if not 1 <= size <= max_bytes:
        raise _refused(f"announces bytes={fields['bytes'][:24]}; it must be in 1..={max_bytes}")
    if _SHA256.fullmatch(fields["sha256"]) is None:
        raise _refused("announces a digest that is not 64 lowercase hexadecimal digits")
    return Begin(size, fields["sha256"])


def _refused(why: str) -> SnapshotError:
    return SnapshotError(f"{_WHAT} {why}", code="snapshot-transfer")
