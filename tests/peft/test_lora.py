from __future__ import annotations

import time

import pytest
from adapter_files import IN, OUT, PLAIN, RANK, Shapes, entries, file_of, file_with, pair, read
from hostile_adapters import (
    BIAS,
    EMBED,
    EMBEDDED,
    HEAD,
    HOSTILE_TENSORS,
    MAGNITUDE,
    Q,
    V,
    embedding,
    named,
    with_config,
)
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.peft.adapter_config import AdapterConfig
from ticket_agent.peft.artifact_errors import ArtifactRefusedError, LoraRefusedError
from ticket_agent.peft.lora import LoraSummary, summarise
from ticket_agent.peft.safetensors_header import DTYPE_BYTES


def look(tensors: Shapes, config: AdapterConfig = PLAIN) -> LoraSummary:
    return summarise(read(file_with(tensors)), config)


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


@pytest.mark.parametrize(
    ("tensors", "config", "line"),
    [row[1:] for row in HOSTILE_TENSORS],
    ids=[row[0] for row in HOSTILE_TENSORS],
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
