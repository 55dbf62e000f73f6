"""Bundles as directories that other programs can load: built from objects, compared when used again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ticket_agent.peft.copying import copy_hashed, hash_file
from ticket_agent.peft.errors import AbsentError, NameTakenError
from ticket_agent.peft.names import IMPORT_STAGING, is_staging, new_staging_name
from ticket_agent.peft.release.bundle import BundleManifest, file_limit, parse_bundle
from ticket_agent.peft.release.root_errors import ObjectCorruptError

if TYPE_CHECKING:
    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.release.cas import ObjectStore
    from ticket_agent.peft.release.guard import Guard

__all__ = ["materialise", "sweep_bundles"]


def materialise(objects: ObjectStore, bundles: Directory, guard: Guard, sha256: str) -> BundleManifest:
    """See to it that ``bundles`` has a directory of the bundle's name with exactly its files.

    Constant memory, whatever the size of the files. The root's lock must be held.

    Returns:
        The bundle's manifest.

    Raises:
        AbsentError: the manifest or one of its files is not in the store.
        DocumentError: the object is no bundle manifest.
        ObjectCorruptError: an object, or a file of the directory that was there, has another content.
        FileRefusedError: a file is longer than its kind may be, or the directory holds what is no file.
        PeftIoError: the system failed. A directory that is not complete never has the bundle's name.
    """
    manifest = parse_bundle(objects.load(sha256))
    with guard.changing():
        if bundles.kind(sha256) is None:
            try:
                _build(objects, bundles, manifest, sha256)
            except NameTakenError:
                pass  # built by somebody else in this moment; it is compared as any that was there
            else:
                return manifest
        _compare(bundles, manifest, sha256)
        # Whoever moved it here may have died before the directory was synced.
        bundles.sync()
    return manifest


def sweep_bundles(bundles: Directory, guard: Guard) -> int:
    """Remove directories that interrupted processes have left unfinished; return how many.

    The root's lock must be held.
    """
    unfinished = [name for name in bundles.names() if is_staging(name)]
    with guard.changing():
        for name in unfinished:
            bundles.remove_tree(name)
    return len(unfinished)


def _build(objects: ObjectStore, bundles: Directory, manifest: BundleManifest, sha256: str) -> None:
    unfinished = new_staging_name(IMPORT_STAGING)
    bundles.make_dir(unfinished)
    try:
        with bundles.open_dir(unfinished) as directory:
            for name, wanted in manifest.files:
                _copy(objects, directory, name, wanted)
        bundles.rename(unfinished, bundles, sha256, replace=False)
    except BaseException:
        if bundles.kind(unfinished) is not None:
            bundles.remove_tree(unfinished)
        raise


def _copy(objects: ObjectStore, directory: Directory, name: str, wanted: str) -> None:
    limit = file_limit(name)
    try:
        source = objects.open(wanted, max_bytes=limit)
    except AbsentError:
        raise AbsentError(f"object {wanted}, which is {name} of a bundle, does not exist") from None
    with source:
        copied = copy_hashed(source, directory, name, max_bytes=limit)
    if copied.sha256 != wanted:
        raise ObjectCorruptError(f"{source.label} does not have the content that its name says")


def _compare(bundles: Directory, manifest: BundleManifest, sha256: str) -> None:
    with bundles.open_dir(sha256) as directory:
        wanted = dict(manifest.files)
        for name in directory.names():
            if name not in wanted:
                raise ObjectCorruptError(f"{directory.path(name)} is no file of the bundle; {_REMEDY}")
        for name, digest in wanted.items():
            try:
                file = directory.open_file(name, max_bytes=file_limit(name))
            except AbsentError:
                raise ObjectCorruptError(f"{directory.path(name)} is missing; {_REMEDY}") from None
            with file:
                if hash_file(file).sha256 != digest:
                    raise ObjectCorruptError(
                        f"{file.label} is not what the bundle's manifest says; {_REMEDY}"
                    )


_REMEDY = "remove the directory, it is built again from the objects"
