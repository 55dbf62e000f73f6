"""Tar archives in which the same content always gives the same bytes.

Headers hold neither owner nor time, only a path, a size and a mode for the owner. Such an archive has one
written form, so that it can be read without trusting it: what was read is written again and compared.
"""

from __future__ import annotations

import contextlib
import io
from typing import IO, TYPE_CHECKING, cast

from ticket_agent.journal.errors import JournalError

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterator

__all__ = ["ArchiveError", "Writer", "read_files", "write_files", "writing"]

_BLOCK = 512
_NAME = slice(0, 100)
_SIZE = slice(124, 135)
MAX_FILE_NAME = 100
"""Bytes of a path that a reader of ours takes; longer ones need a second place in the header."""


class ArchiveError(JournalError):
    """Not an archive as this module writes it."""

    code = "archive"


class Writer:
    """An archive that is being written; its paths are relative."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive

    def add_folder(self, path: str) -> None:
        """Add a directory, mode 0700."""
        import tarfile  # noqa: PLC0415 - start-up time

        info = tarfile.TarInfo(path)
        info.type, info.mode = tarfile.DIRTYPE, 0o700
        self._archive.addfile(info)

    def add_file(self, path: str, data: bytes) -> None:
        """Add a file, mode 0600."""
        import tarfile  # noqa: PLC0415 - start-up time

        # Owner, group and time stay at zero: they are those of whoever writes the archive, not the content's.
        info = tarfile.TarInfo(path)
        info.size, info.mode = len(data), 0o600
        self._archive.addfile(info, io.BytesIO(data))
        # The library keeps every header for readers; an archive may have any number of files.
        self._archive.members.clear()  # type: ignore[attr-defined]


@contextlib.contextmanager
def writing(stream: IO[bytes], *, compressed: bool) -> Iterator[Writer]:
    """Write an archive to a stream, which only has to be writable; it is complete when the block ends."""
    import gzip  # noqa: PLC0415 - start-up time
    import tarfile  # noqa: PLC0415 - start-up time

    target = stream
    with contextlib.ExitStack() as stack:
        if compressed:
            # Neither a name nor a time in its header: the same content gives the same bytes.
            packed = gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=target, mtime=0)
            target = cast("IO[bytes]", stack.enter_context(packed))
        archive = tarfile.open(fileobj=target, mode="w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
        yield Writer(stack.enter_context(archive))


def write_files(top: str, files: dict[str, bytes]) -> bytes:
    """Return an uncompressed archive of one folder and files in it, in the order of their paths."""
    stream = io.BytesIO()
    with writing(stream, compressed=False) as archive:
        archive.add_folder(top)
        for path in sorted(files):
            archive.add_file(f"{top}/{path}", files[path])
    return stream.getvalue()


def read_files(data: bytes, top: str, *, max_files: int) -> dict[str, bytes]:
    """Read what :func:`write_files` wrote.

    Raises:
        ArchiveError: a single byte differs from what it writes for the files that were found.
    """
    files: dict[str, bytes] = {}
    # The first header is that of the folder.
    offset = _BLOCK
    while header := data[offset : offset + _BLOCK].rstrip(b"\0"):
        name, size = header[_NAME].rstrip(b"\0"), header[_SIZE]
        if not name.isascii() or not size.isdigit() or len(files) == max_files:
            raise ArchiveError(f"the archive holds no file of a bundle at byte {offset}")
        start, length = offset + _BLOCK, _octal(size)
        files[name.decode("ascii").removeprefix(f"{top}/")] = data[start : start + length]
        offset = start + -(-length // _BLOCK) * _BLOCK
    if not _writable(files) or write_files(top, files) != data:
        raise ArchiveError("the archive is cut, was changed, or was not written by this program")
    return files


def _octal(digits: bytes) -> int:
    try:
        return int(digits, 8)
    except ValueError:
        raise ArchiveError("the archive holds a size that is no number") from None


def _writable(files: dict[str, bytes]) -> bool:
    """Tell whether each path can be written; the library refuses others in its own ways."""
    return all(path and len(path) < MAX_FILE_NAME and "\0" not in path for path in files)
