"""Bundle manifests: a set of files of a model or an adapter, each by the digest of its content.

Pure. A manifest's own digest names the bundle, so it names every byte in it. Only inert kinds of files can be
in one: no pickles, no templates, no code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.canonical import decode_object, digest_of, encode
from ticket_agent.peft.release.document_error import DocumentError, reading
from ticket_agent.peft.release.rules import (
    digest_text,
    exact,
    field_names,
    pairs,
    sorted_names,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ADAPTER_CONFIG",
    "ADAPTER_WEIGHTS",
    "BASE_CONFIG",
    "BASE_WEIGHTS",
    "MAX_BASE_WEIGHTS_BYTES",
    "MAX_BUNDLE_FILE_BYTES",
    "BundleManifest",
    "adapter_identity",
    "check_bundle_name",
    "encode_bundle",
    "file_limit",
    "parse_bundle",
    "tokenizer_digest",
]

ADAPTER_CONFIG: Final = "adapter_config.json"
ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
BASE_CONFIG: Final = "config.json"
BASE_WEIGHTS: Final = "model.safetensors"

MAX_BUNDLE_FILES: Final = 16
MAX_BUNDLE_FILE_BYTES: Final = 32 * 1024 * 1024
MAX_BASE_WEIGHTS_BYTES: Final = 1024 * 1024 * 1024
"""Of ``model.safetensors``, the one file that may be larger than the others."""
MAX_SOURCE_BYTES: Final = 256

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SUFFIXES: Final = (".json", ".safetensors", ".txt", ".md")
_TOKENIZER_FILES: Final = frozenset({"merges.txt", "vocab.json"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleManifest:
    """Which files a bundle has and where they come from.

    Attributes:
        files: 1..=16 pairs of a file's name and the digest of its content, sorted by name.
        source: where they come from, like the model's id on the hub; 1..=256 bytes of ASCII.
        revision: which version of it, likewise.
        license_ref: the licence that they are used under, likewise.

    Raises:
        DocumentError: a value that no manifest has.
    """

    files: tuple[tuple[str, str], ...]
    source: str
    revision: str
    license_ref: str

    def __post_init__(self) -> None:
        if not 1 <= len(self.files) <= MAX_BUNDLE_FILES:
            raise DocumentError(f"files must be 1..={MAX_BUNDLE_FILES} files")
        for name, sha256 in self.files:
            check_bundle_name(name)
            digest_text(sha256, f"files.{name}")
        if len(dict(self.files)) != len(self.files):
            raise DocumentError("files must have different names", rule="bundle-name")
        object.__setattr__(self, "files", pairs(dict(self.files)))
        for name in ("source", "revision", "license_ref"):
            text(getattr(self, name), name, MAX_SOURCE_BYTES)

    def file(self, name: str) -> str:
        """The digest of one file's content.

        Raises:
            DocumentError: the bundle has no file of that name.
        """
        for known, sha256 in self.files:
            if known == name:
                return sha256
        raise DocumentError(f"bundle of {self.source} has no {name}", rule="bundle-incomplete")

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        return {
            "files": dict(self.files),
            "source": self.source,
            "revision": self.revision,
            "license_ref": self.license_ref,
        }


def check_bundle_name(name: str) -> str:
    """Return the name of a file that may be in a bundle.

    Raises:
        DocumentError: it is a path, is not 1..=64 of letters, digits and ``_ . -``, or is of a kind that is
            not only data.
    """
    if _NAME.fullmatch(name) is None or name in (".", ".."):
        raise DocumentError(
            "files must have names of 1..=64 ASCII letters, digits or _ . -", rule="bundle-name"
        )
    if not name.endswith(_SUFFIXES):
        raise DocumentError(
            f"files must not have {name}: only {', '.join(_SUFFIXES)} are data and nothing else",
            rule="bundle-name",
        )
    return name


def file_limit(name: str) -> int:
    """The most bytes that a file of a bundle may have."""
    return MAX_BASE_WEIGHTS_BYTES if name == BASE_WEIGHTS else MAX_BUNDLE_FILE_BYTES


def parse_bundle(data: bytes) -> BundleManifest:
    """Read a canonical bundle manifest.

    Raises:
        DocumentError: anything else, or a value that no manifest has.
    """
    what = "bundle manifest"
    document = decode_object(data, what=what)
    with reading(what):
        exact(document, field_names(BundleManifest))
        files = sorted_names(document.pop("files"), "files")
        return BundleManifest(files=tuple(files.items()), **document)


def encode_bundle(manifest: BundleManifest) -> bytes:
    """Write the canonical bytes of a bundle manifest."""
    return encode(manifest.members())


def adapter_identity(config_sha256: str, weights_sha256: str) -> str:
    """The digest that names an adapter: its configuration is as much a part of it as its weights.

    Raises:
        DocumentError: an argument is no digest.
    """
    return digest_of(
        {
            ADAPTER_CONFIG: digest_text(config_sha256, ADAPTER_CONFIG),
            ADAPTER_WEIGHTS: digest_text(weights_sha256, ADAPTER_WEIGHTS),
        }
    )


def tokenizer_digest(files: Mapping[str, str]) -> str:
    """The digest that names the tokenizer among a base model's files (name -> digest of the content).

    Raises:
        DocumentError: no file of them belongs to a tokenizer.
    """
    found = {name: sha for name, sha in files.items() if "token" in name or name in _TOKENIZER_FILES}
    if not found:
        raise DocumentError("base model has no tokenizer files", rule="bundle-incomplete")
    return digest_of(found)
