"""Removing what interrupted work left behind, under the locks of the roots."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ticket_agent.peft.control import read_control
from ticket_agent.peft.errors import PeftError, RegistryError
from ticket_agent.peft.leftovers import MIN_AGE_S, Choice, Why, choose, find_in_exports, find_in_registry
from ticket_agent.peft.locks import RootLock, locked
from ticket_agent.peft.manifest import MANIFEST_FILE

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.leftovers import Leftover

__all__ = ["Removal", "collect", "survey"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What became of a leftover.

    Attributes:
        choice: what was decided about it.
        problem: why it is still there although it was to go, or None.
    """

    choice: Choice
    problem: str | None = None


def survey(
    root: Directory,
    lock: RootLock,
    *,
    now_ms: int,
    keep: AbstractSet[str] = frozenset(),
    min_age_s: int = MIN_AGE_S,
) -> list[Choice]:
    """Decide what of a root may go, and change nothing.

    Args:
        root: of a registry or of exports.
        lock: the lock of that root; it tells what kind of root it is and is not taken.
        now_ms: the time, Unix milliseconds.
        keep: names of staging directories that operations still need.
        min_age_s: see :func:`choose`.

    Raises:
        PeftError: the root cannot be read. So it is when the control files cannot, because then nobody knows
            which models they name.
    """
    if lock is RootLock.REGISTRY:
        leftovers, in_use = find_in_registry(root), read_control(root).models
    else:
        leftovers, in_use = find_in_exports(root), frozenset[str]()
    return choose(leftovers, in_use=in_use, keep=keep, now_ms=now_ms, min_age_s=min_age_s)


def collect(
    root: Directory,
    lock: RootLock,
    *,
    now_ms: int,
    keep: AbstractSet[str] = frozenset(),
    min_age_s: int = MIN_AGE_S,
) -> list[Removal]:
    """Remove what may go, under the root's lock; arguments as for :func:`survey`.

    What cannot be removed stays, is told, and keeps nothing else from being removed.

    Raises:
        LockHeldError: somebody works on the root.
        PeftError: the root cannot be read. Nothing was removed.
    """
    with locked({lock: root}):
        choices = survey(root, lock, now_ms=now_ms, keep=keep, min_age_s=min_age_s)
        return [_removed(root, choice) for choice in choices]


def _removed(root: Directory, choice: Choice) -> Removal:
    if choice.stays is not None:
        return Removal(choice=choice)
    try:
        _remove(root, choice.leftover)
    except PeftError as error:
        return Removal(choice=choice, problem=str(error))
    return Removal(choice=choice)


def _remove(root: Directory, leftover: Leftover) -> None:
    *above, name = leftover.path
    with ExitStack() as opened:
        parent = root
        for step in above:
            parent = opened.enter_context(parent.open_dir(step))
        if leftover.why is Why.PARTIAL:
            parent.unlink(name)
        else:
            if leftover.why is Why.UNFINISHED:
                _require_unfinished(parent, name)
            parent.remove_tree(name)
        parent.sync()


def _require_unfinished(available: Directory, model: str) -> None:
    """A tool that does not take the lock may have finished the import since it was looked at."""
    with available.open_dir(model) as folder:
        if folder.kind(MANIFEST_FILE) is not None:
            raise RegistryError(f"model {model} has been finished meanwhile; it stays")
