"""Removing a directory's content without ever leaving it.

The tree is walked twice. The first walk only looks, so that a tree which is not one of ours is refused whole
instead of being half removed.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.errors import FileRefusedError
from ticket_agent.peft.limits import MAX_TREE_DEPTH, MAX_TREE_ENTRIES
from ticket_agent.peft.mounts import mount_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["remove_tree"]

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(fd: int, label: str) -> None:
    """Remove everything in the open directory ``fd``, but not the directory itself.

    Raises:
        FileRefusedError: the tree has more levels than ``MAX_TREE_DEPTH`` or more entries than
            ``MAX_TREE_ENTRIES``, or another file system is mounted in it. Nothing was removed.
        OSError: the system failed; some entries may be gone.
    """
    _Walk(label, mount_of(fd), remove=False).level(fd, 1)
    _Walk(label, mount_of(fd), remove=True).level(fd, 1)


class _Walk:
    def __init__(self, label: str, mount: tuple[int, str], *, remove: bool) -> None:
        self._label = label
        self._mount = mount
        self._remove = remove
        self._entries = 0

    def level(self, fd: int, depth: int) -> None:
        for name in self._names(fd):
            if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                if self._remove:
                    os.unlink(name, dir_fd=fd)
                continue
            if depth == MAX_TREE_DEPTH:
                raise FileRefusedError(
                    f"{self._label} is deeper than {MAX_TREE_DEPTH} levels; look at it and remove it by hand"
                )
            with _opened(fd, name) as child:
                if mount_of(child) != self._mount:
                    raise FileRefusedError(f"{self._label} has a mount point in it; unmount it first")
                self.level(child, depth + 1)
            if self._remove:
                os.rmdir(name, dir_fd=fd)

    def _names(self, fd: int) -> list[str]:
        names = []
        with _opened(fd, ".") as listing, os.scandir(listing) as entries:
            for entry in entries:
                self._entries += 1
                if self._entries > MAX_TREE_ENTRIES:
                    raise FileRefusedError(
                        f"{self._label} has more than {MAX_TREE_ENTRIES} entries;"
                        " look at it and remove it by hand"
                    )
                names.append(entry.name)
        return names


@contextmanager
def _opened(fd: int, name: str) -> Iterator[int]:
    child = os.open(name, _DIRECTORY, dir_fd=fd)
    try:
        yield child
    finally:
        os.close(child)
