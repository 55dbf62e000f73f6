"""The directory of one phase: ``in``, which its starter writes, and ``out``, where it leaves what it made."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Self

from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.spelled import spell
from ticket_agent.peft.roots import open_to_read

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.peft.directory import Directory

__all__ = ["JobDirectory"]


class JobDirectory:
    """An open job directory; use it in a ``with`` statement.

    Attributes:
        path: the directory.
        inputs: ``in``.
        outputs: ``out``.

    Raises:
        RootRefusedError, AbsentError, FileRefusedError: it is not there, or is not what it must be.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        with open_to_read(path, label="job directory") as root:
            self.inputs: Final[Directory] = root.open_dir("in")
            try:
                self.outputs: Final[Directory] = root.open_dir("out")
            except BaseException:
                self.inputs.close()
                raise
        self.outputs.require_owned(os.geteuid())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.inputs.close()
        self.outputs.close()

    def leave(self, name: str, data: bytes) -> str:
        """Durably write a file below ``out``, all or nothing; return its digest."""
        self.outputs.write_file(name, data)
        return digest(data)

    def leave_members(self, name: str, members: dict[str, Any]) -> str:
        """Write an object in its one spelling; see :meth:`leave`."""
        return self.leave(name, spell(members))
