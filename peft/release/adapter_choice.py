"""An adapter that somebody wants to import: scanned where it lies, then stored as a bundle of two files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.adapter_layout import Layout, recognise
from ticket_agent.peft.artifact_errors import LayoutRefusedError
from ticket_agent.peft.errors import ArtifactRefusedError, FileChangedError
from ticket_agent.peft.release.adapter_diff import Difference, differences
from ticket_agent.peft.release.bundle import BundleManifest, encode_bundle, file_limit
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.native.candidate import scan_files
from ticket_agent.peft.roots import open_to_read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.opened import OpenedFile
    from ticket_agent.peft.release.native.candidate import ScannedAdapter
    from ticket_agent.peft.release.profile import Profile

__all__ = [
    "AdapterChoice",
    "AdapterRefusedError",
    "ChosenAdapter",
    "choose_adapter",
    "open_adapter",
    "store_files",
]

_LOCAL: Final = "local"
_DIGITS: Final = 16


class AdapterRefusedError(ArtifactRefusedError):
    """An adapter does not fit the profile.

    Attributes:
        differences: everything in which it differs, where that can be told.
    """

    def __init__(self, text: str, found: tuple[Difference, ...]) -> None:
        super().__init__(text)
        self.differences = found


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterChoice:
    """An adapter to import.

    Attributes:
        path: directory as Hugging Face's PEFT saves it.
        source: where it comes from; 1..=256 bytes of ASCII.
        revision: which version of it, likewise; None: its own identity.
        license_ref: one of the selection's licences; None: the only one of them.
    """

    path: Path
    source: str = _LOCAL
    revision: str | None = None
    license_ref: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenAdapter:
    """An adapter that may be put on the profile's base model."""

    scanned: ScannedAdapter
    manifest: BundleManifest

    @property
    def bundle_sha256(self) -> str:
        """Digest of its bundle manifest."""
        return digest(encode_bundle(self.manifest))


def open_adapter(choice: AdapterChoice) -> Directory:
    """Open the directory of an adapter.

    Raises:
        PeftError: it cannot be used.
    """
    return open_to_read(choice.path.resolve(), label="adapter")


def choose_adapter(folder: Directory, choice: AdapterChoice, profile: Profile) -> ChosenAdapter:
    """Scan an adapter; nothing is changed. What lies beside its two files is not taken.

    Raises:
        AdapterRefusedError: it is no complete adapter for the profile's base model; where a shape is another
            one, the line has both.
        DocumentError: its licence is not one of the profile's.
        FileRefusedError, PeftIoError: a file is no plain one of an allowed size, or cannot be read.
    """
    if recognise(folder.names(), what="adapter") is not Layout.HUGGING_FACE:
        raise LayoutRefusedError("adapter is not as Hugging Face's PEFT saves it; save it that way")
    try:
        scanned = scan_files(folder, profile)
    except ArtifactRefusedError as error:
        raise AdapterRefusedError(str(error), differences(folder, profile)) from error
    revision = choice.revision or f"sha256-{scanned.adapter_sha256[:_DIGITS]}"
    manifest = BundleManifest(
        files=scanned.files,
        source=choice.source,
        revision=revision,
        license_ref=_license(choice, profile.license_refs),
    )
    return ChosenAdapter(scanned=scanned, manifest=manifest)


def store_files(
    folder: Directory, manifest: BundleManifest, store: Callable[[OpenedFile], str], *, what: str
) -> None:
    """Store the files of a manifest from their directory.

    Raises:
        FileChangedError: a file is not any more what the manifest says.
        PeftError: it cannot be read or stored.
    """
    for name, wanted in manifest.files:
        with folder.open_file(name, max_bytes=file_limit(name)) as file:
            if store(file) != wanted:
                raise FileChangedError(f"{what}: {name} was changed while it was stored; prepare again")


def _license(choice: AdapterChoice, known: tuple[str, ...]) -> str:
    if choice.license_ref is None:
        if len(known) != 1:
            raise DocumentError(
                f"say under which licence the adapter is; the profile has {', '.join(known)}", rule="license"
            )
        return known[0]
    if choice.license_ref not in known:
        raise DocumentError(
            f"the adapter's licence {choice.license_ref} is not among the profile's", rule="license"
        )
    return choice.license_ref
