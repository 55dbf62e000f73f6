r"""The two spellings of release documents, and their digests.

Every document but one is *canonical*: members sorted by name, no blanks, ASCII with ``\u`` escapes. The
release request is *ordered*: members in the order of its definition, no blanks, UTF-8 as it is. In both, a
value has exactly one spelling, and bytes that spell it in another way are refused. So a digest of bytes and a
digest of a value are the same thing.

Numbers with a fraction are held to the range in which every program that takes part prints them alike: 0, or
from 0.0001 to below 1e16 in size. Outside of it some write ``1e-05`` and others ``0.00001``.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, Final

from ticket_agent.peft.release.document_error import DocumentError, reading
from ticket_agent.protocol.errors import JsonError
from ticket_agent.protocol.json_strict import dumps, parse_array, parse_object
from ticket_agent.protocol.tokens import U64_MAX

__all__ = [
    "FLOAT_BELOW",
    "FLOAT_FROM",
    "MAX_JSON_BYTES",
    "check_float",
    "decode_array",
    "decode_object",
    "decode_ordered",
    "digest",
    "digest_of",
    "encode",
    "encode_ordered",
    "require_spelling",
]

MAX_JSON_BYTES: Final = 262_144
"""Of any document."""
FLOAT_FROM: Final = 1e-4
FLOAT_BELOW: Final = 1e16

_I64_MIN: Final = -(2**63)
_MAX_DEPTH: Final = 32
"""Containers in one another; our documents have at most five."""
_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def encode(value: object) -> bytes:
    """Return the canonical spelling of a value of JSON.

    Raises:
        DocumentError: it has none: a float out of range, an integer that is no i64 or u64, a lone surrogate,
            a member's name that is no string, or a type that JSON does not have.
    """
    _check(value, 0)
    return _ENCODER.encode(value).encode("ascii")


def encode_ordered(value: object) -> bytes:
    """Return the ordered spelling of a value of JSON.

    Raises:
        DocumentError: as :func:`encode`.
    """
    _check(value, 0)
    return dumps(value)


def decode_object(data: bytes, *, what: str, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a canonical document that is an object.

    Raises:
        DocumentError: anything else; the line begins with ``what``.
    """
    with reading(what):
        value = parse_object(data, what="the document", max_bytes=max_bytes)
        require_spelling(data, encode(value))
    return value


def decode_array(data: bytes, *, what: str, max_bytes: int = MAX_JSON_BYTES) -> list[Any]:
    """Read a canonical document that is an array.

    Raises:
        DocumentError: anything else; the line begins with ``what``.
    """
    with reading(what):
        value = parse_array(data, what="the document", max_bytes=max_bytes)
        require_spelling(data, encode(value))
    return value


def decode_ordered(data: bytes, *, max_bytes: int) -> dict[str, Any]:
    """Read an object whose spelling the caller checks against the value that it makes of it.

    Raises:
        DocumentError: not one strict JSON object of at most ``max_bytes``.
    """
    try:
        return parse_object(data, what="the document", max_bytes=max_bytes)
    except JsonError as error:
        raise DocumentError(str(error), rule=error.code) from None


def require_spelling(data: bytes, wanted: bytes) -> None:
    """Refuse bytes that spell their own value in another way.

    Raises:
        DocumentError: with the first byte that differs.
    """
    if data != wanted:
        pairs = zip(data, wanted, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(data), len(wanted)))
        raise DocumentError(
            f"is not spelled in its one form from byte {at} on (order of members, blanks, escapes, numbers);"
            " write it again with the tool that makes it",
            rule="release-input-binding",
        )


def digest(data: bytes) -> str:
    """Return the SHA-256 of bytes in 64 lowercase hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def digest_of(value: object) -> str:
    """Return the SHA-256 of the canonical spelling of a value of JSON.

    Raises:
        DocumentError: as :func:`encode`.
    """
    return digest(encode(value))


def _check(value: object, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise DocumentError(f"nests more than {_MAX_DEPTH} containers", rule="json-depth")
    if isinstance(value, list | tuple):
        for item in value:
            _check(item, depth + 1)
    elif isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise DocumentError(f"has a member named by a {type(name).__name__}", rule="json-type")
            _check_text(name)
            _check(item, depth + 1)
    else:
        _check_scalar(value)


def _check_scalar(value: object) -> None:
    match value:
        case None | bool():
            return
        case str():
            _check_text(value)
        case int():
            if not _I64_MIN <= value <= U64_MAX:
                raise DocumentError("has an integer outside i64::MIN..=u64::MAX", rule="json-number")
        case float():
            check_float(value)
        case _:
            raise DocumentError(f"has a value of type {type(value).__name__}", rule="json-type")


def check_float(value: float) -> None:
    """Refuse a number that not every program prints alike.

    Raises:
        DocumentError: it is NaN, infinite, -0, below ``FLOAT_FROM`` in size or not below ``FLOAT_BELOW``.
    """
    size = abs(value)
    negative_zero = size == 0 and math.copysign(1, value) < 0
    if negative_zero or not (size == 0 or FLOAT_FROM <= size < FLOAT_BELOW):
        raise DocumentError(
            f"has the number {value!r}, which not every program prints alike;"
            " use 0.0 or a size from 0.0001 to below 1e16",
            rule="json-number",
        )


def _check_text(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise DocumentError("has text with a lone surrogate", rule="json-surrogate") from None
