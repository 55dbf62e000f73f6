"""A process that dies at a chosen change of a tree: nothing of it touches the tree from then on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
from agent_faults import Killed

from ticket_agent.peft import directory
from ticket_agent.peft.renaming import rename_new

if TYPE_CHECKING:
    from collections.abc import Callable

_CALLS = ("open", "mkdir", "write", "fsync", "rename", "unlink", "rmdir")


class DyingTree:
    """Within the ``with`` statement, death comes right before the n-th call, from 0, that changes a tree.

    Args:
        folder: the tree; calls elsewhere are not counted and go on.
        step: which change; one that never comes lets everything happen.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.dead = False
        self.made: list[str] = []
        self._folder = str(folder)
        self._step = step
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Self:
        for name in _CALLS:
            self._patch.setattr(os, name, self._mortal(name, getattr(os, name)))
        self._patch.setattr(directory, "rename_new", self._mortal("rename_new", rename_new))
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def _mortal(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self._is_below(arguments, options) and self._changes(name, arguments):
                if len(self.made) == self._step:
                    self.dead = True
                if self.dead:
                    raise Killed
                self.made.append(name)
            return function(*arguments, **options)

        return call

    @staticmethod
    def _changes(name: str, arguments: tuple[Any, ...]) -> bool:
        # Opening a lock may create it, which means nothing to anybody.
        return name != "open" or bool(arguments[1] & os.O_EXCL)

    def _is_below(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
        fd = options.get("dir_fd", options.get("src_dir_fd", arguments[0]))
        if not isinstance(fd, int):
            return False
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
        return path == self._folder or path.startswith(f"{self._folder}/")
