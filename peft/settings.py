"""Where the PEFT actions work: the three roots, from the configuration and from nowhere else."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ticket_agent.peft.roots import open_root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ticket_agent.peft.directory import Directory

__all__ = ["PeftRoots"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftRoots:
    """The roots as configured. Nothing is opened before an action needs it, and everything anew each time.

    Attributes:
        registry: models, and which of them is active.
        export: exported jobs.
        adapter: adapters that can be imported.
        owner_uid: account of the service, which must own each root.
        looks_only: an observer leaves everything as it is, for commands that only read: it finishes nothing,
            takes nothing back and removes nothing.
    """

    registry: Path
    export: Path
    adapter: Path
    owner_uid: int
    looks_only: bool = False

    @contextmanager
    def open_registry(self, *, create: bool = False) -> Iterator[Directory]:
        """Open the registry's root for the body; the errors are those of :func:`open_root`."""
        with self._opened(self.registry, "registry root", create=create) as root:
            yield root

    @contextmanager
    def open_export(self, *, create: bool = False) -> Iterator[Directory]:
        """Open the root of the exports for the body; the errors are those of :func:`open_root`."""
        with self._opened(self.export, "export root", create=create) as root:
            yield root

    @contextmanager
    def open_adapter(self, *, create: bool = False) -> Iterator[Directory]:
        """Open the root of the adapters for the body; the errors are those of :func:`open_root`."""
        with self._opened(self.adapter, "adapter root", create=create) as root:
            yield root

    def _opened(self, path: Path, label: str, *, create: bool) -> Directory:
        return open_root(path, label=label, owner_uid=self.owner_uid, create=create)
