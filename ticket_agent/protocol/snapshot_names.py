"""Names in host snapshots: identifiers, entry paths, and the two rules there are for them."""

from __future__ import annotations

import re

from .errors import SnapshotError

__all__ = [
    "MAX_IDENTIFIER_BYTES",
    "MAX_PATH_BYTES",
    "MAX_PATH_PARTS",
    "MAX_SOURCE_BYTES",
    "check_entry_path",
    "check_provider",
    "check_source_id",
    "is_identifier",
]

MAX_IDENTIFIER_BYTES = 128
MAX_SOURCE_BYTES = 32
MAX_PATH_BYTES = 192
MAX_PATH_PARTS = 6

_IDENTIFIER = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]*")
_PUBLISHED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RULE = "ASCII letters, digits or . _ - without a leading - and without .."
_PUBLISHED_RULE = "ASCII letters, digits or . _ - that start with a letter or digit, without .."


def is_identifier(text: str, *, publishing: bool = False) -> bool:
    """Tell whether ``text`` is an identifier of 1 to 128 bytes.

    Args:
        text: what to look at.
        publishing: hold it to the rule of the strictest reader: the first character is a letter or a digit.
            Receivers also take a leading ``.`` or ``_``.
    """
    pattern = _PUBLISHED if publishing else _IDENTIFIER
    return len(text) <= MAX_IDENTIFIER_BYTES and ".." not in text and pattern.fullmatch(text) is not None


def check_provider(provider: str) -> str:
    """Return a provider's id.

    Raises:
        SnapshotError: it is no identifier that every reader takes.
    """
    if not is_identifier(provider, publishing=True):
        raise SnapshotError(
            f"provider {provider!r} must be 1..={MAX_IDENTIFIER_BYTES} {_PUBLISHED_RULE}",
            code="snapshot-provider",
            member="provider",
        )
    return provider


def check_source_id(source_id: str) -> str:
    """Return a source's id.

    Raises:
        SnapshotError: it is no identifier of at most 32 bytes that every reader takes.
    """
    if len(source_id) > MAX_SOURCE_BYTES or not is_identifier(source_id, publishing=True):
        raise SnapshotError(
            f"source {source_id!r} must be 1..={MAX_SOURCE_BYTES} {_PUBLISHED_RULE}",
            code="snapshot-source",
            member="source_id",
        )
    return source_id


def check_entry_path(path: str, *, publishing: bool = False) -> str:
    """Return an entry's path: 1 to 6 identifiers joined by ``/``, at most 192 bytes.

    Raises:
        SnapshotError: another path.
    """
    parts = path.split("/")
    good = (
        len(path) <= MAX_PATH_BYTES
        and len(parts) <= MAX_PATH_PARTS
        and all(part != "." and is_identifier(part, publishing=publishing) for part in parts)
    )
    if not good:
        raise SnapshotError(
            f"entry path {path[:MAX_PATH_BYTES]!r} must be 1..={MAX_PATH_PARTS} parts joined by /, each of"
            f" {_PUBLISHED_RULE if publishing else _RULE}, at most {MAX_PATH_BYTES} bytes in all",
            code="snapshot-path",
            member="entries",
        )
    return path
