"""What a power cut may leave of one directory, worked out from a log of the calls at the seam.

Two extremes at every moment are enough to tell a store that forgets a sync, or syncs too late, from one that
does not: a disk that kept none of the names that were not forced to it, and one that kept all of them. Either
keeps only data that was forced, and zeros in place of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from journal_support import Op


@dataclass(frozen=True)
class Cut:
    """The directory after a cut.

    Attributes:
        files: content by name.
        done: marks ``done`` so far: steps that had returned.
        begun: marks ``begin`` so far.
    """

    files: dict[str, bytes]
    done: int
    begun: int


class _Directory:
    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.forced: list[int] = []
        self.live: dict[str, int] = {}
        self.durable: dict[str, int] = {}

    def do(self, op: Op) -> None:
        match op.name:
            case "create":
                self.live[op.file] = len(self.data)
                self.data.append(b"")
                self.forced.append(0)
            case "write":
                self.data[self.live[op.file]] += op.data
            case "fsync":
                inode = next(at for name, at in self.live.items() if name == op.file)
                self.forced[inode] = len(self.data[inode])
            case "rename":
                self.live[op.target] = self.live.pop(op.file)
            case "link":
                self.live[op.target] = self.live[op.file]
            case "unlink":
                del self.live[op.file]
            case "fsync_dir":
                self.durable = dict(self.live)

    def left(self, names: dict[str, int]) -> dict[str, bytes]:
        return {
            name: self.data[inode][: self.forced[inode]].ljust(len(self.data[inode]), b"\0")
            for name, inode in names.items()
        }


def cuts(log: Iterable[Op]) -> Iterator[Cut]:
    """Both extremes after every call of a log."""
    directory, done, begun = _Directory(), 0, 0
    for op in log:
        begun += op.name == "begin"
        done += op.name == "done"
        directory.do(op)
        for names in (directory.durable, directory.live):
            yield Cut(files=directory.left(names), done=done, begun=begun)
