"""Building a tree out of sight and publishing it with one rename.

The name of a staging directory comes from the operation, so that whoever looks later finds what this
operation left behind, and nothing else. The lock of the root must be held all the time.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.directory import TREE_FS
from ticket_agent.peft.errors import AbsentError, PeftError, PeftIoError
from ticket_agent.peft.opened import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.peft.directory import Directory

__all__ = ["Attempt", "discard", "require_space", "staged", "staging_name"]

_STAGING_DIGITS: Final = 16
SPARE_BYTES: Final = 1024 * 1024
"""Room for directories and what else a file system writes beside the files."""


@dataclass(slots=True)
class Attempt:
    """How far an execution got, for whoever has to judge its failure.

    Attributes:
        publishing: False: nothing can have become visible, whatever failed. True: the disk tells.
    """

    publishing: bool = False


def staging_name(prefix: str, operation: str) -> str:
    """The staging directory of an operation: ``prefix`` and 16 hexadecimal digits."""
    return prefix + hashlib.sha256(operation.encode()).hexdigest()[:_STAGING_DIGITS]


@contextmanager
def staged(root: Directory, name: str) -> Iterator[Directory]:
    """Give the body an empty directory ``name`` of ``root``; what the body did not move away goes afterwards.

    What cannot be removed stays behind under its reserved name, which nobody takes for content.

    Raises:
        PeftError: something of that name is in the way, or the system failed.
    """
    discard(root, name)
    try:
        root.make_dir(name)
        with root.open_dir(name) as folder:
            yield folder
    finally:
        with suppress(PeftError, OSError):
            discard(root, name)


def discard(root: Directory, name: str) -> None:
    """Remove what an operation left under the name of its staging directory, if there is anything.

    Raises:
        PeftError: it cannot be removed.
    """
    kind = root.kind(name)
    if kind is None:
        return
    with suppress(AbsentError):
        if kind is Kind.DIR:
            root.remove_tree(name)
        else:
            root.unlink(name)
    root.sync()


def require_space(root: Directory, size: int) -> None:
    """Refuse to begin what would not find room for ``size`` bytes.

    Raises:
        PeftIoError: there is less, or the system failed.
    """
    try:
        free = TREE_FS.free_space(root.fd).bytes
    except OSError as error:
        raise PeftIoError(f"asking for the free space of {root.label}", error) from error
    if free < size + SPARE_BYTES:
        raise PeftIoError(
            f"writing {size} bytes to {root.label}", OSError(f"only {free} bytes are free; make room there")
        )
