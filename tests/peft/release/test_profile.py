from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from release_support import CANARY, SETTINGS, base_bundle, policy, profile, sha, tiny_stack

from ticket_agent.peft.release.canonical import decode_object, digest_of, encode
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.profile import (
    ProfileSchema,
    capabilities,
    check_base,
    encode_profile,
    parse_profile,
)
from ticket_agent.peft.release.qualified import QUALIFIED_STACK
from ticket_agent.peft.release.request import Direction, Metric
from ticket_agent.peft.release.settings import Canary
from ticket_agent.peft.release.stack import Stack, required_packages

if TYPE_CHECKING:
    from collections.abc import Iterator

OURS, V1, V2 = ProfileSchema.OURS, ProfileSchema.V1, ProfileSchema.V2
GOOD = {schema: json.loads(encode_profile(profile(schema))) for schema in ProfileSchema}


def changed(schema: ProfileSchema, path: str, value: object) -> bytes:
    document = copy.deepcopy(GOOD[schema])
    place = document
    *way, last = path.split("/")
    for name in way:
        place = place[name]
    if value is DROPPED:
        del place[last]
    else:
        place[last] = value
    return encode(document)


DROPPED = object()


@pytest.mark.parametrize("schema", ProfileSchema)
def test_a_profile_is_read_back(schema: ProfileSchema) -> None:
    made = profile(schema)
    data = encode_profile(made)
    assert parse_profile(data) == made
    assert encode_profile(parse_profile(data)) == data


def test_both_stacks_are_expressible_in_our_schema() -> None:
    for stack in (tiny_stack(), QUALIFIED_STACK):
        made = profile(OURS, stack=stack)
        assert parse_profile(encode_profile(made)).stack == stack
        assert Stack.of_members(decode_object(encode(stack.members()), what="stack")) == stack


def leaves(value: object, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, f"{path}/{name}")
    else:
        yield path


@pytest.mark.parametrize("path", list(leaves(GOOD[OURS]["stack"], "stack")))
def test_a_stack_has_no_defaults(path: str) -> None:
    with pytest.raises(DocumentError, match=f"has no member {path.rpartition('/')[2]}"):
        parse_profile(changed(OURS, path, DROPPED))


@pytest.mark.parametrize("package", required_packages("transformers-serve-local"))
@pytest.mark.parametrize("schema", ProfileSchema)
def test_every_package_needs_its_pin(package: str, schema: ProfileSchema) -> None:
    with pytest.raises(DocumentError, match=f"no pin for {package}") as caught:
        parse_profile(changed(schema, f"versions/{package}", DROPPED))
    assert caught.value.rule == "pins"


@pytest.mark.parametrize("backend", ["transformers-serve-local", "vllm-local"])
def test_a_backend_needs_pins_of_its_own(backend: str) -> None:
    common = {"torch", "transformers", "peft", "accelerate", "safetensors", "tokenizers", "huggingface-hub"}
    assert common <= set(required_packages(backend))
    assert ("vllm" in required_packages(backend)) == (backend == "vllm-local")


@pytest.mark.parametrize(
    "version", ["", "*", ">=2.4", "2.*", "~=2.4", "2.4 ", "latest", "2.4,2.5", 2, None, "1" * 65, "v2.4"]
)
def test_a_pin_is_one_version(version: object) -> None:
    with pytest.raises(DocumentError, match=r"versions\.torch must be one exact version"):
        parse_profile(changed(OURS, "versions/torch", version))


@pytest.mark.parametrize("version", ["2.9.1+cu126", "2.9.1", "0.6.2rc1", "1.0.post1", "2025.1.0.dev3"])
def test_exact_versions(version: str) -> None:
    document = copy.deepcopy(GOOD[OURS])
    document["versions"]["torch"] = version
    made = profile(OURS, versions=tuple(document["versions"].items()))
    assert parse_profile(encode_profile(made)) == made


@pytest.mark.parametrize("name", ["Torch", "huggingface_hub", "a b", "", "x" * 65, "-a"])
def test_names_of_packages_are_normalised(name: str) -> None:
    with pytest.raises(DocumentError, match="lowercase with dashes"):
        parse_profile(changed(OURS, f"versions/{name}", "1.0"))


TIES = [
    (V2, "versions/torch", "2.9.0", "pins", "it was qualified with 2.9.1"),
    (V2, "versions/vllm", "0.9.0", "pins", "no more"),
    (V2, "schema", "cohesix-hf-profile/v3", "release-schema", "schema must be"),
    (V2, "schema", None, "release-schema", "schema must be"),
    (V2, "stack", {}, "member-unknown", "unknown member stack"),
    (V1, "evaluation_policy", {}, "member-unknown", "evaluation_policy"),
    (V2, "evaluation_policy", DROPPED, "member-missing", "evaluation_policy"),
    (V2, "context/evaluator", "other", "context", "does not follow"),
    (V2, "context/split", "heldout-17", "context", "it must be heldout-16"),
    (V2, "context/runtime_sha256", "00" * 32, "context", "context.runtime_sha256"),
    (V2, "context/extra", 1, "member-unknown", "context.extra"),
    (V2, "context/split", DROPPED, "member-missing", "context.split"),
    (V2, "capabilities_sha256", "00" * 32, "capabilities", "follows from the stack"),
    (V2, "eval_data", sha("train rows"), "data-overlap", "distinct"),
    (V2, "base", "x", "release-artifact-identity", "base"),
    (V2, "license_refs", [], "release-document", "1..=8"),
    (V2, "license_refs", ["a"] * 2, "release-document", "different"),
    (V2, "license_refs", [f"l{n}" for n in range(9)], "release-document", "1..=8"),
    (V2, "license_refs", ["x" * 257], "release-document", "1..=256"),
    (V2, "license_refs", "MIT", "release-document", "a list"),
    (V2, "attestations", [], "release-document", "1..=4"),
    (V2, "attestations", [sha(str(n)) for n in range(5)], "release-document", "1..=4"),
    (V2, "attestations", [sha("a")] * 2, "release-document", "different"),
    (V2, "attestation_keys", {}, "release-document", "1..=4 keys"),
    (V2, "attestation_keys", {f"k{n}": "ab" * 32 for n in range(5)}, "release-document", "1..=4"),
    (V2, "attestation_keys", {"k": "ab" * 31}, "attestation-key", "attestation_keys.k"),
    (V2, "settings/seed", -1, "release-bounds", "settings: seed"),
    (V2, "settings/seed", 2**32, "release-bounds", "settings: seed"),
    (V2, "settings/max_steps", 0, "release-bounds", "1..=64"),
    (V2, "settings/max_steps", 65, "release-bounds", "1..=64"),
    (V2, "settings/max_steps", True, "release-bounds", "max_steps"),
    (V2, "settings/learning_rate", 0.0, "release-document", "above 0.0"),
    (V2, "settings/learning_rate", 0.0011, "release-document", "at most 0.001"),
    (V2, "settings/learning_rate", 1, "release-bounds", "with a fraction"),
    (V2, "settings/rank", 3, "release-bounds", "2 or 4 or 8"),
    (V2, "settings/rank", 4.0, "release-bounds", "rank"),
    (V2, "settings/max_length", 96, "release-bounds", "64 or 128"),
    (V2, "settings/batch_size", 2, "release-bounds", "batch_size must be 1"),
    (V2, "settings/checkpoint_interval", 17, "release-bounds", "1..=16"),
    (V2, "settings/checkpoint_interval", 0, "release-bounds", "1..=16"),
    (V2, "settings/checkpoint_interval", DROPPED, "member-missing", "checkpoint_interval"),
    (V1, "settings/checkpoint_interval", 8, "member-unknown", "checkpoint_interval"),
    (V2, "settings/extra", 8, "member-unknown", "extra"),
    (V2, "canary/prompts", ["a", "b", "c"], "release-document", "4..=4"),
    (V2, "canary/prompts", ["a", "b", "c", "c"], "release-document", "different"),
    (V2, "canary/prompts", ["a", "b", "c", ""], "release-document", "1..=256"),
    (V2, "canary/prompts", ["a", "b", "c", "é" * 129], "release-document", "1..=256"),
    (V2, "canary/prompts", ["a", "b", "c", 4], "release-document", "1..=256"),
    (V2, "canary/max_tokens", 9, "release-bounds", "1..=8"),
    (V2, "canary/maximum_latency_ms", 30_001, "release-bounds", "1..=30000"),
    (V2, "evaluation_policy/minimum_samples", 15, "release-document", "16, the rows"),
    (OURS, "evaluation_policy/minimum_samples", 16, "release-document", "24, the rows"),
    (V2, "evaluation_policy/metrics/eval_loss/absolute_bound", 8.1, "metric-bound", "at most 8.0"),
    (V2, "evaluation_policy/metrics/eval_loss/absolute_bound", 0.0, "metric-bound", "above 0.0"),
    (V2, "evaluation_policy/metrics/eval_loss/maximum_regression", 0.1, "metric-bound", "0.0"),
    (V2, "evaluation_policy/metrics/eval_loss/direction", "higher", "metric-bound", '"lower"'),
    (OURS, "stack/device/device", "cuda", "release-document", "cuda:<number>"),
    (OURS, "stack/device/device", "cuda:0", "release-bounds", "memory_fraction"),
    (OURS, "stack/device/memory_fraction", 0.5, "release-document", "null on a CPU"),
    (OURS, "stack/device/dtype", "int8", "release-bounds", "dtype"),
    (OURS, "stack/device/threads", 0, "release-bounds", "threads"),
    (OURS, "stack/platform/cuda", "12.6", "release-document", "null on a CPU"),
    (OURS, "stack/platform/python", "3", "release-document", "two numbers"),
    (OURS, "stack/platform/python", None, "release-document", "python"),
    (OURS, "stack/serving", "ollama", "release-bounds", "serving must be"),
    (OURS, "stack/serving", "vllm-local", "pins", "no pin for vllm"),
    (OURS, "stack/caps/file_bytes", 2**23, "release-document", "at least 16777216"),
    (OURS, "stack/caps/phase_memory_bytes", 0, "release-bounds", "phase_memory_bytes"),
    (OURS, "stack/limits/ranks", [4, 2], "release-document", "ascending"),
    (OURS, "stack/limits/ranks", [4, 4], "release-document", "ascending"),
    (OURS, "stack/limits/ranks", [], "release-document", "1..=16"),
    (OURS, "stack/limits/ranks", 4, "release-document", "1..=16"),
    (OURS, "stack/limits/eval_rows", 15, "release-bounds", "16..=256"),
    (OURS, "stack/limits/loss", 100.5, "release-document", "100.0"),
    (OURS, "stack/limits/learning_rate", 1.5, "release-document", "1.0"),
    (OURS, "stack/geometry/layers", 0, "release-bounds", "layers"),
    (OURS, "stack/geometry/architecture", "GPT2LMHeadModel", "release-bounds", "architecture"),
    (OURS, "stack/geometry/kv_heads", 3, "release-document", "divisor"),
    (OURS, "stack/geometry/target_modules", [], "release-document", "1..=7"),
    (OURS, "stack/geometry/target_modules", ["v_proj", "q_proj"], "release-document", "sorted"),
    (OURS, "stack/geometry/target_modules", ["lm_head"], "release-bounds", "target_modules"),
    (OURS, "stack/geometry/target_modules", "q_proj", "release-document", "list"),
    (OURS, "stack/base/weights_sha256", "zz", "release-artifact-identity", "weights_sha256"),
    (OURS, "stack/base/revision", "", "release-document", "revision"),
    (OURS, "stack/base/revision", None, "release-document", "revision"),
    (OURS, "stack", [], "release-document", "object"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "path", "value", "rule", "words"), TIES, ids=[f"{n}-{c[1]}" for n, c in enumerate(TIES)]
)
def test_refused(schema: ProfileSchema, path: str, value: object, rule: str, words: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_profile(changed(schema, path, value))
    assert words in str(caught.value)
    assert caught.value.rule == rule
    assert str(caught.value).startswith("profile: ")


@pytest.mark.parametrize("name", GOOD[OURS])
def test_every_member_is_required(name: str) -> None:
    with pytest.raises(DocumentError):
        parse_profile(changed(OURS, name, DROPPED))


def test_only_our_schema_has_other_stacks() -> None:
    with pytest.raises(DocumentError, match="for a stack of its own"):
        profile(V2, stack=tiny_stack(), versions=profile(V2).versions)


def test_an_interval_is_below_the_steps() -> None:
    with pytest.raises(DocumentError, match="below max_steps, which is 8"):
        profile(V2, settings=replace(SETTINGS, max_steps=8))
    profile(V2, settings=replace(SETTINGS, max_steps=9))


def test_settings_of_the_tiny_profile_have_its_own_limits() -> None:
    settings = replace(SETTINGS, max_steps=200, learning_rate=0.05, checkpoint_interval=50, max_length=32)
    assert profile(OURS, settings=settings).settings == settings
    with pytest.raises(DocumentError):
        profile(V2, settings=settings)


def test_another_metric_than_the_evaluators_is_refused() -> None:
    other = Metric(name="bleu", direction=Direction.HIGHER, absolute_bound=0.5, maximum_regression=0.0)
    with pytest.raises(DocumentError, match="eval_loss alone"):
        profile(V2, evaluation_policy=replace(policy(), metrics=(*policy().metrics, other)))


def test_a_surrogate_in_a_prompt_is_refused() -> None:
    canary = Canary(prompts=(*CANARY.prompts[:3], "\ud800"), max_tokens=1, maximum_latency_ms=1)
    with pytest.raises(DocumentError, match="surrogate"):
        encode_profile(profile(V2, canary=canary))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source": "other/model"}, "bundle is"),
        ({"revision": "main"}, "bundle is"),
        ({"files": (("model.safetensors", sha("x")),)}, "has no config.json"),
    ],
)
def test_another_base_is_refused(change: dict[str, Any], words: str) -> None:
    made = profile(V2)
    check_base(made, base_bundle(made.stack))
    with pytest.raises(DocumentError, match="base model: ") as caught:
        check_base(made, replace(base_bundle(made.stack), **change))
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["source", "revision", "weights_sha256"])
def test_a_base_that_the_profile_names_must_be_the_stacks(name: str) -> None:
    stack = tiny_stack()
    made = profile(OURS, stack=stack)
    other = replace(stack, base=replace(stack.base, **{name: sha("other")}))
    with pytest.raises(DocumentError, match="the profile pins"):
        check_base(replace(made, stack=other), base_bundle(stack))
    with pytest.raises(DocumentError, match="tokenizer is"):
        check_base(replace(made, tokenizer_sha256=sha("other")), base_bundle(stack))


def test_capabilities_follow_from_the_stack() -> None:
    assert digest_of(capabilities(tiny_stack())) != digest_of(capabilities(QUALIFIED_STACK))
    assert capabilities(tiny_stack())["base_model"] == "local/tiny-llama"
