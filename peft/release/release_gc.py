"""What no release needs any more, and removing it.

Kept is everything that what is deployed names, the generations before it, whatever did not end, and what is
young; all else goes. Only what nothing names is touched, so a process that dies half-way loses nothing.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.errors import AbsentError, PeftError
from ticket_agent.peft.locks import RootLock, locked
from ticket_agent.peft.names import is_partial, is_staging
from ticket_agent.peft.opened import Kind
from ticket_agent.peft.release.cas import ObjectStore
from ticket_agent.peft.release.evidence_check import evidence_of
from ticket_agent.peft.release.evidence_store import EvidenceStore
from ticket_agent.peft.release.gc_removal import Item, Removal, What, server_parts
from ticket_agent.peft.release.guard import Guard
from ticket_agent.peft.release.layout import BEGUN_FILE, END_FILE, SERVERS
from ticket_agent.peft.release.phases import Phase, ReleaseState
from ticket_agent.peft.release.reachable import checkpoint_sources, digests_in, reachable
from ticket_agent.peft.release.release_reader import ReleaseReader
from ticket_agent.peft.release.release_view import Stage
from ticket_agent.peft.release.root_errors import RootBlockedError, RootOwnedError
from ticket_agent.peft.release.server_glance import RECORD_SUFFIX, servers_at_a_glance
from ticket_agent.peft.release.told import accepted_of, detail_of
from ticket_agent.peft.roots import open_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.release.release_config import ReleaseConfig
    from ticket_agent.peft.release.release_view import DeploymentView, ReleaseView

__all__ = ["GcLimits", "collect", "survey"]

_MAX_DEPTH: Final = 16
_MAX_RECORD_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class GcLimits:
    """What is kept beside what is named.

    Attributes:
        keep: generations before the one that is deployed.
        older_than_s: what was changed in this time stays, in seconds.
    """

    keep: int
    older_than_s: int


def survey(config: ReleaseConfig, limits: GcLimits, *, now_ms: int) -> list[Item]:
    """What would go, and which operations and servers would stay and why. Changes nothing and takes no lock.

    Raises:
        RootOwnedError: a release is not finished.
        RootBlockedError: a rollback failed.
        PeftError: something that says what is needed cannot be read.
    """
    with _opened(config) as root, ReleaseReader(config.root) as reader:
        return _Survey(config, limits, root, reader, now_ms).items()


def collect(config: ReleaseConfig, limits: GcLimits, *, now_ms: int, told: Callable[[Item], None]) -> None:
    """Remove it, under the root's lock; ``told`` hears of each thing when it is gone, or why it is not.

    Raises:
        LockHeldError: somebody works in the root.
        PeftError: as :func:`survey`; nothing was removed.
    """
    with (
        _opened(config) as root,
        locked({RootLock.RELEASE: root}),
        ReleaseReader(config.root) as reader,
    ):
        items = _Survey(config, limits, root, reader, now_ms).items()
        with Removal(root) as removal:
            for item in items:
                told(item if item.stays is not None else removal.remove(item))


@contextmanager
def _opened(config: ReleaseConfig) -> Iterator[Directory]:
    with open_root(
        config.root, label="release root", owner_uid=os.geteuid(), create=False, private=True
    ) as root:
        yield root


@dataclass(slots=True)
class _Kept:
    """Operations that stay, with the reason, and the digests that they and others name."""

    operations: dict[str, str] = field(default_factory=dict)
    digests: set[str] = field(default_factory=set)


class _Survey:
    """One look at a root."""

    def __init__(
        self,
        config: ReleaseConfig,
        limits: GcLimits,
        root: Directory,
        reader: ReleaseReader,
        now_ms: int,
    ) -> None:
        self._config: Final = config
        self._limits: Final = limits
        self._root: Final = root
        self._reader: Final = reader
        self._young_s: Final = now_ms / 1000 - limits.older_than_s

    def items(self) -> list[Item]:
        deployment = self._reader.deployment()
        _require_quiet(deployment)
        with (
            self._root.open_dir("objects") as directory,
            self._root.open_dir("operations") as operations,
            self._root.open_dir("bundles") as bundles,
        ):
            objects = ObjectStore(directory, Guard())
            sizes, young = self._objects(directory)
            views = {name: self._reader.release(name, log_lines=0) for name in self._reader.operations()}
            kept = self._kept(operations, views, deployment)
            servers, server_digests = self._servers(kept)
            # Young requests are among what is young, and keep what they name.
            named = self._deployed_names() | server_digests | young
            live = reachable(objects, sizes, named | kept.digests)
            live = self._with_sources(objects, sizes, operations, kept, live)
            found = [
                Item(
                    what=What.OPERATION,
                    name=name,
                    bytes=_size(operations, name),
                    stays=kept.operations.get(name),
                )
                for name in views
            ]
            found += servers
            found += [
                Item(what=What.BUNDLE, name=name, bytes=_size(bundles, name))
                for name in bundles.names()
                if not is_staging(name) and name not in live and self._is_old(bundles, name)
            ]
            found += [
                Item(what=What.OBJECT, name=name, bytes=size)
                for name, size in sizes.items()
                if name not in live
            ]
            found += _leftovers(directory, "objects") + _leftovers(operations, "operations")
            found += _leftovers(bundles, "bundles") + self._server_leftovers()
        return sorted(found, key=lambda item: (list(What).index(item.what), item.name))

    def _objects(self, directory: Directory) -> tuple[dict[str, int], set[str]]:
        sizes, young = {}, set()
        for name in directory.names():
            status = directory.status(name)
            if status is None or not stat.S_ISREG(status.st_mode) or len(name) != 64:  # noqa: PLR2004 - a digest
                continue
            sizes[name] = status.st_size
            if status.st_mtime >= self._young_s:
                young.add(name)
        return sizes, young

    def _deployed_names(self) -> set[str]:
        """Digests in the control files; what is deployed stays, whatever else is there or not."""
        found = set()
        for name in ("accepted.json", "runtime.json", "serving.json"):
            try:
                found |= digests_in(self._root.read_file(name, max_bytes=_MAX_RECORD_BYTES))
            except AbsentError:
                continue
        return found

    def _kept(
        self, operations: Directory, views: dict[str, ReleaseView], deployment: DeploymentView
    ) -> _Kept:
        kept = _Kept()
        accepted = deployment.accepted
        oldest = 0 if accepted is None else accepted.generation - self._limits.keep
        for name, view in views.items():
            reason = self._reason(operations, view, oldest)
            if reason is not None:
                kept.operations[name] = reason
                kept.digests |= _named_by(operations, name)
        return kept

    def _reason(self, operations: Directory, view: ReleaseView, oldest: int) -> str | None:
        """Why an operation stays; None when it need not."""
        if view.problems:
            return f"cannot be read: {view.problems[0]}"
        if view.stage is not Stage.ENDED or view.end is None:
            return "has not ended"
        if view.state is ReleaseState.SUCCEEDED:
            promoted = accepted_of(detail_of(view.end, Phase.PROMOTE))
            if promoted is None or promoted.generation >= oldest:
                generation = "?" if promoted is None else promoted.generation
                return f"deployed generation {generation}"
        if not self._is_old(operations, view.operation_id, END_FILE):
            return "is young"
        return self._without_evidence(view)

    def _without_evidence(self, view: ReleaseView) -> str | None:
        try:
            evidence = evidence_of(view)
            if evidence is None:
                return None
            with EvidenceStore.open(self._config.evidence, owner_uid=os.geteuid(), create=False) as store:
                store.load(evidence.sha256)
        except PeftError as error:
            return f"its evidence is not kept: {error}"
        return None

    def _with_sources(
        self,
        objects: ObjectStore,
        sizes: dict[str, int],
        operations: Directory,
        kept: _Kept,
        live: set[str],
    ) -> set[str]:
        """Operations whose checkpoints are named stay too, with all that they name."""
        while True:
            sources = checkpoint_sources(objects, sizes, live)
            more = {name for name in sources - kept.operations.keys() if operations.kind(name) is Kind.DIR}
            if not more:
                return live
            digests: set[str] = set()
            for name in more:
                kept.operations[name] = "another release goes on from its checkpoint"
                digests |= _named_by(operations, name)
            live |= reachable(objects, sizes, digests)

    def _servers(self, kept: _Kept) -> tuple[list[Item], set[str]]:
        """All servers, and the digests that the records of those that stay name."""
        found: list[Item] = []
        digests: set[str] = set()
        try:
            directory = self._root.open_dir(SERVERS)
        except AbsentError:
            return found, digests
        with directory:
            for server in servers_at_a_glance(self._config.root):
                name = server.launch_id
                there = [part for part in server_parts(name) if directory.kind(part) is not None]
                taken = sum(_size(directory, part) for part in there)
                reason = None if server.dead else server.standing
                operation = name.partition(".")[0]
                if reason is None and operation in kept.operations:
                    reason = f"belongs to {operation}, which stays"
                if reason is None and not all(self._is_old(directory, part) for part in there):
                    reason = "is young"
                found.append(Item(what=What.SERVER, name=name, bytes=taken, stays=reason))
                if reason is not None:
                    digests |= _digests_of(directory, f"{name}{RECORD_SUFFIX}")
        return found, digests

    def _server_leftovers(self) -> list[Item]:
        try:
            with self._root.open_dir(SERVERS) as directory:
                return _leftovers(directory, SERVERS)
        except AbsentError:
            return []

    def _is_old(self, directory: Directory, name: str, inner: str | None = None) -> bool:
        """It was not changed in the time in which everything stays."""
        status = directory.status(name)
        if inner is not None and status is not None:
            with directory.open_dir(name) as opened:
                status = opened.status(inner) or status
        return status is not None and status.st_mtime < self._young_s


def _require_quiet(deployment: DeploymentView) -> None:
    if deployment.problems:
        raise RootBlockedError(f"what is needed is not known: {deployment.problems[0]}; nothing is removed")
    if deployment.blocker is not None:
        raise RootBlockedError(
            f"the rollback of release {deployment.blocker.operation_id} failed; recover that release first:"
            " `ticket-agent release recover`"
        )
    if deployment.owner is not None:
        raise RootOwnedError(
            f"release {deployment.owner.operation_id} is not finished; nothing is removed before it is"
        )


def _named_by(operations: Directory, name: str) -> set[str]:
    """Digests in what an operation says about itself, and in the same files of its recoveries."""
    found: set[str] = set()
    with operations.open_dir(name) as directory:
        for part in (BEGUN_FILE, END_FILE):
            found |= _digests_of(directory, part)
        for entry in directory.names():
            if directory.kind(entry) is Kind.DIR:
                with directory.open_dir(entry) as inner:
                    for part in (BEGUN_FILE, END_FILE):
                        found |= _digests_of(inner, part)
    return found


def _digests_of(directory: Directory, name: str) -> set[str]:
    try:
        return digests_in(directory.read_file(name, max_bytes=_MAX_RECORD_BYTES))
    except AbsentError:
        return set()


def _leftovers(directory: Directory, where: str) -> list[Item]:
    return [
        Item(what=What.LEFTOVER, name=f"{where}/{name}", bytes=_size(directory, name))
        for name in directory.names()
        if is_staging(name) or is_partial(name)
    ]


def _size(directory: Directory, name: str, depth: int = 0) -> int:
    """Bytes of a file, or of all files in a tree; what vanishes or lies too deep is 0."""
    status = directory.status(name)
    if status is None:
        return 0
    if not stat.S_ISDIR(status.st_mode):
        return status.st_size if stat.S_ISREG(status.st_mode) else 0
    if depth == _MAX_DEPTH:
        return 0
    with directory.open_dir(name) as inner:
        return sum(_size(inner, entry, depth + 1) for entry in inner.names())
