"""Reading a small file that others replace as a whole at any time, without holding their lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ticket_agent.peft.errors import FileChangedError

if TYPE_CHECKING:
    from ticket_agent.peft.directory import Directory

__all__ = ["read_replaced"]

_TRIES: Final = 16


def read_replaced(directory: Directory, name: str, *, max_bytes: int) -> bytes:
    """Return the content that the file has, or had a moment ago; whoever replaces it meanwhile is no fault.

    Raises:
        AbsentError: it does not exist, or was removed meanwhile.
        FileChangedError: it is replaced faster than it can be read.
        PeftError: as :meth:`Directory.read_file`.
    """
    for _ in range(_TRIES):
        try:
            return directory.read_file(name, max_bytes=max_bytes)
        except FileChangedError:
            # It was replaced between opening and reading it; the next one is as good.
            continue
    return directory.read_file(name, max_bytes=max_bytes)
