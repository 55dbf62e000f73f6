"""How text and time are written for people, on a terminal or on a page."""

from __future__ import annotations

__all__ = ["plain", "span", "stamp"]

_FINE_S = 10
"""Below this many seconds a tenth matters."""


def plain(text: str) -> str:
    """Return ``text`` with everything that is not printable escaped: it is shown and does no more.

    That includes what would turn the direction of writing or hide characters.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def span(ms: int) -> str:
    """A duration in the largest fitting unit."""
    seconds = ms / 1000
    if ms < 1000:  # noqa: PLR2004 - one second
        return f"{ms} ms"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= _FINE_S else f"{seconds:.1f} s"


def stamp(unix_ms: int) -> str:
    """UTC time in ISO form with milliseconds; a time no calendar holds as its number."""
    from datetime import UTC, datetime  # noqa: PLC0415 - start-up time

    try:
        moment = datetime.fromtimestamp(unix_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"unix {unix_ms} ms"
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{unix_ms % 1000:03d}Z"
