"""The input of a release: what is trained or imported, and who vouches for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ticket_agent.peft.release.canonical import decode_object, encode
from ticket_agent.peft.release.document_error import DocumentError, reading
from ticket_agent.peft.release.profile import (
    MAX_ATTESTATIONS,
    MAX_LICENSES,
    Profile,
    ProfileSchema,
    check_licenses,
    check_references,
    profile_digest,
)
from ticket_agent.peft.release.request import Entry, ReleaseRequest
from ticket_agent.peft.release.rules import array, choice, digest_text, exact, pairs, sorted_names
from ticket_agent.peft.release.settings import Settings
from ticket_agent.peft.release.versions import check_versions

__all__ = [
    "DeclaredTraining",
    "ImportedAdapter",
    "ReleaseInput",
    "check_input",
    "encode_input",
    "input_names",
    "parse_input",
]

UNKNOWN: Final = "unknown"

_COMMON: Final = ("profile_sha256", "source_sha256", "attestations", "license_refs", "checkpoint")
_IMPORT: Final = ("adapter_bundle_sha256", "base_sha256", "tokenizer_sha256", "versions")
_DECLARED: Final = ("dataset_sha256", "training_settings")
_PROVENANCE: Final = "training_provenance"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredTraining:
    """How an imported adapter is said to have been trained; only the oldest schema has it.

    Attributes:
        dataset_sha256: on which rows.
        settings: with which settings.
    """

    dataset_sha256: str
    settings: Settings

    def __post_init__(self) -> None:
        digest_text(self.dataset_sha256, "dataset_sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedAdapter:
    """An adapter from elsewhere, and what it is said to fit.

    Attributes:
        bundle_sha256: digest of its bundle manifest.
        base_sha256: the base model's bundle.
        tokenizer_sha256: the tokenizer.
        versions: the packages it was made for, sorted by name.
        training: None: nobody says how it was trained.

    Raises:
        DocumentError: a value that no import has.
    """

    bundle_sha256: str
    base_sha256: str
    tokenizer_sha256: str
    versions: tuple[tuple[str, str], ...]
    training: DeclaredTraining | None = None

    def __post_init__(self) -> None:
        digest_text(self.bundle_sha256, "adapter_bundle_sha256")
        digest_text(self.base_sha256, "base_sha256")
        digest_text(self.tokenizer_sha256, "tokenizer_sha256")
        check_versions(self.versions, ())
        object.__setattr__(self, "versions", pairs(dict(self.versions)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseInput:
    """The input of one release.

    Attributes:
        profile_sha256: the profile that it is for.
        source_sha256: digest of the description of the sources.
        attestations: digests of 1..=4 attestations, all of which must hold.
        license_refs: 1..=8 licences.
        checkpoint: digest of the checkpoint that training goes on from, or None.
        adapter: what is imported, or None when the release trains.

    Raises:
        DocumentError: a value that no input has.
    """

    profile_sha256: str
    source_sha256: str
    attestations: tuple[str, ...]
    license_refs: tuple[str, ...]
    checkpoint: str | None = None
    adapter: ImportedAdapter | None = None

    def __post_init__(self) -> None:
        digest_text(self.profile_sha256, "profile_sha256")
        digest_text(self.source_sha256, "source_sha256")
        check_references(self.attestations)
        check_licenses(self.license_refs)
        if self.checkpoint is not None:
            digest_text(self.checkpoint, "checkpoint")
            if self.adapter is not None:
                raise DocumentError(
                    "checkpoint must be null for an import: nothing is trained", rule="checkpoint"
                )

    @property
    def entry(self) -> Entry:
        """Where the candidate comes from."""
        return Entry.TRAIN if self.adapter is None else Entry.IMPORT

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        members: dict[str, Any] = {
            "profile_sha256": self.profile_sha256,
            "source_sha256": self.source_sha256,
            "attestations": list(self.attestations),
            "license_refs": list(self.license_refs),
            "checkpoint": self.checkpoint,
        }
        if self.adapter is None:
            return members
        members |= {
            "adapter_bundle_sha256": self.adapter.bundle_sha256,
            "base_sha256": self.adapter.base_sha256,
            "tokenizer_sha256": self.adapter.tokenizer_sha256,
            "versions": dict(self.adapter.versions),
        }
        training = self.adapter.training
        if training is None:
            return members | {_PROVENANCE: UNKNOWN}
        return members | {
            "dataset_sha256": training.dataset_sha256,
            "training_settings": training.settings.members(),
        }


def input_names(entry: Entry, schema: ProfileSchema) -> tuple[str, ...]:
    """The members that an input has."""
    if entry is Entry.TRAIN:
        return _COMMON
    told = _DECLARED if schema is ProfileSchema.V1 else (_PROVENANCE,)
    return (*_COMMON, *_IMPORT, *told)


def parse_input(data: bytes, *, entry: Entry, schema: ProfileSchema) -> ReleaseInput:
    """Read a canonical input document.

    Args:
        data: the document.
        entry: of the request that names it.
        schema: of the profile that the request names.

    Raises:
        DocumentError: anything else, or a value that no such input has.
    """
    what = "release input"
    document = decode_object(data, what=what)
    with reading(what):
        exact(document, input_names(entry, schema))
        return ReleaseInput(
            profile_sha256=document["profile_sha256"],
            source_sha256=document["source_sha256"],
            attestations=array(document["attestations"], "attestations", 1, MAX_ATTESTATIONS),
            license_refs=array(document["license_refs"], "license_refs", 1, MAX_LICENSES),
            checkpoint=document["checkpoint"],
            adapter=_adapter(document) if entry is Entry.IMPORT else None,
        )


def _adapter(document: dict[str, Any]) -> ImportedAdapter:
    training = None
    if _PROVENANCE in document:
        choice(document[_PROVENANCE], _PROVENANCE, (UNKNOWN,))
    else:
        with reading("training_settings"):
            settings = Settings.of_members(document["training_settings"], checkpoints=False)
        training = DeclaredTraining(dataset_sha256=document["dataset_sha256"], settings=settings)
    return ImportedAdapter(
        bundle_sha256=document["adapter_bundle_sha256"],
        base_sha256=document["base_sha256"],
        tokenizer_sha256=document["tokenizer_sha256"],
        versions=tuple(sorted_names(document["versions"], "versions").items()),
        training=training,
    )


def encode_input(value: ReleaseInput) -> bytes:
    """Write the canonical bytes of an input document."""
    return encode(value.members())


def check_input(value: ReleaseInput, *, request: ReleaseRequest, profile: Profile) -> None:
    """Refuse an input, a profile and a request that do not belong together.

    Raises:
        DocumentError: with the member that differs, and both of its values.
    """
    with reading("release input"):
        _same("entry", value.entry.value, request.entry.value)
        own = profile_digest(profile)
        _same("profile_sha256 of the request", request.profile_sha256, own)
        _same("profile_sha256", value.profile_sha256, own)
        if profile.evaluation_policy is not None and request.evaluation_policy != profile.evaluation_policy:
            raise DocumentError(
                "evaluation_policy of the request is not the profile's", rule="policy-binding"
            )
        for license_ref in value.license_refs:
            if license_ref not in profile.license_refs:
                raise DocumentError(f"licence {license_ref} is not among the profile's", rule="license")
        if value.checkpoint is not None and profile.schema is ProfileSchema.V1:
            raise DocumentError("checkpoint must be null in the oldest schema", rule="checkpoint")
        if value.adapter is not None:
            _check_adapter(value.adapter, profile)


def _check_adapter(adapter: ImportedAdapter, profile: Profile) -> None:
    _same("base_sha256", adapter.base_sha256, profile.base)
    _same("tokenizer_sha256", adapter.tokenizer_sha256, profile.tokenizer_sha256)
    found, wanted = dict(adapter.versions), dict(profile.versions)
    for name in sorted(found.keys() | wanted.keys()):
        _same(f"versions.{name}", found.get(name, "none"), wanted.get(name, "none"))
    if (adapter.training is None) == (profile.schema is ProfileSchema.V1):
        raise DocumentError("provenance of the adapter is not told as the profile's schema wants it")
    if adapter.training is not None:
        _same("dataset_sha256", adapter.training.dataset_sha256, profile.train_data)
        if adapter.training.settings != profile.settings:
            raise DocumentError("training_settings are not the profile's settings", rule="input-binding")


def _same(name: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise DocumentError(f"{name} is {found}; it must be {wanted}", rule="input-binding")
