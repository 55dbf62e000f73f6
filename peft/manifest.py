"""``manifest.toml``: what a model of the registry is and which bytes belong to it.

Pure: bytes in, a value out, and back. The file's three tables are those that every tool on the registry
writes and reads. A manifest exists in two layouts. The newest repeats the adapter's digest in ``[model]`` and
names a format; the older one, which the published Python client still writes, does not. A third kind of entry
is a base model: only an id, sometimes a digest and a format, and no files of ours.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ticket_agent.peft.errors import NameRefusedError, RegistryError
from ticket_agent.peft.limits import (
    MAX_ADAPTER_BYTES,
    MAX_BASE_MODEL_BYTES,
    MAX_COMPONENT_BYTES,
    MAX_LORA_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_METRICS_BYTES,
    MAX_POLICY_BYTES,
    MAX_TELEMETRY_BYTES,
)
from ticket_agent.peft.names import check_component, shown
from ticket_agent.protocol.tokens import SHA256_PATTERN

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ADAPTER_FILE",
    "ADAPTER_FORMAT",
    "LORA_FILE",
    "MANIFEST_FILE",
    "METRICS_FILE",
    "MODEL_FILES",
    "Artifact",
    "BaseManifest",
    "Manifest",
    "parse",
    "render",
]

MANIFEST_FILE: Final = "manifest.toml"
ADAPTER_FILE: Final = "adapter.safetensors"
LORA_FILE: Final = "lora.json"
METRICS_FILE: Final = "metrics.json"
ADAPTER_FORMAT: Final = "safetensors+lora"

MODEL_FILES: Final[Mapping[str, int]] = {
    ADAPTER_FILE: MAX_ADAPTER_BYTES,
    LORA_FILE: MAX_LORA_BYTES,
    METRICS_FILE: MAX_METRICS_BYTES,
}
"""The files a manifest can name, in its order, and the most bytes each may have."""

_FILES: Final = {"adapter": ADAPTER_FILE, "lora": LORA_FILE, "metrics": METRICS_FILE}
_BOUNDS: Final = {
    "adapter": MAX_ADAPTER_BYTES,
    "lora": MAX_LORA_BYTES,
    "metrics": MAX_METRICS_BYTES,
    "policy": MAX_POLICY_BYTES,
    "telemetry": MAX_TELEMETRY_BYTES,
}
"""What ``[hashes]`` tells about, in its order. All but ``metrics`` are required."""

_BASE_MEMBERS: Final = frozenset({"id", "cas_sha256", "format"})
_SHA256: Final = re.compile(SHA256_PATTERN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file as it must be: SHA-256 in lowercase hexadecimal digits, and bytes, at least 1."""

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """An imported adapter.

    Attributes:
        model: the model's id, and the name of its directory.
        base: the base model that the export job named; 1..=1024 bytes of printable text.
        job: the export job.
        adapter: ``adapter.safetensors``.
        lora: ``lora.json``.
        metrics: ``metrics.json``, or None when the model has none.
        policy: the job's ``policy.toml``, which stays with the job.
        telemetry: the job's ``telemetry.cbor``, likewise.
        approval: where the model stands in the release process; 1..=128 bytes of printable text.
        newest: the newest layout; otherwise the older one.

    Raises:
        RegistryError: a value no manifest can hold.
    """

    model: str
    base: str
    job: str
    adapter: Artifact
    lora: Artifact
    metrics: Artifact | None = None
    policy: Artifact
    telemetry: Artifact
    approval: str = "pending"
    newest: bool = True

    def __post_init__(self) -> None:
        _id(self.model, "[model].id")
        _text(self.base, "[model].base", MAX_BASE_MODEL_BYTES)
        _id(self.job, "[provenance].job_id")
        _text(self.approval, "[provenance].approval", MAX_COMPONENT_BYTES)
        for name in _BOUNDS:
            artifact = getattr(self, name)
            if artifact is not None:
                _digest(artifact.sha256, f"[hashes].{name}_sha256")
                _size(artifact.bytes, f"[hashes].{name}_bytes", _BOUNDS[name])

    @property
    def files(self) -> dict[str, Artifact]:
        """The files that belong into the model's directory beside the manifest, by name."""
        named = {file: getattr(self, name) for name, file in _FILES.items()}
        return {file: artifact for file, artifact in named.items() if artifact is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseManifest:
    """A base model that is listed so that it can be named and activated; its weights are kept elsewhere.

    Attributes:
        model: the model's id, and the name of its directory.
        cas_sha256: digest of its content, or None.
        format: 1..=128 bytes of printable text, or None.

    Raises:
        RegistryError: a value no manifest can hold.
    """

    model: str
    cas_sha256: str | None = None
    format: str | None = None

    def __post_init__(self) -> None:
        _id(self.model, "[model].id")
        if self.cas_sha256 is not None:
            _digest(self.cas_sha256, "[model].cas_sha256")
        if self.format is not None:
            _text(self.format, "[model].format", MAX_COMPONENT_BYTES)

    @property
    def files(self) -> dict[str, Artifact]:
        """None: the manifest of a base model names no files."""
        return {}


def render(manifest: Manifest) -> bytes:
    """Write a manifest the way every tool does, in the layout that it has.

    Whatever the values, there are at most ``MAX_MANIFEST_BYTES``.
    """
    import tomli_w  # noqa: PLC0415 - start-up time, and only an import writes a manifest

    model: dict[str, Any] = {"id": manifest.model}
    if manifest.newest:
        model["cas_sha256"] = manifest.adapter.sha256
    model["base"] = manifest.base
    if manifest.newest:
        model |= {"adapter_sha256": manifest.adapter.sha256, "format": ADAPTER_FORMAT}
    model |= {name: file for name, file in _FILES.items() if getattr(manifest, name) is not None}
    hashes: dict[str, Any] = {}
    for name in _BOUNDS:
        artifact = getattr(manifest, name)
        if artifact is not None:
            hashes |= {f"{name}_sha256": artifact.sha256, f"{name}_bytes": artifact.bytes}
    provenance = {"job_id": manifest.job, "approval": manifest.approval}
    document = {"model": model, "provenance": provenance, "hashes": hashes}
    return tomli_w.dumps(document).encode("utf-8")


def parse(data: bytes) -> Manifest | BaseManifest:
    """Read a manifest of either layout, or of a base model.

    Raises:
        RegistryError: anything but TOML with exactly the documented tables and members.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        _refuse(f"has {len(data)} bytes; at most {MAX_MANIFEST_BYTES} are read")
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        _refuse(f"is not valid TOML: {error}")
    tables = _Members("", document)
    model = _Members("[model].", tables.table("model"))
    if not document.keys() - {"model"} and not model.members.keys() - _BASE_MEMBERS:
        return BaseManifest(
            model=model.text("id"), cas_sha256=model.optional("cas_sha256"), format=model.optional("format")
        )
    provenance = _Members("[provenance].", tables.table("provenance"))
    hashes = _Members("[hashes].", tables.table("hashes"))
    tables.none_left()
    artifacts = {name: hashes.artifact(name) for name in _BOUNDS if name != "metrics"}
    metrics = hashes.artifact("metrics") if _has_metrics(model, hashes) else None
    newest = _is_newest(model, artifacts["adapter"])
    manifest = Manifest(
        model=model.text("id"),
        base=model.text("base"),
        job=provenance.text("job_id"),
        metrics=metrics,
        approval=provenance.text("approval"),
        newest=newest,
        **artifacts,
    )
    for table in (model, provenance, hashes):
        table.none_left()
    return manifest


def _has_metrics(model: _Members, hashes: _Members) -> bool:
    for name, file in _FILES.items():
        told = model.optional(name) if name == "metrics" else model.text(name)
        if told not in (file, None):
            _refuse(f"[model].{name} is '{shown(told)}'; it can only be {file}")
    metrics = "metrics" in model.members
    if not metrics and hashes.members.keys() & {"metrics_sha256", "metrics_bytes"}:
        _refuse(f"[hashes] tells about {METRICS_FILE}, which [model] does not name")
    return metrics


def _is_newest(model: _Members, adapter: Artifact) -> bool:
    """Tell the layout. What the newest repeats must be there completely, and agree."""
    there = {"cas_sha256", "adapter_sha256", "format"} & model.members.keys()
    if not there:
        return False
    for name in ("cas_sha256", "adapter_sha256"):
        if model.text(name) != adapter.sha256:
            _refuse(f"[model].{name} and [hashes].adapter_sha256 are different")
    if model.text("format") != ADAPTER_FORMAT:
        _refuse(f"[model].format is '{shown(model.text('format'))}'; it can only be {ADAPTER_FORMAT}")
    return True


class _Members:
    """The members of one table; each that is asked for is known, and in the end none may be left."""

    def __init__(self, prefix: str, members: Mapping[str, object]) -> None:
        self.members = members
        self._prefix = prefix
        self._known: set[str] = set()

    def text(self, name: str) -> str:
        value = self._take(name)
        if not isinstance(value, str):
            _refuse(f"{self._prefix}{name} must be a string")
        return value

    def optional(self, name: str) -> str | None:
        self._known.add(name)
        return self.text(name) if name in self.members else None

    def table(self, name: str) -> Mapping[str, object]:
        value = self._take(name)
        if not isinstance(value, dict):
            _refuse(f"{name} must be a table")
        return value

    def artifact(self, name: str) -> Artifact:
        size = self._take(f"{name}_bytes")
        if type(size) is not int:
            _refuse(f"{self._prefix}{name}_bytes must be an integer")
        return Artifact(sha256=self.text(f"{name}_sha256"), bytes=size)

    def none_left(self) -> None:
        for name in self.members:
            if name not in self._known:
                _refuse(f"{self._prefix}{shown(name)} is not known")

    def _take(self, name: str) -> object:
        self._known.add(name)
        if name not in self.members:
            _refuse(f"{self._prefix}{name} is missing")
        return self.members[name]


def _id(value: str, member: str) -> None:
    try:
        check_component(value, what=member)
    except NameRefusedError as error:
        _refuse(str(error))


def _text(value: str, member: str, limit: int) -> None:
    if not (value.isprintable() and value.strip() == value and 1 <= len(value.encode("utf-8")) <= limit):
        _refuse(f"{member} must be 1..={limit} bytes of printable text without blanks around it")


def _digest(value: str, member: str) -> None:
    if _SHA256.fullmatch(value) is None:
        _refuse(f"{member} must be a SHA-256 of 64 lowercase hexadecimal digits")


def _size(value: int, member: str, limit: int) -> None:
    if not 1 <= value <= limit:
        _refuse(f"{member} must be 1..={limit}")


def _refuse(reason: str) -> NoReturn:
    raise RegistryError(f"{MANIFEST_FILE}: {reason}")
