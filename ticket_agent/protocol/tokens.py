"""The token rule and the two other shapes of names that travel in tickets."""

from __future__ import annotations

import re

from .errors import ProtocolError, SpecError

__all__ = [
    "MAX_TOKEN_BYTES",
    "MAX_WORKER_ID_BYTES",
    "SHA256_PATTERN",
    "TOKEN_PATTERN",
    "U8_MAX",
    "U16_MAX",
    "U32_MAX",
    "U64_MAX",
    "check_sha256",
    "check_token",
    "is_token",
]

MAX_TOKEN_BYTES = 128
MAX_WORKER_ID_BYTES = 32

U8_MAX = 2**8 - 1
U16_MAX = 2**16 - 1
U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1

TOKEN_PATTERN = r"[A-Za-z0-9._:][A-Za-z0-9._:-]*"  # noqa: S105 - no secret
SHA256_PATTERN = r"[0-9a-f]{64}"

_TOKEN = re.compile(TOKEN_PATTERN)
_SHA256 = re.compile(SHA256_PATTERN)


def is_token(value: object, *, max_bytes: int = MAX_TOKEN_BYTES) -> bool:
    """Tell whether ``value`` keeps the token rule.

    A token is ASCII letters, digits and ``. - _ :``, 1 to ``max_bytes`` bytes, with no leading ``-``.
    """
    return isinstance(value, str) and len(value) <= max_bytes and _TOKEN.fullmatch(value) is not None


def check_token(
    value: object,
    *,
    member: str,
    max_bytes: int = MAX_TOKEN_BYTES,
    error: type[ProtocolError] = SpecError,
) -> str:
    """Return ``value`` if it is a token (host tickets: token rule).

    Blanks around a token are refused rather than trimmed: the untrimmed text would be another identity.

    Raises:
        ProtocolError: of the class ``error``, naming ``member``.
    """
    if isinstance(value, str) and is_token(value, max_bytes=max_bytes):
        return value
    raise error(
        f"{member} must be 1..={max_bytes} ASCII letters, digits or . - _ : without a leading -",
        code="token",
        member=member,
    )


def check_sha256(value: object, *, member: str, error: type[ProtocolError] = SpecError) -> str:
    """Return ``value`` if it is a SHA-256 as 64 lowercase hexadecimal digits.

    Raises:
        ProtocolError: of the class ``error``, naming ``member``.
    """
    if isinstance(value, str) and _SHA256.fullmatch(value) is not None:
        return value
    raise error(
        f"{member} must be a SHA-256 of 64 lowercase hexadecimal digits", code="sha256", member=member
    )
