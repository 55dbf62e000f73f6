"""Removing single things of a root of releases.

Directories are moved out of the way before they are emptied, so that a process that dies half-way leaves
nothing that could be taken for what it was.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.names import IMPORT_STAGING, is_staging, new_staging_name
from ticket_agent.peft.opened import Kind
from ticket_agent.peft.release.layout import SERVERS
from ticket_agent.peft.release.server_glance import RECORD_SUFFIX, RUN_SUFFIX

if TYPE_CHECKING:
    from ticket_agent.peft.directory import Directory

__all__ = ["Item", "Removal", "What", "server_parts"]


class What(StrEnum):
    """Kinds of things that can go, in the order in which they do."""

    OPERATION = "operation"
    SERVER = "server"
    BUNDLE = "bundle"
    OBJECT = "object"
    LEFTOVER = "leftover"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing.

    Attributes:
        what: of which kind.
        name: of the object, bundle, operation, server.
        bytes: that it takes.
        stays: why it stays although it could have been expected to go, or None: it goes.
        problem: why it could not be removed, or None.
    """

    what: What
    name: str
    bytes: int
    stays: str | None = None
    problem: str | None = None


def server_parts(launch_id: str) -> tuple[str, str, str]:
    """What a server has; the record goes last, so that its launch id is not used again half-way."""
    return f"{launch_id}{RUN_SUFFIX}", launch_id, f"{launch_id}{RECORD_SUFFIX}"


class Removal:
    """Removes items of one root; use it in a ``with`` statement."""

    def __init__(self, root: Directory) -> None:
        self._root: Final = root
        self._closing: Final = ExitStack()
        self._folders: Final[dict[str, Directory]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._closing:
            for folder in self._folders.values():
                folder.sync()

    def remove(self, item: Item) -> Item:
        """Remove a thing; what failed is told by the item that is returned."""
        try:
            match item.what:
                case What.OPERATION:
                    self._tree("operations", item.name)
                case What.BUNDLE:
                    self._tree("bundles", item.name)
                case What.OBJECT:
                    self._folder("objects").unlink(item.name)
                case What.SERVER:
                    for part in server_parts(item.name):
                        self._tree(SERVERS, part)
                case What.LEFTOVER:
                    folder, _, name = item.name.partition("/")
                    self._tree(folder, name)
        except PeftError as error:
            return Item(what=item.what, name=item.name, bytes=item.bytes, problem=str(error))
        return item

    def _folder(self, name: str) -> Directory:
        if name not in self._folders:
            self._folders[name] = self._closing.enter_context(self._root.open_dir(name))
        return self._folders[name]

    def _tree(self, folder: str, name: str) -> None:
        directory = self._folder(folder)
        kind = directory.kind(name)
        if kind is None:
            return
        if kind is not Kind.DIR:
            directory.unlink(name)
            return
        if not is_staging(name):
            # From here on it is nothing that anybody could take for what it was.
            unfinished = new_staging_name(IMPORT_STAGING)
            directory.rename(name, directory, unfinished, replace=False)
            name = unfinished
        directory.remove_tree(name)
