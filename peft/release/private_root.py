"""The private root of the releases: everything that they store, in one directory that is nobody else's.

```
<root>/                     0700
  lock                      held by whoever works in the root
  objects/<sha256>          documents, files of bundles, reports
  bundles/<sha256>/         bundles as directories
  operations/<operation id>/
  accepted.json             what is deployed; changed by compare and set alone
  runtime.json              what the server loads
  serving.json              which server answers, and where
  active-release.json       the release that is not finished
  release-blocked.json      why no release may start
```
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final, Self

from ticket_agent.peft.errors import FileRefusedError, RootRefusedError
from ticket_agent.peft.locks import RootLock, lock_holder, locked
from ticket_agent.peft.names import is_partial, shown
from ticket_agent.peft.release.cas import ObjectStore, StoreLimits
from ticket_agent.peft.release.control_files import ControlFiles
from ticket_agent.peft.release.guard import Guard
from ticket_agent.peft.release.materialise import materialise, sweep_bundles
from ticket_agent.peft.release.root_errors import CapacityError
from ticket_agent.peft.release.rules import check_operation_id
from ticket_agent.peft.release.serving_pointer import PointerFile
from ticket_agent.peft.roots import open_root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.release.bundle import BundleManifest

__all__ = ["MAX_OPERATIONS", "PrivateRoot"]

MAX_OPERATIONS: Final = 256
LABEL: Final = "release root"


class PrivateRoot:
    """An open root; close it, or use it in a ``with`` statement.

    Reading is possible at any time. Whoever changes something holds :meth:`locked`.

    Attributes:
        location: its absolute path.
        objects: the object store.
        control: what is deployed, and the markers.
        pointer: which server answers.
    """

    def __init__(
        self,
        root: Directory,
        *,
        location: str,
        objects: Directory,
        bundles: Directory,
        operations: Directory,
        limits: StoreLimits,
    ) -> None:
        self.location: Final = location
        self._root = root
        self._bundles = bundles
        self._operations = operations
        self._guard = Guard()
        self.objects: Final = ObjectStore(objects, self._guard, limits)
        self.control: Final = ControlFiles(root, self._guard)
        self.pointer: Final = PointerFile(root, self._guard)
        self._closing = (objects, bundles, operations, root)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        create: bool,
        owner_uid: int | None = None,
        limits: StoreLimits | None = None,
    ) -> Self:
        """Open a root and the three directories in it.

        Args:
            path: absolute and canonical: what it says is where the root is.
            create: make what is missing, with mode 0700.
            owner_uid: the account that the root must belong to; by default the one that runs this.
            limits: how much the object store may hold.

        Raises:
            RootRefusedError: the path is not canonical, leads through a link, or the root is open to others.
            FileRefusedError: a directory in it is a link, open to others, or missing.
            PeftIoError: the system failed.
        """
        location = os.fspath(path)
        if location != "/" + "/".join(part for part in location.split("/") if part):
            raise RootRefusedError(
                f"{LABEL} {shown(location)} is not a plain absolute path; write it without // and /"
            )
        owner = os.geteuid() if owner_uid is None else owner_uid
        with ExitStack() as opened:
            root = opened.enter_context(
                open_root(location, label=LABEL, owner_uid=owner, create=create, private=True)
            )
            parts = {}
            for name in ("objects", "bundles", "operations"):
                parts[name] = opened.enter_context(root.open_dir(name, create=create))
                parts[name].require_owned(owner)
            made = cls(root, location=location, limits=limits or StoreLimits(), **parts)
            opened.pop_all()
        return made

    def close(self) -> None:
        """Close the directories."""
        for directory in self._closing:
            directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def locked(self, *, wait_s: float = 0.0) -> Iterator[None]:
        """Hold the root's lock for the body.

        Raises:
            LockHeldError: somebody else works in the root; try again later.
        """
        with locked({RootLock.RELEASE: self._root}, wait_s=wait_s):
            yield

    def lock_holder(self) -> tuple[int | None, str | None] | None:
        """Who holds the lock, process id and command, as far as the kernel tells; None: nobody is known to.

        The lock is not tried, so nobody is disturbed.
        """
        found = lock_holder(self._root, RootLock.RELEASE)
        return None if found == (None, None) else found

    def sweep(self) -> int:
        """Remove what interrupted processes have left unfinished; return how many entries.

        The root's lock must be held, and no phase of a release may be running.
        """
        unfinished = [name for name in self._root.names() if is_partial(name)]
        with self._guard.changing():
            for name in unfinished:
                self._root.unlink(name)
        return len(unfinished) + self.objects.sweep() + sweep_bundles(self._bundles, self._guard)

    # -- bundles and operations ---------------------------------------------------------------------------

    def materialise(self, sha256: str) -> BundleManifest:
        """Have a bundle as a directory at :meth:`bundle_path`; see :func:`materialise`."""
        return materialise(self.objects, self._bundles, self._guard, sha256)

    def bundle_path(self, sha256: str) -> str:
        """Where other programs find a bundle that was materialised."""
        return f"{self.location}/bundles/{sha256}"

    def operation(self, operation_id: str, *, create: bool = False) -> Directory:
        """Open the directory of one operation.

        Raises:
            DocumentError: no operation can have this id.
            AbsentError: it does not exist.
            CapacityError: it would be one too many.
            FileRefusedError: it is no directory.
        """
        check_operation_id(operation_id)
        if not create or self._operations.kind(operation_id) is not None:
            return self._operations.open_dir(operation_id)
        if len(self._operations.names()) >= MAX_OPERATIONS:
            raise CapacityError(
                f"{self._operations.label} has {MAX_OPERATIONS} operations; remove what is no longer needed"
            )
        with self._guard.changing():
            return self._operations.open_dir(operation_id, create=True)

    def write_operation_file(self, operation_id: str, name: str, data: bytes) -> None:
        """Durably let a file of an operation hold ``data``; the same again changes nothing.

        Raises:
            PeftError: as :meth:`operation`, or the file cannot be written.
        """
        with self.operation(operation_id, create=True) as directory, self._guard.changing():
            try:
                known = directory.read_file(name, max_bytes=len(data))
            except FileRefusedError:
                known = None
            if known == data:
                directory.sync()
            else:
                directory.write_file(name, data)
