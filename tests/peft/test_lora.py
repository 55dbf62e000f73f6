from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from adapter_files import IN, OUT, PLAIN, PREFIX, RANK, Shapes, entries, file_of, file_with, pair, read
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.peft.adapter_config import AdapterConfig
from ticket_agent.peft.artifact_errors import ArtifactRefusedError, LoraRefusedError
from ticket_agent.peft.lora import LoraSummary, summarise
from ticket_agent.peft.safetensors_header import DTYPE_BYTES

Q, V = f"{PREFIX}q_proj", f"{PREFIX}v_proj"
EMBED = "base_model.model.model.embed_tokens"


def look(tensors: Shapes, config: AdapterConfig = PLAIN) -> LoraSummary:
    return summarise(read(file_with(tensors)), config)


def with_config(**changes: Any) -> AdapterConfig:
    return replace(PLAIN, **changes)


def embedding(module: str = EMBED) -> Shapes:
    return {
        f"{module}.lora_embedding_A": ("F32", (RANK, 50)),
        f"{module}.lora_embedding_B": ("F32", (IN, RANK)),
    }


def named(module: str, adapter: str) -> Shapes:
    return {name.replace(".weight", f".{adapter}.weight"): shape for name, shape in pair(module).items()}


def test_an_adapter_is_summarised() -> None:
    config = with_config(base_model="org/base")
    assert look(pair(Q) | pair(V), config) == LoraSummary(
        rank=RANK,
        alpha=8,
        target_modules=("q_proj", "v_proj"),
        base_model="org/base",
        modules=2,
        tensors=4,
        dtype="F32",
        parameters=2 * RANK * (IN + OUT),
    )


def test_the_published_configuration_is_enough() -> None:
    summary = look(pair(Q, rank=8) | pair(V, rank=8), AdapterConfig(rank=8))
    assert (summary.rank, summary.alpha, summary.target_modules) == (8, None, ("q_proj", "v_proj"))
    assert look(pair(Q), AdapterConfig()).rank == RANK


EMBEDDED = with_config(target_modules=("embed_tokens", "q_proj"))
BIAS: Shapes = {f"{Q}.lora_B.bias": ("F32", (OUT,))}
MAGNITUDE: Shapes = {f"{Q}.lora_magnitude_vector": ("F32", (OUT,))}
HEAD_NAME = "base_model.model.lm_head.weight"
HEAD: Shapes = {HEAD_NAME: ("F32", (3, 2))}

ACCEPTED: list[tuple[str, Shapes, AdapterConfig]] = [
    ("no prefix", pair("layers.0.q_proj"), PLAIN),
    ("the name of the adapter in the names", named(Q, "default") | named(V, "default"), PLAIN),
    ("another name", named(Q, "my-adapter_2"), PLAIN),
    ("half precision", pair(Q, dtype="BF16"), PLAIN),
    ("one dtype per pair", pair(Q, dtype="BF16") | pair(V, dtype="F32"), PLAIN),
    ("double precision", pair(Q, dtype="F64"), PLAIN),
    ("the module itself is the target", pair("q_proj"), PLAIN),
    ("a target of several parts", pair(Q), with_config(target_modules=("self_attn.q_proj",))),
    (
        "the whole name is a target",
        pair(Q),
        with_config(target_modules=(Q.removeprefix("base_model.model."),)),
    ),
    (
        "a convolution",
        {f"{Q}.lora_A.weight": ("F32", (RANK, 3, 5, 5)), f"{Q}.lora_B.weight": ("F32", (OUT, RANK, 1, 1))},
        PLAIN,
    ),
    (
        "a convolution in three dimensions",
        {
            f"{Q}.lora_A.weight": ("F32", (RANK, 3, 5, 5, 5)),
            f"{Q}.lora_B.weight": ("F32", (OUT, RANK, 1, 1, 1)),
        },
        PLAIN,
    ),
    ("an embedding", embedding() | pair(Q), EMBEDDED),
    (
        "an embedding with its name",
        {f"{name}.default": shape for name, shape in embedding().items()},
        EMBEDDED,
    ),
    (
        "an embedding with the base model's",
        embedding() | {f"{EMBED}.base_layer.weight": ("F32", (50, IN))},
        EMBEDDED,
    ),
    (
        "the output head with the base model's",
        pair("lm_head") | {"lm_head.base_layer.weight": ("F32", (OUT, IN))},
        with_config(target_modules=("lm_head",)),
    ),
    (
        "what an attention block wraps",
        pair("base_model.model.mha") | pair("base_model.model.mha.base_layer.out_proj"),
        with_config(target_modules=("mha",)),
    ),
    ("a bias of B", pair(Q) | BIAS, with_config(lora_bias=True)),
    ("DoRA", pair(Q) | MAGNITUDE, with_config(use_dora=True)),
    (
        "DoRA with the name of the adapter",
        named(Q, "default") | {f"{Q}.lora_magnitude_vector.default.weight": ("F32", (1, OUT, 1, 1))},
        with_config(use_dora=True),
    ),
    ("a module to save", pair(Q) | HEAD, with_config(modules_to_save=("lm_head",))),
    (
        "inside of a module to save",
        pair(Q) | {"base_model.model.classifier.dense.bias": ("F32", (3,))},
        with_config(modules_to_save=("classifier",)),
    ),
    ("other ranks", pair(Q) | pair(V, rank=2), with_config(rank_pattern=(("v_proj", 2),))),
    ("other ranks of layers", pair(Q, rank=3), with_config(rank_pattern=(("layers.0.self_attn.q_proj", 3),))),
    (
        "the same rank twice",
        pair(Q, rank=3),
        with_config(rank_pattern=(("q_proj", 3), ("self_attn.q_proj", 3))),
    ),
]


@pytest.mark.parametrize(
    ("tensors", "config"), [row[1:] for row in ACCEPTED], ids=[row[0] for row in ACCEPTED]
)
def test_forms_of_adapters_are_accepted(tensors: Shapes, config: AdapterConfig) -> None:
    assert look(tensors, config).tensors == len(tensors)


def test_dtypes_and_parameters_are_summed_up() -> None:
    summary = look(pair(Q, dtype="F16") | pair(V) | HEAD, with_config(modules_to_save=("lm_head",)))
    assert (summary.dtype, summary.modules) == ("F16+F32", 2)
    assert summary.parameters == 2 * RANK * (IN + OUT) + 6


def without(tensors: Shapes, end: str) -> Shapes:
    return {name: shape for name, shape in tensors.items() if not name.endswith(end)}


def shaped(a: tuple[int, ...], b: tuple[int, ...]) -> Shapes:
    return {"q_proj.lora_A.weight": ("F32", a), "q_proj.lora_B.weight": ("F32", b)}


NO_PAIR = '"q_proj": A {} and B {} are no pair of [rank, in, ...] and [out, rank, 1, ...]'
NO_PART = "is no part of a LoRA pair and of no module in modules_to_save"
NO_LORA = "is no tensor that a LoRA adapter has"

HOSTILE: list[tuple[str, Shapes, AdapterConfig, str]] = [
    ("no tensors", {}, PLAIN, "holds no LoRA tensors (names with .lora_A.weight and .lora_B.weight)"),
    ("a whole model", {"model.embed.weight": ("F32", (4, 4))}, PLAIN, "holds no LoRA tensors"),
    (
        "another tool's names",
        {"lora_unet_q.lora_down.weight": ("F32", (4, 4))},
        PLAIN,
        "holds no LoRA tensors",
    ),
    ("A alone", without(pair(Q), "B.weight"), PLAIN, 'q_proj" has no lora_B; the pair is not complete'),
    ("B alone", without(pair(Q), "A.weight"), PLAIN, 'q_proj" has no lora_A; the pair is not complete'),
    ("one pair of two is cut", pair(Q) | without(pair(V), "B.weight"), PLAIN, 'v_proj" has no lora_B'),
    ("half of an embedding", without(embedding(), "_B"), EMBEDDED, 'embed_tokens" has no lora_embedding_B'),
    ("a bias alone", BIAS, with_config(lora_bias=True), 'q_proj" has no lora_A'),
    ("a magnitude alone", MAGNITUDE, with_config(use_dora=True), 'q_proj" has no lora_A'),
    (
        "both kinds of a pair",
        pair(EMBED) | embedding(),
        EMBEDDED,
        "is adapted both as an embedding and as a layer",
    ),
    ("sides of different ranks", shaped((4, 6), (10, 3)), PLAIN, NO_PAIR.format("[4, 6]", "[10, 3]")),
    ("sides exchanged", shaped((10, 4), (4, 6)), PLAIN, NO_PAIR.format("[10, 4]", "[4, 6]")),
    ("vectors", shaped((4,), (4,)), PLAIN, NO_PAIR.format("[4]", "[4]")),
    ("scalars", shaped((), ()), PLAIN, NO_PAIR.format("[]", "[]")),
    ("sides of different dimensions", shaped((4, 6, 3), (10, 4)), PLAIN, "are no pair"),
    ("a wide B", shaped((4, 6, 3, 3), (10, 4, 3, 3)), PLAIN, "are no pair"),
    ("too many dimensions", shaped((4, 6, 1, 1, 1, 1), (10, 4, 1, 1, 1, 1)), PLAIN, "are no pair"),
    ("rank 0", shaped((0, 6), (10, 0)), PLAIN, "are no pair"),
    ("nothing in", shaped((4, 0), (10, 4)), PLAIN, "are no pair"),
    ("nothing out", shaped((4, 6), (0, 4)), PLAIN, "are no pair"),
    (
        "an absurd rank",
        shaped((4097, 1), (1, 4097)),
        AdapterConfig(),
        '"q_proj" is of rank 4097; the limit is 4096',
    ),
    (
        "an embedding of three dimensions",
        {f"{EMBED}.lora_embedding_A": ("F32", (4, 5, 1)), f"{EMBED}.lora_embedding_B": ("F32", (6, 4, 1))},
        EMBEDDED,
        "are no pair",
    ),
    (
        "another rank than configured",
        pair(Q, rank=3),
        PLAIN,
        'q_proj" is of rank 3, the configuration says 4',
    ),
    (
        "another rank than the pattern's",
        pair(Q),
        with_config(rank_pattern=(("q_proj", 2),)),
        'q_proj" is of rank 4, the configuration says 2',
    ),
    (
        "two ranks in the pattern",
        pair(Q),
        with_config(rank_pattern=(("q_proj", 4), ("self_attn.q_proj", 2))),
        "rank_pattern gives it more than one rank",
    ),
    (
        "ranks that nothing tells",
        pair(Q) | pair(V, rank=2),
        AdapterConfig(),
        "has pairs of ranks 2, 4; the configuration must say so",
    ),
    (
        "sides of different dtypes",
        {"q_proj.lora_A.weight": ("F16", (4, 6)), "q_proj.lora_B.weight": ("F32", (10, 4))},
        PLAIN,
        '"q_proj": A is of F16 and B of F32',
    ),
    ("integers", pair(Q, dtype="I8"), PLAIN, 'lora_A.weight" is of I8, not of F16, BF16, F32, F64'),
    ("8-bit floats", pair(Q, dtype="F8_E4M3"), PLAIN, "is of F8_E4M3, not of F16"),
    (
        "a module to save of integers",
        pair(Q) | {HEAD_NAME: ("U8", (3,))},
        with_config(modules_to_save=("lm_head",)),
        "is of U8",
    ),
    (
        "a module that is no target",
        pair("layers.0.o_proj"),
        PLAIN,
        '"layers.0.o_proj" is adapted, but it is not among',
    ),
    (
        "a target only by its letters",
        pair("layers.0.xq_proj"),
        PLAIN,
        "it is not among the configuration's target_modules",
    ),
    ("a target in front", pair("q_proj.inner"), PLAIN, "it is not among the configuration's target_modules"),
    (
        "names with and without prefix",
        pair("q_proj") | pair("base_model.model.v_proj"),
        PLAIN,
        "some tensors' names begin with base_model.model. and some do not",
    ),
    (
        "the same tensor twice, with name",
        pair("q_proj") | named("q_proj", "default"),
        PLAIN,
        "are the same tensor",
    ),
    ("two adapters", named(Q, "one") | named(V, "two"), PLAIN, "holds tensors of more than one adapter"),
    ("a name for some", named(Q, "one") | pair(V), PLAIN, "holds tensors of more than one adapter"),
    (
        "a bias that is not configured",
        pair(Q) | BIAS,
        PLAIN,
        "a bias of B is not expected; the configuration does not have lora_bias",
    ),
    (
        "a bias that is missing",
        pair(Q),
        with_config(lora_bias=True),
        "a bias of B is missing; the configuration has lora_bias",
    ),
    (
        "a bias of another length",
        pair(Q) | {f"{Q}.lora_B.bias": ("F32", (9,))},
        with_config(lora_bias=True),
        "the bias of B is [9], not [10]",
    ),
    ("a bias of A", pair(Q) | {f"{Q}.lora_A.bias": ("F32", (4,))}, PLAIN, NO_LORA),
    (
        "DoRA that is not configured",
        pair(Q) | MAGNITUDE,
        PLAIN,
        "a magnitude vector is not expected; the configuration does not have use_dora",
    ),
    (
        "DoRA that is missing",
        pair(Q),
        with_config(use_dora=True),
        "a magnitude vector is missing; the configuration has use_dora",
    ),
    (
        "a magnitude of another length",
        pair(Q) | {f"{Q}.lora_magnitude_vector": ("F32", (9,))},
        with_config(use_dora=True),
        "the magnitude vector has 9 elements, not 10",
    ),
    ("weights of the base model", pair(Q) | HEAD, PLAIN, f'"base_model.model.lm_head.weight" {NO_PART}'),
    ("weights beside a module to save", pair(Q) | HEAD, with_config(modules_to_save=("head",)), NO_PART),
    (
        "a module to save as a tensor",
        pair(Q) | {"base_model.model.lm_head": ("F32", (3,))},
        with_config(modules_to_save=("lm_head",)),
        NO_PART,
    ),
    (
        "weights under an adapted layer",
        pair(Q) | {f"{Q}.base_layer.weight": ("F32", (10, 6))},
        PLAIN,
        NO_PART,
    ),
    (
        "weights under a layer that is not adapted",
        pair(Q) | {f"{EMBED}.base_layer.weight": ("F32", (10, 6))},
        PLAIN,
        NO_PART,
    ),
    (
        "a bias under an embedding",
        embedding() | {f"{EMBED}.base_layer.bias": ("F32", (6,))},
        EMBEDDED,
        NO_PART,
    ),
    ("a third matrix", pair(Q) | {f"{Q}.lora_C.weight": ("F32", (4, 4))}, PLAIN, NO_PART),
    ("AdaLoRA's vector", pair(Q) | {f"{Q}.lora_E": ("F32", (4, 1))}, PLAIN, NO_PART),
    ("something of a side", pair(Q) | {f"{Q}.lora_A.scale": ("F32", (1,))}, PLAIN, NO_LORA),
    ("a side without its end", pair(Q) | {f"{V}.lora_A": ("F32", (4, 6))}, PLAIN, NO_LORA),
    ("too many names", pair(Q) | {f"{V}.lora_A.one.two.weight": ("F32", (4, 6))}, PLAIN, NO_LORA),
    (
        "an embedding with an end",
        {f"{name}.weight": shape for name, shape in embedding().items()},
        EMBEDDED,
        NO_LORA,
    ),
    ("a pair without a module", pair(""), PLAIN, "is not a dotted module name"),
    (
        "a pair at the top",
        {"lora_A.weight": ("F32", (4, 6)), "lora_B.weight": ("F32", (10, 4))},
        PLAIN,
        "holds no LoRA tensors",
    ),
    (
        "a name with a blank",
        pair("a b.q_proj"),
        PLAIN,
        '"a b.q_proj.lora_A.weight" is not a dotted module name',
    ),
    ("a name with a colon", pair("c:q_proj"), PLAIN, "is not a dotted module name"),
    ("a name of too many parts", pair(".".join("a" * 40)), PLAIN, "is not a dotted module name"),
]


@pytest.mark.parametrize(
    ("tensors", "config", "line"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE]
)
def test_what_is_no_complete_adapter_is_refused(tensors: Shapes, config: AdapterConfig, line: str) -> None:
    with pytest.raises(LoraRefusedError) as caught:
        look(tensors, config)
    shown = str(caught.value)
    assert shown.startswith("adapter.safetensors")
    assert line in shown
    assert shown.isprintable()
    assert len(shown) <= 400


def test_the_largest_configuration_does_not_slow_the_check_down() -> None:
    tensors: Shapes = {}
    for n in range(3000):
        tensors |= pair(f"{'a.' * 28}m{n}", rank=1)
    config = AdapterConfig(
        rank=1,
        target_modules=tuple(f"m{n}" for n in range(4096)),
        rank_pattern=tuple((f"m{n}", 1) for n in range(4096)),
        modules_to_save=tuple(f"s{n}" for n in range(4096)),
    )
    text = entries(tensors)
    header = read(file_of(text, max(entry["data_offsets"][1] for entry in text.values())))
    start = time.process_time()
    assert summarise(header, config).modules == 3000
    assert time.process_time() - start < 3


parts = st.sampled_from(
    [
        "q_proj",
        "embed_tokens",
        "lm_head",
        "lora_A",
        "lora_B",
        "lora_embedding_A",
        "lora_embedding_B",
        "lora_magnitude_vector",
        "base_layer",
        "weight",
        "bias",
        "default",
        "0",
        "-",
    ]
)
odd_names = st.lists(parts, min_size=1, max_size=5).map(".".join)
odd_tensors = st.dictionaries(
    odd_names,
    st.tuples(st.sampled_from(sorted(DTYPE_BYTES)), st.lists(st.integers(0, 3), max_size=4).map(tuple)),
    max_size=5,
)
odd_configs = st.builds(
    AdapterConfig,
    rank=st.none() | st.integers(1, 3),
    target_modules=st.none() | st.just(("q_proj", "embed_tokens")),
    use_dora=st.booleans(),
    lora_bias=st.booleans(),
    modules_to_save=st.sampled_from([(), ("lm_head",)]),
)


@given(odd_tensors, odd_configs, st.booleans())
def test_any_tensors_are_summarised_or_refused(tensors: Shapes, config: AdapterConfig, right: bool) -> None:
    try:
        summary = look(pair("q_proj") | tensors if right else tensors, config)
    except ArtifactRefusedError:
        return
    assert summary.modules >= 1
    assert summary.tensors >= 2 * summary.modules
    assert config.rank in (None, summary.rank)
