"""Documents of a release: the qualified profile, a tiny one on a CPU, and what belongs to them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from ticket_agent.peft.release.bundle import BundleManifest, encode_bundle, tokenizer_digest
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.geometry import Geometry
from ticket_agent.peft.release.inputs import DeclaredTraining, ImportedAdapter, ReleaseInput
from ticket_agent.peft.release.profile import Profile, ProfileSchema, profile_digest
from ticket_agent.peft.release.qualified import QUALIFIED_STACK, QUALIFIED_VERSIONS
from ticket_agent.peft.release.request import (
    DeploymentState,
    Direction,
    Entry,
    EvaluationPolicy,
    Metric,
    ReleaseRequest,
)
from ticket_agent.peft.release.settings import Canary, Settings
from ticket_agent.peft.release.stack import BasePin, Caps, Device, Limits, Platform, Stack

MIB = 1024 * 1024


def sha(text: str) -> str:
    """A digest that is different for every text."""
    return hashlib.sha256(text.encode()).hexdigest()


def policy(bound: float = 4.0, samples: int = 16, age_ms: int = 1000) -> EvaluationPolicy:
    return EvaluationPolicy(
        minimum_samples=samples,
        maximum_age_ms=age_ms,
        metrics=(
            Metric(name="eval_loss", direction=Direction.LOWER, absolute_bound=bound, maximum_regression=0.0),
        ),
    )


def base_state(**changes: Any) -> DeploymentState:
    members: dict[str, Any] = {
        "generation": 0,
        "adapter_sha256": None,
        "served_artifact_sha256": "33" * 32,
        "runtime_sha256": "66" * 32,
        "healthy": True,
        "rollback_verified": True,
    }
    return DeploymentState(**(members | changes))


def promoted(state: DeploymentState, adapter: str) -> DeploymentState:
    """The state that a promotion of ``adapter`` leads to."""
    return replace(
        state, generation=state.generation + 1, adapter_sha256=adapter, served_artifact_sha256=adapter
    )


def request(**changes: Any) -> ReleaseRequest:
    """The published example of a request."""
    members: dict[str, Any] = {
        "operation_id": "release-one",
        "model_id": "adapter-one",
        "entry": Entry.IMPORT,
        "profile_sha256": "aa" * 32,
        "input_sha256": "bb" * 32,
        "evaluation_policy": policy(),
        "baseline": base_state(),
    }
    return ReleaseRequest(**(members | changes))


def base_bundle(stack: Stack) -> BundleManifest:
    """A base model of which only the pinned weights are the real one's."""
    return BundleManifest(
        files=(
            ("config.json", sha("config")),
            ("model.safetensors", stack.base.weights_sha256),
            ("tokenizer.json", sha("tokenizer")),
            ("tokenizer_config.json", sha("tokenizer config")),
            ("vocab.json", sha("vocabulary")),
        ),
        source=stack.base.source,
        revision=stack.base.revision,
        license_ref="Apache-2.0",
    )


def tiny_stack() -> Stack:
    """A random two-layer Llama on a CPU."""
    return Stack(
        base=BasePin(source="local/tiny-llama", revision="seed-1", weights_sha256=sha("tiny weights")),
        geometry=Geometry(
            architecture="LlamaForCausalLM",
            layers=2,
            hidden_size=16,
            intermediate_size=32,
            heads=4,
            kv_heads=2,
            head_dim=4,
            vocab_size=64,
            target_modules=("q_proj", "v_proj"),
        ),
        platform=Platform(python="3.11", cuda=None),
        device=Device(device="cpu", dtype="float32", attention="eager", threads=1, memory_fraction=None),
        serving="transformers-serve-local",
        caps=Caps(
            phase_memory_bytes=2048 * MIB,
            serving_memory_bytes=1024 * MIB,
            file_bytes=64 * MIB,
            tasks=64,
            cpu_percent=200,
            phase_ms=120_000,
        ),
        limits=Limits(
            ranks=(2, 4),
            lengths=(32, 64),
            steps=200,
            learning_rate=0.05,
            checkpoint_interval=50,
            eval_rows=24,
            loss=10.0,
            adapter_bytes=MIB,
            base_bytes=16 * MIB,
        ),
    )


SETTINGS = Settings(
    seed=41,
    max_steps=32,
    learning_rate=0.0005,
    rank=4,
    max_length=64,
    batch_size=1,
    checkpoint_interval=8,
)
CANARY = Canary(
    prompts=("The sea is", "A lamp", "Zwölf Boxkämpfer", "Once"), max_tokens=8, maximum_latency_ms=5000
)


def profile(schema: ProfileSchema = ProfileSchema.V2, **changes: Any) -> Profile:
    """The qualified profile, or with our own schema the tiny one."""
    ours = schema is ProfileSchema.OURS
    stack = changes.get("stack", tiny_stack() if ours else QUALIFIED_STACK)
    bundle = base_bundle(stack)
    versions = dict(QUALIFIED_VERSIONS) | ({"torch": "2.9.1+cpu"} if not stack.device.on_gpu else {})
    oldest = schema is ProfileSchema.V1
    members: dict[str, Any] = {
        "schema": schema,
        "versions": tuple(versions.items()),
        "base": digest(encode_bundle(bundle)),
        "tokenizer_sha256": tokenizer_digest(dict(bundle.files)),
        "train_data": sha("train rows"),
        "eval_data": sha("eval rows"),
        "settings": replace(SETTINGS, checkpoint_interval=None) if oldest else SETTINGS,
        "canary": CANARY,
        "license_refs": ("Apache-2.0", "CC-BY-4.0"),
        "source_sha256": sha("sources"),
        "attestations": (sha("attestation"),),
        "attestation_keys": (("local-reference-source", "ab" * 32),),
        "evaluation_policy": None if oldest else policy(samples=stack.limits.eval_rows),
        "stack": stack,
    }
    return Profile(**(members | changes))


def release_input(of: Profile, entry: Entry, **changes: Any) -> ReleaseInput:
    """An input that belongs to a profile."""
    adapter = None
    if entry is Entry.IMPORT:
        training = None
        if of.schema is ProfileSchema.V1:
            training = DeclaredTraining(dataset_sha256=of.train_data, settings=of.settings)
        adapter = ImportedAdapter(
            bundle_sha256=sha("adapter bundle"),
            base_sha256=of.base,
            tokenizer_sha256=of.tokenizer_sha256,
            versions=of.versions,
            training=training,
        )
    members: dict[str, Any] = {
        "profile_sha256": profile_digest(of),
        "source_sha256": sha("sources"),
        "attestations": (sha("input attestation"),),
        "license_refs": ("Apache-2.0",),
        "adapter": adapter,
    }
    return ReleaseInput(**(members | changes))


def rows(count: int, word: str = "row") -> tuple[str, ...]:
    return tuple(f"{word} {number} of a small set of texts" for number in range(count))
