"""Scanning an adapter directory without loading it: may this adapter be put on this profile's base model?

A loader drops what it cannot place with a warning, or less, and serves the base model. So the file must have
exactly the tensors that the profile's geometry says, of the right shapes, and the configuration may say
nothing that makes a loader place them elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from ticket_agent.peft.adapter_config import MAX_CONFIG_BYTES, AdapterConfig, parse_hf_config
from ticket_agent.peft.adapter_layout import Layout, recognise
from ticket_agent.peft.artifact_errors import ConfigRefusedError, LoraRefusedError, quoted
from ticket_agent.peft.copying import hash_file
from ticket_agent.peft.lora import summarise
from ticket_agent.peft.names import shown
from ticket_agent.peft.release.bundle import ADAPTER_CONFIG, ADAPTER_WEIGHTS, adapter_identity
from ticket_agent.peft.release.geometry import adapter_tensors
from ticket_agent.peft.release.native.weights import (
    check_finite,
    is_all_zero,
    refuse_pointer,
    weights_header,
)
from ticket_agent.protocol.json_strict import parse_object

if TYPE_CHECKING:
    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.opened import OpenedFile
    from ticket_agent.peft.release.profile import Profile
    from ticket_agent.peft.safetensors_header import SafetensorsHeader

__all__ = ["AdapterFiles", "ScannedAdapter", "scan_adapter", "scan_files"]

_VOCABULARY: Final = ("embed_tokens", "lm_head")
_DTYPES: Final = ("F32", "F16", "BF16")
_EXACT: Final = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)

_UNUSED: Final = (
    "auto_mapping",
    "exclude_modules",
    "layers_pattern",
    "layers_to_transform",
    "modules_to_save",
)
"""Members that only tell how somebody trained, or let a loader leave out a part: none may be set."""


class AdapterFiles(Protocol):
    """What holds the two files of an adapter under their names, like an open directory."""

    def open_file(self, name: str, *, max_bytes: int) -> OpenedFile:
        """Open one for reading."""

    def read_file(self, name: str, *, max_bytes: int) -> bytes:
        """The content of a small one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedAdapter:
    """An adapter that may be loaded.

    Attributes:
        adapter_sha256: its identity.
        files: digests of its two files, by name.
        tensors: how many it has; all that the geometry asks for.
        parameters: their elements.
        dtype: of the tensors.
        config: how it is to be loaded.
    """

    adapter_sha256: str
    files: tuple[tuple[str, str], ...]
    tensors: int
    parameters: int
    dtype: str
    config: AdapterConfig

    def members(self) -> dict[str, Any]:
        """What an observation tells of it."""
        return {
            "adapter_sha256": self.adapter_sha256,
            "files": dict(self.files),
            "tensor_count": self.tensors,
            "parameter_count": self.parameters,
            "dtype": self.dtype,
            "safe_format": True,
        }


def scan_adapter(directory: Directory, profile: Profile, *, what: str) -> ScannedAdapter:
    """Scan the two files of an adapter; a directory with anything else is refused.

    Raises:
        ArtifactRefusedError: the files are no complete adapter for the profile's base model.
        FileRefusedError: an entry is no plain file of an allowed size.
    """
    names = directory.names()
    if recognise(names, what=what) is not Layout.HUGGING_FACE or set(names) != set(_EXACT):
        raise LoraRefusedError(f"{what} must hold {' and '.join(_EXACT)} and nothing else")
    return scan_files(directory, profile)


def scan_files(files: AdapterFiles, profile: Profile) -> ScannedAdapter:
    """Scan the two files of an adapter, whatever lies beside them.

    Raises:
        ArtifactRefusedError, FileRefusedError: as :func:`scan_adapter`.
    """
    with files.open_file(ADAPTER_CONFIG, max_bytes=MAX_CONFIG_BYTES) as opened:
        config_sha256 = hash_file(opened).sha256
    config = _config(files.read_file(ADAPTER_CONFIG, max_bytes=MAX_CONFIG_BYTES), profile)
    limit = profile.stack.limits.adapter_bytes
    with files.open_file(ADAPTER_WEIGHTS, max_bytes=limit) as weights:
        header = weights_header(weights, ADAPTER_WEIGHTS)
        _check_vocabulary(header, profile)
        _check_tensors(header, profile)
        summary = summarise(header, config, what=ADAPTER_WEIGHTS)
        check_finite(weights, header, ADAPTER_WEIGHTS)
        _check_trained(weights, header)
        weights_sha256 = hash_file(weights).sha256
    return ScannedAdapter(
        adapter_sha256=adapter_identity(config_sha256, weights_sha256),
        files=((ADAPTER_CONFIG, config_sha256), (ADAPTER_WEIGHTS, weights_sha256)),
        tensors=summary.tensors,
        parameters=summary.parameters,
        dtype=summary.dtype,
        config=config,
    )


def _config(data: bytes, profile: Profile) -> AdapterConfig:
    refuse_pointer(data, ADAPTER_CONFIG)
    config = parse_hf_config(data)
    base, geometry, rank = profile.stack.base, profile.stack.geometry, profile.settings.rank
    wanted: dict[str, object] = {
        "base_model": base.source,
        "rank": rank,
        "alpha": 2 * rank,
        "target_modules": geometry.target_modules,
        "task_type": "CAUSAL_LM",
        "use_rslora": False,
        "use_dora": False,
        "lora_bias": False,
        "fan_in_fan_out": False,
        "rank_pattern": (),
        "alpha_pattern": (),
    }
    for name, value in wanted.items():
        if (found := getattr(config, name)) != value:
            raise ConfigRefusedError(
                f"{ADAPTER_CONFIG}: {name} is {_short(found)}; the profile says {_short(value)}"
            )
    if config.base_revision not in (None, base.revision):
        raise ConfigRefusedError(
            f"{ADAPTER_CONFIG}: the base model's revision is {_short(config.base_revision)}; the profile"
            f" pins {_short(base.revision)}"
        )
    members = parse_object(data, what=ADAPTER_CONFIG, max_bytes=MAX_CONFIG_BYTES)
    for name in _UNUSED:
        if members.get(name) not in (None, [], ""):
            raise ConfigRefusedError(f"{ADAPTER_CONFIG}: {name} is set; only plain adapters are accepted")
    if members.get("lora_dropout", 0) != 0:
        raise ConfigRefusedError(f"{ADAPTER_CONFIG}: lora_dropout must be 0")
    return config


def _check_vocabulary(header: SafetensorsHeader, profile: Profile) -> None:
    """Refuse an adapter that brings a vocabulary of its own, with both shapes."""
    geometry = profile.stack.geometry
    expected = [geometry.vocab_size, geometry.hidden_size]
    for tensor in header.tensors:
        parts = tensor.name.split(".")
        owner = next((name for name in _VOCABULARY if name in parts), None)
        if owner is None or "lora_A" in parts or "lora_B" in parts:
            continue
        resized = list(tensor.shape) != expected
        raise LoraRefusedError(
            f"{ADAPTER_WEIGHTS}: {quoted(tensor.name)} replaces the base model's {owner}: expected shape"
            f" {expected}, found {list(tensor.shape)}. "
            + (
                "It was trained with a resized vocabulary; train it again without added tokens"
                if resized
                else "Save the adapter again without embedding layers"
            )
        )


def _check_tensors(header: SafetensorsHeader, profile: Profile) -> None:
    wanted = adapter_tensors(profile.stack.geometry, profile.settings.rank)
    found = {tensor.name: tensor for tensor in header.tensors}
    missing, extra = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing or extra:
        parts = [
            f"{len(names)} {kind}, like {quoted(names[0])}"
            for names, kind in ((missing, "missing"), (extra, "unexpected"))
            if names
        ]
        raise LoraRefusedError(
            f"{ADAPTER_WEIGHTS} does not have exactly the {len(wanted)} tensors of the profile's geometry:"
            f" {'; '.join(parts)}"
        )
    for name, shape in wanted.items():
        tensor = found[name]
        if tensor.shape != shape:
            raise LoraRefusedError(
                f"{ADAPTER_WEIGHTS}: {name}: expected shape {list(shape)}, found {list(tensor.shape)};"
                " it was made for another base model or rank"
            )
        if tensor.dtype not in _DTYPES:
            raise LoraRefusedError(
                f"{ADAPTER_WEIGHTS}: {name} is of {tensor.dtype}, not {', '.join(_DTYPES)}"
            )


def _check_trained(weights: OpenedFile, header: SafetensorsHeader) -> None:
    if all(is_all_zero(weights, header, tensor) for tensor in header.tensors if ".lora_B." in tensor.name):
        raise LoraRefusedError(
            f"{ADAPTER_WEIGHTS}: all of lora_B is 0, so the adapter changes nothing; it was never trained"
        )


def _short(value: object) -> str:
    return shown(value) if isinstance(value, str) else repr(value)[:64]
