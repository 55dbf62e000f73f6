r"""The outer form of every file of the journal: one header line, then a body of exactly the announced bytes.

::

    ticket-agent-journal/v1 sha256=<64 hex> bytes=<n>\n
    <n bytes: one JSON object and its final newline>

The digest is over the body's raw bytes as they are on disk, never over a value written again, so a later
version may write its JSON differently and still read the files of this one. The final newline belongs to the
body. Nothing may follow. A file's length proves nothing: after a power cut a file may have its full length
and hold only zeros.
"""

from __future__ import annotations

import json
import re
from enum import StrEnum
from hashlib import sha256
from typing import Any, NoReturn

from ticket_agent.journal.errors import RecordError

__all__ = [
    "Kind",
    "encode_json",
    "open_envelope",
    "other_version",
    "parse_body",
    "seal",
    "seal_text",
    "split_envelopes",
]

_HEADER = re.compile(rb"ticket-agent-([a-z]{1,16})/v1 sha256=([0-9a-f]{64}) bytes=([1-9][0-9]{0,7})\n")
_VERSION = re.compile(rb"ticket-agent-[a-z]{1,16}/v([0-9]{1,4}) ")
_MAX_HEADER = 128


class Kind(StrEnum):
    """What a file is; the word stands in its header."""

    RECORD = "journal"
    CURSOR = "cursor"
    GAP = "gap"
    TAKEOVER = "takeover"


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode_json(value: object) -> str:
    """Return ``value`` as it stands in a body.

    Raises:
        RecordError: the value cannot be written as JSON.
    """
    try:
        return _ENCODER.encode(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise RecordError(f"the value cannot be written as JSON: {error}") from None


def seal(kind: Kind, value: dict[str, Any]) -> bytes:
    """Return the file for ``value``.

    Raises:
        RecordError: the value cannot be written as JSON.
    """
    return seal_text(kind, encode_json(value))


def seal_text(kind: Kind, text: str) -> bytes:
    """Return the file for an object that is JSON already.

    Raises:
        RecordError: the text cannot be written as UTF-8.
    """
    try:
        body = text.encode() + b"\n"
    except UnicodeEncodeError as error:
        raise RecordError(f"the value cannot be written as JSON: {error}") from None
    digest = sha256(body).hexdigest()
    return f"ticket-agent-{kind}/v1 sha256={digest} bytes={len(body)}\n".encode() + body


def open_envelope(kind: Kind, data: bytes) -> tuple[bytes, int]:
    """Check the header and the digest; return the body and its offset.

    Raises:
        RecordError: with the reason (empty, zeros, torn, wrong digest, unknown version, ...) and the byte
            offset.
    """
    match = _HEADER.match(data)
    if match is None or match[1] != kind.value.encode():
        _refuse_header(kind, data)
    start = match.end()
    end = start + int(match[3])
    if len(data) < end:
        raise RecordError(
            f"torn: the header announces {end - start} bytes of body, {len(data) - start} are there",
            offset=len(data),
        )
    if len(data) > end:
        raise RecordError(f"{len(data) - end} bytes follow the end of the body", offset=end)
    body = data[start:]
    if sha256(body).hexdigest().encode() != match[2]:
        _refuse_digest(body, start)
    return body, start


def _refuse_header(kind: Kind, data: bytes) -> NoReturn:
    if not data:
        raise RecordError("the file is empty: it was cut off before its first byte reached the disk")
    if not data.strip(b"\0"):
        raise RecordError(f"the file is {len(data)} NUL bytes: its data never reached the disk")
    expected = f"ticket-agent-{kind}/v1 sha256=".encode()
    if (newer := other_version(kind, data)) is not None:
        raise RecordError(newer)
    if len(data) < _MAX_HEADER and b"\n" not in data and expected.startswith(data[: len(expected)]):
        raise RecordError(f"torn: the file ends inside its header after {len(data)} bytes", offset=len(data))
    wrong = next(
        (at for at, byte in enumerate(expected) if data[at : at + 1] != bytes([byte])), len(expected)
    )
    raise RecordError(f"the header is not that of a ticket-agent {kind} file", offset=wrong)


def other_version(kind: Kind, data: bytes) -> str | None:
    """Why this program cannot read a file that begins so, when it is of another version; else None."""
    version = _VERSION.match(data)
    if version is None or not data.startswith(f"ticket-agent-{kind}/".encode()) or version[1] == b"1":
        return None
    return f"written in format v{version[1].decode()}, and this program reads v1 only; use a newer program"


def _refuse_digest(body: bytes, start: int) -> NoReturn:
    kept = len(body.rstrip(b"\0"))
    if kept < len(body):
        raise RecordError(
            f"torn: the last {len(body) - kept} bytes are NUL; that data never reached the disk",
            offset=start + kept,
        )
    raise RecordError(
        "the body does not have the digest that the header announces: bytes were changed", offset=start
    )


def split_envelopes(kind: Kind, data: bytes) -> tuple[list[bytes], int]:
    """Cut concatenated files apart by their headers; digests are for the caller to check.

    Returns:
        The files, and how many leading bytes they cover: less than ``len(data)`` when the rest is not a whole
        file.
    """
    parts: list[bytes] = []
    at = 0
    while at < len(data):
        match = _HEADER.match(data, at)
        if match is None or match[1] != kind.value.encode():
            break
        end = match.end() + int(match[3])
        if end > len(data):
            break
        parts.append(data[at:end])
        at = end
    return parts, at


def _refuse_number(literal: str) -> NoReturn:
    raise RecordError(f"the body holds the number {literal[:32]}, and only integers are allowed")


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise RecordError("the body repeats a member of an object")
    return members


_PLAIN = json.JSONDecoder()
_STRICT = json.JSONDecoder(
    object_pairs_hook=_unique_members, parse_float=_refuse_number, parse_constant=_refuse_number
)


def parse_body(body: bytes, offset: int, *, thorough: bool = True) -> dict[str, Any]:
    """Parse a body as one JSON object with unique members and integers only, ended by one newline.

    Args:
        body: the bytes that the digest was checked over.
        offset: where the body begins in its file.
        thorough: also refuse repeated members and numbers that are no integers.

    Raises:
        RecordError: the offset is counted from the start of the file, where the body begins at ``offset``.
    """
    try:
        decoded = body.decode()
        value, end = (_STRICT if thorough else _PLAIN).raw_decode(decoded)
    except RecordError as error:
        raise RecordError(error.reason, offset=offset) from None
    except json.JSONDecodeError as error:
        at = offset + len(error.doc[: error.pos].encode())
        raise RecordError(f"the body is not JSON: {error.msg}", offset=at) from None
    except UnicodeDecodeError as error:
        raise RecordError("the body is not UTF-8", offset=offset + error.start) from None
    except RecursionError:
        raise RecordError("the body is nested too deeply", offset=offset) from None
    except ValueError:
        raise RecordError("the body holds a number that is too long", offset=offset) from None
    if not isinstance(value, dict):
        raise RecordError("the body is not an object", offset=offset)
    if decoded[end:] != "\n":
        at = offset + len(decoded[:end].encode())
        raise RecordError("the body's object is not followed by exactly one newline", offset=at)
    return value
