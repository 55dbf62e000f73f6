"""What interrupted work leaves behind in a registry or an export root, and what of it may go.

Finding looks at the tree, deciding is pure. A complete model is never a leftover, whoever put it there; nor
is anything that is not known.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.control import POINTER_FILE, STATE_FILE
from ticket_agent.peft.errors import AbsentError, NameRefusedError, PeftError
from ticket_agent.peft.manifest import MANIFEST_FILE, MODEL_FILES
from ticket_agent.peft.names import PARTIAL_SUFFIX, check_component, is_partial, is_staging, shown
from ticket_agent.peft.opened import Kind
from ticket_agent.peft.registry import AVAILABLE, Registry

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from ticket_agent.peft.directory import Directory

__all__ = [
    "MIN_AGE_S",
    "Choice",
    "Leftover",
    "Why",
    "choose",
    "find_in_exports",
    "find_in_registry",
    "is_unfinished_write",
]

MIN_AGE_S: Final = 3600
"""Seconds for which a leftover must not have been touched: not every tool on the registry takes its lock."""

_WRITTEN: Final = (*MODEL_FILES, MANIFEST_FILE, POINTER_FILE, STATE_FILE)
# Other tools call their temporaries after the file, with its extension or without.
_PARTIALS: Final = frozenset(
    name + PARTIAL_SUFFIX for file in _WRITTEN for name in (file, file.rpartition(".")[0] or file)
)


class Why(StrEnum):
    """What a leftover is; the values are words for people."""

    STAGING = "import or export that was not published"
    UNFINISHED = "import without a manifest"
    PARTIAL = "file that was not written to its end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """Something that interrupted work left.

    Attributes:
        path: the names that lead to it from the root.
        why: what it is.
        bytes: of its files together.
        touched_unix_ms: when it, or anything directly in it, was last changed in any way.
        foreign: a name in an unfinished import that no import gives, or None.
    """

    path: tuple[str, ...]
    why: Why
    bytes: int
    touched_unix_ms: int
    foreign: str | None = None

    @property
    def model(self) -> str | None:
        """The model whose directory it is, for an unfinished import."""
        return self.path[-1] if self.why is Why.UNFINISHED else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A leftover, and why it stays; it goes when there is no reason."""

    leftover: Leftover
    stays: str | None


def is_unfinished_write(name: str) -> bool:
    """Tell whether a name is that of a file of the registry whose writing was not finished, by any tool."""
    return is_partial(name) or name in _PARTIALS


def choose(
    leftovers: Iterable[Leftover],
    *,
    in_use: AbstractSet[str],
    keep: AbstractSet[str],
    now_ms: int,
    min_age_s: int = MIN_AGE_S,
) -> list[Choice]:
    """Decide about leftovers. Pure.

    Args:
        leftovers: what was found.
        in_use: models that the registry's control files name.
        keep: names of staging directories that operations still need.
        now_ms: the time, Unix milliseconds.
        min_age_s: what was touched within so many seconds stays, as does what was touched in the future.
    """
    return [
        Choice(leftover=found, stays=_reason(found, in_use, keep, now_ms - min_age_s * 1000))
        for found in leftovers
    ]


def _reason(found: Leftover, in_use: AbstractSet[str], keep: AbstractSet[str], latest_ms: int) -> str | None:
    if found.model is not None and found.model in in_use:
        return "the registry names it as its active or previous model"
    if found.foreign is not None:
        return f"{shown(found.foreign)} in it is not from an import"
    if found.path[-1] in keep:
        return "an operation still needs it"
    if found.touched_unix_ms > latest_ms:
        return "it was touched lately; its writer may be alive"
    return None


def find_in_registry(root: Directory) -> list[Leftover]:
    """Find everything that interrupted work left in a registry.

    A model's directory that cannot be listed is passed over.

    Raises:
        PeftError: the root or ``available`` cannot be listed.
    """
    found = []
    for name in root.names():
        status = root.status(name)
        if status is not None and stat.S_ISREG(status.st_mode) and is_unfinished_write(name):
            found.append(_file(status, (name,)))
    found += find_in_exports(root)
    with Registry.open(root) as registry:
        if registry.available is not None:
            for name in registry.available.names():
                if registry.available.kind(name) is Kind.DIR and _is_id(name):
                    found += _in_model(registry.available, name)
    return found


def find_in_exports(root: Directory) -> list[Leftover]:
    """Find the staging directories in an export root, or in a registry's.

    Raises:
        PeftError: the root cannot be listed.
    """
    found = []
    for name in root.names():
        if is_staging(name) and root.kind(name) is Kind.DIR:
            with suppress(AbsentError), root.open_dir(name) as folder:
                found.append(_directory(folder, (name,), Why.STAGING))
    return found


def _in_model(available: Directory, model: str) -> list[Leftover]:
    found = []
    with suppress(PeftError), available.open_dir(model) as folder:
        path = (AVAILABLE, model)
        if folder.kind(MANIFEST_FILE) is None:
            return [_directory(folder, path, Why.UNFINISHED)]
        for name in folder.names():
            status = folder.status(name)
            if status is not None and stat.S_ISREG(status.st_mode) and is_unfinished_write(name):
                found.append(_file(status, (*path, name)))
    return found


def _is_id(name: str) -> bool:
    try:
        check_component(name, what="the model")
    except NameRefusedError:
        return False
    return True


def _directory(folder: Directory, path: tuple[str, ...], why: Why) -> Leftover:
    statuses = [os.fstat(folder.fd)]
    names = folder.names()
    statuses += [status for name in names if (status := folder.status(name)) is not None]
    foreign = [name for name in names if name not in MODEL_FILES and not is_unfinished_write(name)]
    return Leftover(
        path=path,
        why=why,
        bytes=sum(status.st_size for status in statuses if stat.S_ISREG(status.st_mode)),
        touched_unix_ms=max(map(_touched_ms, statuses)),
        foreign=foreign[0] if foreign and why is Why.UNFINISHED else None,
    )


def _file(status: os.stat_result, path: tuple[str, ...]) -> Leftover:
    return Leftover(
        path=path, why=Why.PARTIAL, bytes=status.st_size, touched_unix_ms=_touched_ms(status), foreign=None
    )


def _touched_ms(status: os.stat_result) -> int:
    # The time of the last change of content can be set at will, that of the last change of anything cannot.
    return max(status.st_mtime_ns, status.st_ctime_ns) // 1_000_000
