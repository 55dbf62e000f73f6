"""The profile: everything about a release that is the same for many releases, pinned by one digest.

There are three schemas. The two older ones stand for the qualified stack and repeat nothing of it but the
versions. Ours has one more member, ``stack``, which says all of it; so any stack can be a profile, and what a
stack could choose by itself cannot be left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ticket_agent.peft.release.bundle import (
    BASE_CONFIG,
    BASE_WEIGHTS,
    BundleManifest,
    encode_bundle,
    tokenizer_digest,
)
from ticket_agent.peft.release.canonical import decode_object, digest, digest_of, encode
from ticket_agent.peft.release.checkpoint import CHECKPOINT_FILES
from ticket_agent.peft.release.context import (
    EVALUATOR,
    EvaluationContext,
    parameters_digest,
    preprocessing_digest,
    resource_digest,
    runtime_digest,
)
from ticket_agent.peft.release.document_error import DocumentError, reading
from ticket_agent.peft.release.qualified import QUALIFIED_STACK, QUALIFIED_VERSIONS
from ticket_agent.peft.release.request import Direction, EvaluationPolicy, parse_policy
from ticket_agent.peft.release.rules import (
    array,
    choice,
    digest_text,
    exact,
    pairs,
    refuse,
    sorted_names,
    text,
)
from ticket_agent.peft.release.settings import EXACT, Canary, Settings
from ticket_agent.peft.release.stack import Stack, required_packages
from ticket_agent.peft.release.versions import check_versions

__all__ = [
    "EVAL_LOSS",
    "Profile",
    "ProfileSchema",
    "capabilities",
    "check_base",
    "check_licenses",
    "check_references",
    "encode_profile",
    "parse_profile",
    "profile_digest",
]

EVAL_LOSS: Final = "eval_loss"
MAX_LICENSES: Final = 8
MAX_LICENSE_BYTES: Final = 256
MAX_ATTESTATIONS: Final = 4
MAX_KEY_ID_BYTES: Final = 64

_COMMON: Final = (
    "schema",
    "versions",
    "base",
    "tokenizer_sha256",
    "context",
    "train_data",
    "eval_data",
    "settings",
    "canary",
    "license_refs",
    "source_sha256",
    "attestations",
    "attestation_keys",
)
_NEWER: Final = ("capabilities_sha256", "evaluation_policy")


class ProfileSchema(StrEnum):
    """The schemas, from old to new."""

    V1 = "cohesix-hf-profile/v1"
    V2 = "cohesix-hf-profile/v2"
    OURS = "ticket-agent-release-profile/v1"

    @property
    def names(self) -> tuple[str, ...]:
        """The members of a profile of this schema."""
        if self is ProfileSchema.V1:
            return _COMMON
        return (*_COMMON, *_NEWER) if self is ProfileSchema.V2 else (*_COMMON, *_NEWER, "stack")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A profile.

    The evaluation context and the capabilities of the document are not here: they follow from the rest.

    Attributes:
        schema: which document it is.
        versions: packages and the one version that each must have, sorted by name.
        base: digest of the base model's bundle manifest.
        tokenizer_sha256: digest of the tokenizer's files.
        train_data: digest of the training rows.
        eval_data: digest of the evaluation rows.
        settings: of the training.
        canary: the frozen prompts.
        license_refs: 1..=8 licences that inputs may be used under.
        source_sha256: digest of the description of the sources.
        attestations: digests of the 1..=4 attestations of the profile itself, all of which must hold.
        attestation_keys: 1..=4 names and Ed25519 public keys (64 hexadecimal digits), sorted by name.
        evaluation_policy: what a request must ask for; None in the oldest schema, where any will do.
        stack: the native stack.

    Raises:
        DocumentError: a value that no profile has, or a pin that is missing.
    """

    schema: ProfileSchema
    versions: tuple[tuple[str, str], ...]
    base: str
    tokenizer_sha256: str
    train_data: str
    eval_data: str
    settings: Settings
    canary: Canary
    license_refs: tuple[str, ...]
    source_sha256: str
    attestations: tuple[str, ...]
    attestation_keys: tuple[tuple[str, str], ...]
    evaluation_policy: EvaluationPolicy | None
    stack: Stack = QUALIFIED_STACK

    def __post_init__(self) -> None:
        check_versions(self.versions, required_packages(self.stack.serving))
        for name in ("base", "tokenizer_sha256", "train_data", "eval_data", "source_sha256"):
            digest_text(getattr(self, name), name)
        if self.train_data == self.eval_data:
            raise DocumentError("train_data and eval_data must be distinct", rule="data-overlap")
        check_licenses(self.license_refs)
        check_references(self.attestations)
        if not 1 <= len(self.attestation_keys) <= MAX_ATTESTATIONS:
            refuse("attestation_keys", f"1..={MAX_ATTESTATIONS} keys")
        for name, key in self.attestation_keys:
            text(name, "each name in attestation_keys", MAX_KEY_ID_BYTES)
            digest_text(key, f"attestation_keys.{name}", code="attestation-key")
        for name in ("versions", "attestation_keys"):
            object.__setattr__(self, name, pairs(dict(getattr(self, name))))
        if self.schema is not ProfileSchema.OURS:
            self._check_qualified()
        oldest = self.schema is ProfileSchema.V1
        with reading("settings"):
            self.settings.check(self.stack.limits, checkpoints=not oldest)
        if oldest != (self.evaluation_policy is None):
            refuse("evaluation_policy", "given, except in the oldest schema")
        if self.evaluation_policy is not None:
            with reading("evaluation_policy"):
                self._check_policy(self.evaluation_policy)

    def _check_qualified(self) -> None:
        if self.canary.acceptance != EXACT:
            refuse("canary.acceptance", "the strictest; the older schemas cannot say another")
        if self.stack != QUALIFIED_STACK:
            raise DocumentError(
                f"schema must be {ProfileSchema.OURS} for a stack of its own", rule="release-schema"
            )
        for (name, found), (_, wanted) in zip(self.versions, QUALIFIED_VERSIONS, strict=False):
            if found != wanted:
                raise DocumentError(
                    f"versions.{name} is {found}; it was qualified with {wanted}", rule="pins"
                )
        if self.versions != QUALIFIED_VERSIONS:
            raise DocumentError("versions must be those of the qualified stack and no more", rule="pins")

    def _check_policy(self, policy: EvaluationPolicy) -> None:
        limits = self.stack.limits
        if policy.minimum_samples != limits.eval_rows:
            refuse("minimum_samples", f"{limits.eval_rows}, the rows of the evaluation")
        if [metric.name for metric in policy.metrics] != [EVAL_LOSS]:
            refuse("metrics", f"{EVAL_LOSS} alone, which is what the evaluator measures")
        metric = policy.metrics[0]
        if metric.direction is not Direction.LOWER:
            refuse("direction", '"lower" for a loss', code="metric-bound")
        if not 0 < metric.absolute_bound <= limits.loss:
            refuse("absolute_bound", f"above 0.0 and at most {limits.loss}", code="metric-bound")
        if metric.maximum_regression != 0:
            refuse("maximum_regression", "0.0", code="metric-bound")

    @property
    def runtime_sha256(self) -> str:
        """The runtime that a deployment of this profile names."""
        return runtime_digest(dict(self.versions), self.stack.device)

    @property
    def context(self) -> EvaluationContext:
        """The conditions of every evaluation under this profile."""
        settings = self.settings
        return EvaluationContext(
            dataset_sha256=self.eval_data,
            split=f"heldout-{self.stack.limits.eval_rows}",
            preprocessing_sha256=preprocessing_digest(settings.max_length),
            base_sha256=self.base,
            tokenizer_sha256=self.tokenizer_sha256,
            evaluator=EVALUATOR,
            evaluator_version=dict(self.versions)["transformers"],
            parameters_sha256=parameters_digest(
                batch_size=settings.batch_size, max_length=settings.max_length, seed=settings.seed
            ),
            seed_policy=f"fixed:{settings.seed}",
            runtime_sha256=self.runtime_sha256,
            resource_sha256=resource_digest(self.stack.device),
        )

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        members = {
            "schema": self.schema.value,
            "versions": dict(self.versions),
            "context": self.context.members(),
            "settings": self.settings.members(),
            "canary": self.canary.members(older=self.schema is not ProfileSchema.OURS),
            "license_refs": list(self.license_refs),
            "attestations": list(self.attestations),
            "attestation_keys": dict(self.attestation_keys),
            "capabilities_sha256": digest_of(capabilities(self.stack)),
            "evaluation_policy": self.evaluation_policy and self.evaluation_policy.members(),
            "stack": self.stack.members(),
        }
        return {name: members[name] if name in members else getattr(self, name) for name in self.schema.names}


def capabilities(stack: Stack) -> dict[str, Any]:
    """What a stack can do, as the object that a profile names by its digest."""
    return {
        "schema": "cohesix-peft-capabilities/v1",
        "base_model": stack.base.source,
        "base_revision": stack.base.revision,
        "training": ["lora"],
        "import_formats": ["peft-lora-safetensors"],
        "checkpoint": "hf-trainer-full-state/v1",
        "checkpoint_files": list(CHECKPOINT_FILES),
        "checkpoint_interval_max": stack.limits.checkpoint_interval,
        "serving": stack.serving,
        "qlora": False,
    }


def parse_profile(data: bytes) -> Profile:
    """Read a canonical profile of any of the three schemas.

    Raises:
        DocumentError: anything else, a pin that is missing, or a derived member that does not follow from the
            rest.
    """
    what = "profile"
    document = decode_object(data, what=what)
    with reading(what):
        schema = ProfileSchema(
            choice(document.get("schema"), "schema", [s.value for s in ProfileSchema], code="release-schema")
        )
        exact(document, schema.names)
        profile = _profile(schema, document)
        derived = profile.members()
        for name, value in profile.context.members().items():
            found = exact(document["context"], derived["context"], "context")[name]
            if found != value:
                raise DocumentError(
                    f"context.{name} does not follow from the profile; it must be {value}", rule="context"
                )
        if "capabilities_sha256" in schema.names:
            wanted = derived["capabilities_sha256"]
            if document["capabilities_sha256"] != wanted:
                refuse("capabilities_sha256", f"{wanted}, which follows from the stack", code="capabilities")
    return profile


def _profile(schema: ProfileSchema, document: dict[str, Any]) -> Profile:
    newer = schema is not ProfileSchema.V1
    with reading("stack"):
        stack = Stack.of_members(document["stack"]) if "stack" in schema.names else QUALIFIED_STACK
    with reading("settings"):
        settings = Settings.of_members(document["settings"], checkpoints=newer)
    with reading("canary"):
        canary = Canary.of_members(document["canary"], older=schema is not ProfileSchema.OURS)
    return Profile(
        schema=schema,
        versions=tuple(sorted_names(document["versions"], "versions").items()),
        base=document["base"],
        tokenizer_sha256=document["tokenizer_sha256"],
        train_data=document["train_data"],
        eval_data=document["eval_data"],
        settings=settings,
        canary=canary,
        license_refs=array(document["license_refs"], "license_refs", 1, MAX_LICENSES),
        source_sha256=document["source_sha256"],
        attestations=array(document["attestations"], "attestations", 1, MAX_ATTESTATIONS),
        attestation_keys=tuple(sorted_names(document["attestation_keys"], "attestation_keys").items()),
        evaluation_policy=parse_policy(document["evaluation_policy"]) if newer else None,
        stack=stack,
    )


def encode_profile(profile: Profile) -> bytes:
    """Write the canonical bytes of a profile."""
    return encode(profile.members())


def profile_digest(profile: Profile) -> str:
    """The SHA-256 that requests and inputs name the profile by."""
    return digest(encode_profile(profile))


def check_base(profile: Profile, manifest: BundleManifest) -> None:
    """Refuse a base model that is not the one that the profile pins.

    Its ``config.json`` is compared on its own:
    see :func:`~ticket_agent.peft.release.geometry.check_base_config`.

    Raises:
        DocumentError: another bundle, source, revision, weights or tokenizer, or no ``config.json``.
    """
    pin = profile.stack.base
    with reading("base model"):
        manifest.file(BASE_CONFIG)
        for name, found, wanted in (
            ("bundle", digest(encode_bundle(manifest)), profile.base),
            ("source", manifest.source, pin.source),
            ("revision", manifest.revision, pin.revision),
            (BASE_WEIGHTS, manifest.file(BASE_WEIGHTS), pin.weights_sha256),
            ("tokenizer", tokenizer_digest(dict(manifest.files)), profile.tokenizer_sha256),
        ):
            if found != wanted:
                raise DocumentError(f"{name} is {found}; the profile pins {wanted}", rule="base-pin")


def check_licenses(licenses: tuple[str, ...]) -> None:
    """Hold the rule for a list of licences: 1..=8 different ones of 1..=256 bytes.

    Raises:
        DocumentError: it does not keep it.
    """
    array(licenses, "license_refs", 1, MAX_LICENSES)
    for license_ref in licenses:
        text(license_ref, "each of license_refs", MAX_LICENSE_BYTES)
    if len(set(licenses)) != len(licenses):
        refuse("license_refs", "different from one another")


def check_references(attestations: tuple[str, ...]) -> None:
    """Hold the rule for a list of attestations: 1..=4 different digests.

    Raises:
        DocumentError: it does not keep it.
    """
    array(attestations, "attestations", 1, MAX_ATTESTATIONS)
    for reference in attestations:
        digest_text(reference, "each of attestations")
    if len(set(attestations)) != len(attestations):
        refuse("attestations", "different from one another")
