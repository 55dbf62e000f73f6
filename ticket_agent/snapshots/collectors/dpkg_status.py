"""Versions of installed packages, from dpkg's status file as it stands on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from typing import BinaryIO

__all__ = ["MAX_STATUS_BYTES", "bounded_lines", "installed_versions"]

MAX_STATUS_BYTES: Final = 64 << 20
MAX_LINE_BYTES: Final = 65_536
"""What a line has beyond this is read as a line of its own; the fields that count here are short."""

_CHECK_EVERY: Final = 4096


def bounded_lines(source: BinaryIO, check: Callable[[], object]) -> Iterator[bytes]:
    """Yield the lines of a file, calling ``check`` now and then.

    Raises:
        ValueError: it has more than 64 MiB.
    """
    size = number = 0
    while line := source.readline(MAX_LINE_BYTES):
        size += len(line)
        if size > MAX_STATUS_BYTES:
            raise ValueError(f"more than {MAX_STATUS_BYTES} bytes")
        if number % _CHECK_EVERY == 0:
            check()
        number += 1
        yield line


def installed_versions(lines: Iterable[bytes], names: Collection[str]) -> dict[str, str]:
    """The versions of those of ``names`` that are installed, configuration left behind not counted. Pure."""
    wanted = {name.encode("ascii"): name for name in names}
    found: dict[str, str] = {}
    fields: dict[bytes, bytes] = {}

    def finish() -> None:
        name = wanted.get(fields.get(b"Package", b""))
        installed = fields.get(b"Status", b"").split()[-1:] == [b"installed"]
        version = fields.get(b"Version", b"")
        if name is not None and installed and version.isascii():
            found[name] = version.decode("ascii")
        fields.clear()

    for line in lines:
        if not line.strip():
            finish()
            continue
        key, colon, value = line.partition(b":")
        if colon and key in {b"Package", b"Status", b"Version"}:
            fields[key] = value.strip()
    finish()
    return found
