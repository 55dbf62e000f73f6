"""The files of a base model's directory that a release uses, found and checked before any is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.copying import hash_file
from ticket_agent.peft.release.bundle import (
    BASE_CONFIG,
    BASE_WEIGHTS,
    BundleManifest,
    file_limit,
)
from ticket_agent.peft.release.document_error import DocumentError, reading
from ticket_agent.peft.release.geometry import MAX_CONFIG_BYTES, Geometry, geometry_of
from ticket_agent.peft.release.native.base_model import check_base_tensors
from ticket_agent.peft.release.native.weights import weights_header
from ticket_agent.peft.roots import open_to_read
from ticket_agent.protocol.json_strict import parse_object

if TYPE_CHECKING:
    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.release.selection import BaseChoice

__all__ = ["BASE_FILES", "TEMPLATE_FILE", "TOKENIZER_CONFIG", "ChosenBase", "choose_base", "open_folder"]

TOKENIZER_CONFIG: Final = "tokenizer_config.json"
TEMPLATE_FILE: Final = "chat_template.jinja"
BASE_FILES: Final = (
    BASE_CONFIG,
    BASE_WEIGHTS,
    "added_tokens.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    TOKENIZER_CONFIG,
    "vocab.json",
)
"""What is taken of a base model; anything else in its directory is passed over."""
_REFUSED: Final = {
    "model.safetensors.index.json": "the weights are in several files; save them as one model.safetensors",
    TEMPLATE_FILE: f"put the template into {TOKENIZER_CONFIG} as chat_template and remove the file",
}
MAX_TOKENIZER_CONFIG_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenBase:
    """A base model that can be released with.

    Attributes:
        manifest: its bundle.
        geometry: what its configuration says.
        passed_over: what else is in the directory.
    """

    manifest: BundleManifest
    geometry: Geometry
    passed_over: tuple[str, ...]


def open_folder(choice: BaseChoice) -> Directory:
    """Open the directory of a base model.

    Raises:
        PeftError: it cannot be used.
    """
    return open_to_read(choice.path.resolve(), label="base model")


def choose_base(folder: Directory, choice: BaseChoice, target_modules: tuple[str, ...]) -> ChosenBase:
    """Look at a base model's files; constant memory, nothing is changed.

    Raises:
        DocumentError, ArtifactRefusedError, ModelMismatchError: it is not complete, not plain, or its parts
            do not belong together. The line has what was expected and what was found.
        FileRefusedError, PeftIoError: a file is no plain one of an allowed size, or cannot be read.
    """
    names = folder.names()
    with reading("base model"):
        for name, remedy in _REFUSED.items():
            if name in names:
                raise DocumentError(f"has {name}: {remedy}", rule="bundle-name")
        for name in (BASE_CONFIG, BASE_WEIGHTS, TOKENIZER_CONFIG):
            if name not in names:
                raise DocumentError(f"has no {name}", rule="bundle-incomplete")
    config = folder.read_file(BASE_CONFIG, max_bytes=MAX_CONFIG_BYTES)
    geometry = geometry_of(config, target_modules)
    _check_template(folder)
    with folder.open_file(BASE_WEIGHTS, max_bytes=file_limit(BASE_WEIGHTS)) as weights:
        check_base_tensors(weights_header(weights, BASE_WEIGHTS), config, geometry)
    files = []
    for name in BASE_FILES:
        if name not in names:
            continue
        with folder.open_file(name, max_bytes=file_limit(name)) as file:
            files.append((name, hash_file(file).sha256))
    manifest = BundleManifest(
        files=tuple(files),
        source=choice.source,
        revision=choice.revision,
        license_ref=choice.license_ref,
    )
    return ChosenBase(
        manifest=manifest,
        geometry=geometry,
        passed_over=tuple(name for name in names if name not in BASE_FILES),
    )


def _check_template(folder: Directory) -> None:
    data = folder.read_file(TOKENIZER_CONFIG, max_bytes=MAX_TOKENIZER_CONFIG_BYTES)
    with reading(f"base model: {TOKENIZER_CONFIG}"):
        document = parse_object(data, what="the file", max_bytes=MAX_TOKENIZER_CONFIG_BYTES)
        if not isinstance(document.get("chat_template"), str):
            raise DocumentError(
                "has no chat_template; evaluator and server need the same one to see the same text",
                rule="base-config",
            )
