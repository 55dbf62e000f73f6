"""The roots, opened and locked for one action.

Within an action a root goes by its role and not by its path: what an action says is sent to the hive, which
has no business with the paths of this host, and a line has no room for them.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ticket_agent.peft.directory import Directory
from ticket_agent.peft.errors import FileRefusedError, RootRefusedError
from ticket_agent.peft.locks import RootLock, locked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ticket_agent.peft.settings import PeftRoots

__all__ = ["ImportTrees", "import_trees", "locked_exports", "locked_registry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportTrees:
    """What an import reads and writes."""

    registry: Directory
    adapters: Directory
    exports: Directory


@contextmanager
def import_trees(roots: PeftRoots, *, wait_s: float = 0.0) -> Iterator[ImportTrees]:
    """Open all three roots and hold their locks for the body.

    Args:
        roots: the roots.
        wait_s: how long to go on trying for the locks, in seconds.

    Raises:
        RootRefusedError: a root is not acceptable, or something that is no lock lies in a lock's place.
        LockHeldError: somebody else works on one of them.
        PeftError: the system failed.
    """
    with ExitStack() as opened:
        trees = ImportTrees(
            registry=_called("registry", opened.enter_context(roots.open_registry())),
            adapters=_called("adapters", opened.enter_context(roots.open_adapter())),
            exports=_called("exports", opened.enter_context(roots.open_export())),
        )
        locks = {
            RootLock.REGISTRY: trees.registry,
            RootLock.ADAPTER: trees.adapters,
            RootLock.EXPORT: trees.exports,
        }
        opened.enter_context(_held(locks, wait_s))
        yield trees


@contextmanager
def locked_registry(roots: PeftRoots, *, wait_s: float = 0.0) -> Iterator[Directory]:
    """Open the registry's root and hold its lock for the body; errors as for :func:`import_trees`."""
    with roots.open_registry() as root:
        registry = _called("registry", root)
        with _held({RootLock.REGISTRY: registry}, wait_s):
            yield registry


@contextmanager
def locked_exports(roots: PeftRoots, *, wait_s: float = 0.0) -> Iterator[Directory]:
    """Open the root of the exports and hold its lock for the body; errors as for :func:`import_trees`."""
    with roots.open_export() as root:
        exports = _called("exports", root)
        with _held({RootLock.EXPORT: exports}, wait_s):
            yield exports


@contextmanager
def _held(locks: Mapping[RootLock, Directory], wait_s: float) -> Iterator[None]:
    with ExitStack() as held:
        try:
            held.enter_context(locked(locks, wait_s=wait_s))
        except FileRefusedError as error:
            # What lies there instead of the lock says nothing about the request. Somebody has to remove it.
            raise RootRefusedError(str(error)) from error
        yield


def _called(role: str, root: Directory) -> Directory:
    """The same open directory under another label; whoever opened it closes it."""
    return Directory(root.fd, role)
