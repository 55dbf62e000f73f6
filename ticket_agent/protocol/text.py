"""Cutting and flattening of untrusted text, without ever splitting a character."""

from __future__ import annotations

import re

__all__ = ["has_control", "prepare_message", "single_line", "trim", "truncate_utf8"]

WHITE_SPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"  # noqa: E501 - one set
"""Unicode's White_Space property. ``str.strip()`` would also take U+001C..U+001F, which the root keeps."""

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def trim(text: str) -> str:
    """Return ``text`` without the white space around it."""
    return text.strip(WHITE_SPACE)


def has_control(text: str) -> bool:
    """Tell whether ``text`` holds a control character (Unicode Cc, so DEL and U+0080..U+009F count)."""
    return _CONTROL.search(text) is not None


def truncate_utf8(text: str, max_bytes: int) -> str:
    """Return the longest beginning of ``text`` that takes at most ``max_bytes`` bytes of UTF-8."""
    if len(text) * 4 <= max_bytes:
        return text
    data = text.encode("utf-8")
    if len(data) <= max_bytes:
        return text
    return data[: max(max_bytes, 0)].decode("utf-8", "ignore")


def single_line(text: str, max_bytes: int) -> str:
    """Return ``text`` as one trimmed line of at most ``max_bytes`` bytes; it may come out empty.

    Each control character becomes one blank and each lone surrogate U+FFFD, so that any text of a provider
    (process output above all) can be shown and sent.
    """
    return truncate_utf8(trim(_flatten(text)), max_bytes)


def prepare_message(text: str | None) -> str | None:
    """Prepare a result's message: trim, then turn every control character into one blank.

    Emptiness is tested before the replacement, so a message of only NUL is one blank and not absent
    (host tickets, results: message).
    """
    if text is None:
        return None
    trimmed = trim(text)
    return _flatten(trimmed) if trimmed else None


def _flatten(text: str) -> str:
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", _CONTROL.sub(" ", text))
