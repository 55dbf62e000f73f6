"""Job directories of native phases as an agent would prepare them, on a tiny model that the tests make."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import tiny_base
from release_support import CANARY, SETTINGS, policy, release_input, request, sha, tiny_stack

from ticket_agent.peft.release.bundle import BundleManifest, adapter_identity, encode_bundle, tokenizer_digest
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.checkpoint import parse_checkpoint
from ticket_agent.peft.release.data import encode_rows
from ticket_agent.peft.release.geometry import Geometry
from ticket_agent.peft.release.inputs import ReleaseInput, encode_input
from ticket_agent.peft.release.native.job import JobFacts
from ticket_agent.peft.release.profile import Profile, ProfileSchema, encode_profile, profile_digest
from ticket_agent.peft.release.request import DeploymentState, Entry, ReleaseRequest, encode_request
from ticket_agent.peft.release.stack import BasePin, Stack, required_packages

if TYPE_CHECKING:
    from pathlib import Path

EVAL_ROWS = 16
STEPS = 12
INTERVAL = 4
RATE = 0.02


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: digest(path.read_bytes()) for path in sorted(folder.iterdir())}


def identity(adapter: Path) -> str:
    files = digests(adapter)
    return adapter_identity(files["adapter_config.json"], files["adapter_model.safetensors"])


@dataclass(frozen=True, kw_only=True)
class World:
    """One base model, and the profile of it."""

    base: Path
    profile: Profile
    train: bytes
    held_out: bytes

    @classmethod
    def of(cls, base: Path, **settings: Any) -> World:
        train, held_out = (
            encode_rows(tiny_base.rows(count, start), what="rows")
            for count, start in ((24, 100), (EVAL_ROWS, 500))
        )
        manifest = bundle(base, "local/tiny-llama", "seed-7")
        stack = _stack(base)
        profile = Profile(
            schema=ProfileSchema.OURS,
            versions=tuple((name, version(name)) for name in required_packages(stack.serving)),
            base=digest(encode_bundle(manifest)),
            tokenizer_sha256=tokenizer_digest(dict(manifest.files)),
            train_data=digest(train),
            eval_data=digest(held_out),
            settings=replace(
                SETTINGS,
                max_steps=STEPS,
                checkpoint_interval=INTERVAL,
                learning_rate=RATE,
                rank=2,
                **settings,
            ),
            canary=replace(CANARY, prompts=("the sea", "a lamp near", "the old keeper", "north wind and")),
            license_refs=("Apache-2.0",),
            source_sha256=sha("sources"),
            attestations=(sha("attestation"),),
            attestation_keys=(("local-reference-source", "ab" * 32),),
            evaluation_policy=policy(bound=9.0, samples=EVAL_ROWS),
            stack=stack,
        )
        return cls(base=base, profile=profile, train=train, held_out=held_out)

    @property
    def bare(self) -> DeploymentState:
        """The base model alone is served."""
        return DeploymentState(
            generation=0,
            adapter_sha256=None,
            served_artifact_sha256=self.profile.base,
            runtime_sha256=self.profile.runtime_sha256,
            healthy=True,
            rollback_verified=True,
        )

    def serving(self, adapter: Path) -> DeploymentState:
        """An adapter is served."""
        served = identity(adapter)
        return replace(self.bare, generation=1, adapter_sha256=served, served_artifact_sha256=served)


def _stack(base: Path) -> Stack:
    tiny = tiny_stack()
    return replace(
        tiny,
        base=BasePin(
            source="local/tiny-llama",
            revision="seed-7",
            weights_sha256=digest((base / "model.safetensors").read_bytes()),
        ),
        geometry=Geometry(
            architecture="LlamaForCausalLM",
            layers=tiny_base.LAYERS,
            hidden_size=tiny_base.HIDDEN,
            intermediate_size=tiny_base.INTERMEDIATE,
            heads=tiny_base.HEADS,
            kv_heads=tiny_base.KV_HEADS,
            head_dim=tiny_base.HEAD_DIM,
            vocab_size=tiny_base.VOCABULARY_SIZE,
            target_modules=("q_proj", "v_proj"),
        ),
        platform=replace(tiny.platform, python=f"{sys.version_info[0]}.{sys.version_info[1]}"),
        limits=replace(tiny.limits, eval_rows=EVAL_ROWS),
    )


def bundle(folder: Path, source: str, revision: str) -> BundleManifest:
    return BundleManifest(
        files=tuple(digests(folder).items()), source=source, revision=revision, license_ref="Apache-2.0"
    )


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A job directory, and what is asked for in it."""

    path: Path
    request: ReleaseRequest

    @property
    def inputs(self) -> Path:
        return self.path / "in"

    @property
    def out(self) -> Path:
        return self.path / "out"

    def observed(self, phase: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / f"{phase}.json").read_bytes())
        return found


def prepare(
    path: Path,
    world: World,
    entry: Entry,
    *,
    adapter: Path | None = None,
    incumbent: Path | None = None,
    checkpoint: Path | None = None,
    operation: str = "release-one",
    named: bool = True,
    by_reference: bool = False,
) -> Prepared:
    """Prepare a job; what is given as a directory is copied into it, or named as standing elsewhere.

    Args:
        path: the job directory, to be made.
        world: base model and profile.
        entry: what the release does.
        adapter: the candidate.
        incumbent: what is served; the base model if it is None.
        checkpoint: an ``out`` directory whose newest checkpoint is gone on from.
        operation: the release.
        named: the candidate's identity is known.
        by_reference: nothing is copied.
    """
    inputs = path / "in"
    (path / "out").mkdir(parents=True)
    value = _input(world, entry, adapter, checkpoint)
    asked = request(
        operation_id=operation,
        entry=entry,
        profile_sha256=profile_digest(world.profile),
        input_sha256=digest(encode_input(value)),
        evaluation_policy=world.profile.evaluation_policy,
        baseline=world.bare if incumbent is None else world.serving(incumbent),
    )
    places: dict[str, Path] = {"base": world.base}
    if adapter is not None:
        places["adapter"] = adapter
    if incumbent is not None:
        places["incumbent"] = incumbent
    if checkpoint is not None:
        newest = (checkpoint / "checkpoint.json").read_bytes()
        places["checkpoint"] = checkpoint / "checkpoints" / digest(newest)
    facts = JobFacts(
        operation_id=operation,
        request_sha256=digest(encode_request(asked)),
        native_identity=f"test:{operation}",
        candidate_sha256=identity(adapter) if adapter is not None and named else None,
        places={name: str(place) for name, place in places.items()} if by_reference else {},
    )
    documents = {
        "job.json": facts.encode(),
        "request.json": encode_request(asked),
        "profile.json": encode_profile(world.profile),
        "input.json": encode_input(value),
        "train-rows.json": world.train,
        "eval-rows.json": world.held_out,
        "base.json": encode_bundle(bundle(world.base, "local/tiny-llama", "seed-7")),
    }
    if adapter is not None:
        documents["adapter.json"] = encode_bundle(bundle(adapter, "elsewhere/adapter", "1"))
    if checkpoint is not None:
        documents["checkpoint.json"] = (checkpoint / "checkpoint.json").read_bytes()
    if not by_reference:
        for name, place in places.items():
            shutil.copytree(place, inputs / name)
    for name, data in documents.items():
        write(inputs / name, data)
    return Prepared(path=path, request=asked)


def _input(world: World, entry: Entry, adapter: Path | None, checkpoint: Path | None) -> ReleaseInput:
    value = release_input(world.profile, entry)
    if value.adapter is not None:
        assert adapter is not None
        manifest = bundle(adapter, "elsewhere/adapter", "1")
        value = replace(value, adapter=replace(value.adapter, bundle_sha256=digest(encode_bundle(manifest))))
    if checkpoint is not None:
        newest = (checkpoint / "checkpoint.json").read_bytes()
        parse_checkpoint(newest)
        value = replace(value, checkpoint=digest(newest))
    return value
