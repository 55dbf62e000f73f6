from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hostile_adapters import HF, HOSTILE_HF, HOSTILE_LORA_JSON
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.peft.adapter_config import (
    MAX_CONFIG_BYTES,
    AdapterConfig,
    is_module_name,
    parse_hf_config,
    parse_lora_json,
    render_lora_json,
)
from ticket_agent.peft.artifact_errors import ArtifactRefusedError, ConfigRefusedError


def hf(**members: Any) -> AdapterConfig:
    return parse_hf_config(json.dumps(HF | members).encode())


def lora(**members: Any) -> AdapterConfig:
    return parse_lora_json(json.dumps(members).encode())


def test_the_published_fixture_is_read_and_written_as_it_is() -> None:
    fixture = b'{"rank":8}\n'
    assert parse_lora_json(fixture) == AdapterConfig(rank=8)
    assert render_lora_json(parse_lora_json(fixture)) == fixture


def test_absent_and_null_are_the_same() -> None:
    assert parse_lora_json(b"{}") == AdapterConfig() == lora(rank=None, alpha=None, base_model=None)
    assert render_lora_json(AdapterConfig()) == b"{}\n"


def test_hugging_face_names_become_ours() -> None:
    assert hf(base_model_name_or_path="org/model", revision="main", task_type="CAUSAL_LM") == AdapterConfig(
        rank=8,
        alpha=16,
        target_modules=("q_proj", "v_proj"),
        base_model="org/model",
        base_revision="main",
        task_type="CAUSAL_LM",
    )


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"lora_alpha": 16.0}, {"alpha": 16}),
        ({"lora_alpha": 11.313708498984761}, {"alpha": 11.313708498984761}),
        ({"lora_alpha": 1_000_000}, {"alpha": 1_000_000}),
        ({"r": 1}, {"rank": 1}),
        ({"r": 4096}, {"rank": 4096}),
        ({"target_modules": ["b", "a", "b"]}, {"target_modules": ("a", "b")}),
        ({"target_modules": ["model.layers.0.self_attn.q_proj"]}, None),
        ({"base_model_name_or_path": ""}, {"base_model": None}),
        ({"base_model_name_or_path": " /srv/models/base "}, {"base_model": "/srv/models/base"}),
        ({"base_model_name_or_path": "m\u00f6del"}, {"base_model": "m\u00f6del"}),
        ({"use_rslora": True, "use_dora": True, "lora_bias": True, "fan_in_fan_out": True}, None),
        ({"rank_pattern": {"b": 2, "a.c": 1}}, {"rank_pattern": (("a.c", 1), ("b", 2))}),
        ({"alpha_pattern": {"b": 2.0, "a": 0.5}}, {"alpha_pattern": (("a", 0.5), ("b", 2))}),
        ({"modules_to_save": ["lm_head", "classifier"]}, {"modules_to_save": ("classifier", "lm_head")}),
        ({"modules_to_save": []}, {"modules_to_save": ()}),
        # Told of the training only.
        (
            {
                "lora_dropout": 0.05,
                "inference_mode": True,
                "peft_version": "0.21.2",
                "runtime_config": {"x": True},
            },
            {},
        ),
        ({"layers_to_transform": [0, 1], "layers_pattern": "layers", "exclude_modules": r"(a+)+$"}, {}),
        # Unused: null, false, empty.
        ({"loftq_config": {}, "corda_config": None, "use_qalora": False, "target_parameters": []}, {}),
        ({"megatron_config": None, "megatron_core": "megatron.core", "qalora_group_size": 16}, {}),
        ({"of_a_later_release": None, "another": False, "a_list": [], "text": ""}, {}),
        ({"init_lora_weights": True, "bias": "none"}, {}),
        ({"init_lora_weights": False, "bias": None}, {}),
        ({"init_lora_weights": "gaussian"}, {}),
        ({"init_lora_weights": "eva", "eva_config": {"rho": 2.0}}, {}),
        (
            {
                "auto_mapping": {
                    "base_model_class": "LlamaForCausalLM",
                    "parent_library": "transformers.models.llama.modeling_llama",
                }
            },
            {},
        ),
    ],
)
def test_what_hugging_face_writes_is_read(members: dict[str, Any], expected: dict[str, Any] | None) -> None:
    config = hf(**members)
    if expected is not None:
        assert config == hf() if not expected else all(getattr(config, k) == v for k, v in expected.items())
    assert parse_lora_json(render_lora_json(config)) == config


def test_a_whole_alpha_is_an_integer() -> None:
    assert render_lora_json(hf(lora_alpha=16.0)) == render_lora_json(hf())


@pytest.mark.parametrize(("members", "line"), HOSTILE_HF, ids=[line[:60] for _, line in HOSTILE_HF])
def test_hostile_hugging_face_configurations_are_refused(members: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigRefusedError) as caught:
        hf(**members)
    shown = str(caught.value)
    assert shown.startswith(f"adapter_config.json: {line}")
    assert shown.isprintable()


@pytest.mark.parametrize(
    ("data", "line"), HOSTILE_LORA_JSON, ids=[line[:60] for _, line in HOSTILE_LORA_JSON]
)
def test_hostile_lora_json_is_refused(data: bytes, line: str) -> None:
    with pytest.raises(ConfigRefusedError) as caught:
        parse_lora_json(data)
    assert str(caught.value).startswith(line)


def test_hugging_face_configurations_are_strict_json_too() -> None:
    with pytest.raises(ConfigRefusedError, match=r"^adapter_config.json: member r appears more than once"):
        parse_hf_config(b'{"peft_type":"LORA","r":8,"r":16}')
    with pytest.raises(ConfigRefusedError, match=r"^other.json takes 65537 bytes"):
        parse_hf_config(b" " * (MAX_CONFIG_BYTES + 1), what="other.json")


def test_what_grows_too_long_is_not_written() -> None:
    names = {f"mm{n:04}": 1e6 for n in range(4000)}
    config = parse_lora_json(
        json.dumps({"alpha_pattern": names}, separators=(",", ":")).replace("1000000.0", "1e6").encode()
    )
    with pytest.raises(ConfigRefusedError, match=r"^lora.json would take \d+ bytes; the limit is 65536"):
        render_lora_json(config)


def test_no_pattern_is_evaluated() -> None:
    # Backtracking over this pattern would take longer than the universe has existed.
    pattern, word = "(a+)+$", "a" * 100 + "!"
    start = time.process_time()
    for members in (
        {"target_modules": pattern},
        {"rank_pattern": {pattern: 1}},
        {"target_modules": [word * 3]},
    ):
        with pytest.raises(ConfigRefusedError):
            hf(**members)
    assert hf(exclude_modules=pattern) == hf()
    assert time.process_time() - start < 3


@pytest.mark.parametrize("name", ["q_proj", "a.b.c", "0", "a-b", "layers.0.q", ".".join("a" * 32), "a" * 256])
def test_module_names(name: str) -> None:
    assert is_module_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "a.", ".a", "a..b", "a b", "a\n", "\u00e9", ".".join("a" * 33), "a" * 257]
)
def test_no_module_names(name: str) -> None:
    assert not is_module_name(name)


module_names = st.from_regex(r"[a-z_]{1,6}(\.[a-z0-9_]{1,6}){0,2}", fullmatch=True)
module_lists = st.lists(module_names, min_size=1, max_size=4, unique=True).map(
    lambda names: tuple(sorted(names))
)
alphas = st.one_of(
    st.integers(1, 10**6), st.floats(min_value=1e-9, max_value=1e6).filter(lambda a: a != int(a))
)


def patterns(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[tuple[str, Any], ...]]:
    return st.dictionaries(module_names, values, max_size=3).map(lambda found: tuple(sorted(found.items())))


texts = st.none() | st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=40)
configs = st.builds(
    AdapterConfig,
    rank=st.none() | st.integers(1, 4096),
    alpha=st.none() | alphas,
    target_modules=st.none() | module_lists,
    base_model=texts,
    base_revision=texts,
    task_type=st.none() | st.sampled_from(["CAUSAL_LM", "SEQ_2_SEQ_LM"]),
    use_rslora=st.booleans(),
    use_dora=st.booleans(),
    lora_bias=st.booleans(),
    fan_in_fan_out=st.booleans(),
    rank_pattern=patterns(st.integers(1, 4096)),
    alpha_pattern=patterns(alphas),
    modules_to_save=st.just(()) | module_lists,
)


@given(configs)
def test_what_is_written_is_read_back(config: AdapterConfig) -> None:
    data = render_lora_json(config)
    assert parse_lora_json(data) == config
    assert render_lora_json(parse_lora_json(data)) == data


json_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-5, 2**63), st.floats(allow_nan=False), st.text(max_size=8)
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
members = st.sampled_from(
    [
        "r",
        "rank",
        "lora_alpha",
        "alpha",
        "target_modules",
        "peft_type",
        "rank_pattern",
        "alpha_pattern",
        "auto_mapping",
        "bias",
        "init_lora_weights",
        "base_model",
        "modules_to_save",
        "use_dora",
        "x",
    ]
)


@given(st.dictionaries(members, json_values, max_size=6))
def test_any_configuration_is_read_or_refused(changed: dict[str, Any]) -> None:
    for read, document in ((parse_hf_config, HF | changed), (parse_lora_json, changed)):
        try:
            config = read(json.dumps(document).encode())
        except ArtifactRefusedError:
            continue
        assert parse_lora_json(render_lora_json(config)) == config


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (parse_hf_config, parse_lora_json):
        try:
            read(data)
        except ArtifactRefusedError as error:
            assert str(error).isprintable()  # noqa: PT017 - what is not refused is fine too
