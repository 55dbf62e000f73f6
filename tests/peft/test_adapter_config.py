from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.peft.adapter_config import (
    MAX_CONFIG_BYTES,
    MAX_NAMES,
    AdapterConfig,
    is_module_name,
    parse_hf_config,
    parse_lora_json,
    render_lora_json,
)
from ticket_agent.peft.artifact_errors import ArtifactRefusedError, ConfigRefusedError

HF: dict[str, Any] = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["v_proj", "q_proj"]}
NAMES_RULE = "a module's name has letters, digits, _ - and dots only"
TEXT_RULE = "must be a string of at most 512 bytes without control characters"


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


HOSTILE_HF: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "ADALORA"}, "peft_type must be LORA; other methods are not supported"),
    ({"peft_type": "lora"}, "peft_type must be LORA"),
    ({"peft_type": None}, "peft_type must be LORA"),
    ({"peft_type": ["LORA"]}, "peft_type must be LORA"),
    ({"r": None}, "member r is required"),
    ({"r": 0}, "r must be an integer in 1..=4096"),
    ({"r": -8}, "r must be an integer in 1..=4096"),
    ({"r": 4097}, "r must be an integer in 1..=4096"),
    ({"r": 8.0}, "r must be an integer in 1..=4096"),
    ({"r": True}, "r must be an integer in 1..=4096"),
    ({"r": "8"}, "r must be an integer in 1..=4096"),
    ({"lora_alpha": None}, "member lora_alpha is required"),
    ({"lora_alpha": 0}, "lora_alpha must be a number above 0 and at most 1000000"),
    ({"lora_alpha": -1}, "lora_alpha must be a number above 0"),
    ({"lora_alpha": 1e300}, "lora_alpha must be a number above 0"),
    ({"lora_alpha": True}, "lora_alpha must be a number above 0"),
    ({"lora_alpha": "16"}, "lora_alpha must be a number above 0"),
    ({"target_modules": None}, "member target_modules is required"),
    ({"target_modules": []}, "target_modules must be a list of 1..=4096 module names"),
    ({"target_modules": {"q": 1}}, "target_modules must be a list of 1..=4096 module names"),
    ({"target_modules": ["q"] * (MAX_NAMES + 1)}, "target_modules must be a list of 1..=4096 module names"),
    ({"target_modules": "all-linear"}, "target_modules is a pattern, which is not evaluated"),
    (
        {"target_modules": r".*\.(q|v)_proj"},
        "target_modules is a pattern, which is not evaluated; write the list",
    ),
    ({"target_modules": "(a+)+$"}, "target_modules is a pattern, which is not evaluated"),
    ({"target_modules": ["(a+)+$"]}, f'target_modules names "(a+)+$"; {NAMES_RULE}'),
    ({"target_modules": ["q_proj", 7]}, f"target_modules names what is no string; {NAMES_RULE}"),
    ({"target_modules": [""]}, f'target_modules names ""; {NAMES_RULE}'),
    ({"target_modules": ["../../etc"]}, f'target_modules names "../../etc"; {NAMES_RULE}'),
    ({"target_modules": ["a/b"]}, f'target_modules names "a/b"; {NAMES_RULE}'),
    ({"target_modules": ["q_proj\n"]}, f'target_modules names "q_proj\\n"; {NAMES_RULE}'),
    ({"target_modules": ["\u0430"]}, f'target_modules names "\u0430"; {NAMES_RULE}'),
    ({"target_modules": ["a" * 257]}, f'target_modules names "{"a" * 120}\u2026"; {NAMES_RULE}'),
    ({"target_modules": [".".join("a" * 33)]}, "target_modules names"),
    ({"base_model_name_or_path": 7}, f"base_model_name_or_path {TEXT_RULE}"),
    ({"base_model_name_or_path": "a\nb"}, f"base_model_name_or_path {TEXT_RULE}"),
    ({"base_model_name_or_path": "a\0"}, f"base_model_name_or_path {TEXT_RULE}"),
    ({"base_model_name_or_path": "\u00e9" * 257}, f"base_model_name_or_path {TEXT_RULE}"),
    ({"base_model_name_or_path": {"a": 1}}, f"base_model_name_or_path {TEXT_RULE}"),
    ({"revision": ["main"]}, f"revision {TEXT_RULE}"),
    ({"task_type": "causal lm"}, "task_type must be 1..=64 of A-Z, 0-9 and _"),
    ({"use_dora": "yes"}, "use_dora must be true or false"),
    ({"use_rslora": 1}, "use_rslora must be true or false"),
    ({"fan_in_fan_out": []}, "fan_in_fan_out must be true or false"),
    ({"rank_pattern": ["q"]}, "rank_pattern must be an object of at most 4096 module names"),
    ({"rank_pattern": {"q": 0}}, "rank_pattern.q must be an integer in 1..=4096"),
    ({"rank_pattern": {"^model.q$": 4}}, f'rank_pattern names "^model.q$"; {NAMES_RULE}'),
    ({"alpha_pattern": {"q": "4"}}, "alpha_pattern.q must be a number above 0"),
    ({"modules_to_save": "lm_head"}, "modules_to_save is a pattern"),
    ({"modules_to_save": ["*"]}, f'modules_to_save names "*"; {NAMES_RULE}'),
    ({"bias": "all"}, "bias must be none; biases of the base model are not taken over"),
    ({"bias": "lora_only"}, "bias must be none"),
    ({"init_lora_weights": "pissa"}, 'init_lora_weights "pissa" may have changed the base model; convert'),
    ({"init_lora_weights": "pissa_niter_16"}, 'init_lora_weights "pissa_niter_16" may have changed'),
    ({"init_lora_weights": "olora"}, 'init_lora_weights "olora" may have changed'),
    ({"init_lora_weights": 1}, "init_lora_weights of type int may have changed"),
    (
        {"auto_mapping": {"base_model_class": "Model", "parent_library": "evil"}},
        "auto_mapping names code outside of",
    ),
    (
        {"auto_mapping": {"base_model_class": "M", "parent_library": "transformers_modules.x"}},
        "auto_mapping names code",
    ),
    (
        {"auto_mapping": {"base_model_class": "os.system", "parent_library": "transformers"}},
        "auto_mapping names code",
    ),
    (
        {"auto_mapping": {"base_model_class": "M", "parent_library": "transformers", "x": 1}},
        "auto_mapping names code",
    ),
    (
        {"auto_mapping": {"base_model_class": ["M"], "parent_library": "transformers"}},
        "auto_mapping names code",
    ),
    (
        {"auto_mapping": "evil"},
        "auto_mapping names code outside of transformers; save the adapter with a task_type",
    ),
    ({"_custom_modules": {"a": "b"}}, 'member "_custom_modules" is in use and is not supported'),
    ({"megatron_core": "evil.core"}, 'member "megatron_core" is in use and is not supported'),
    ({"megatron_config": {"a": 1}}, 'member "megatron_config" is in use and is not supported'),
    ({"layer_replication": [[0, 4], [2, 6]]}, 'member "layer_replication" is in use'),
    ({"trainable_token_indices": [1]}, 'member "trainable_token_indices" is in use'),
    ({"target_parameters": ["experts.gate"]}, 'member "target_parameters" is in use'),
    ({"alora_invocation_tokens": [1, 2]}, 'member "alora_invocation_tokens" is in use'),
    ({"loftq_config": {"loftq_bits": 4}}, 'member "loftq_config" is in use'),
    ({"use_qalora": True}, 'member "use_qalora" is in use'),
    ({"of_a_later_release": 0}, 'member "of_a_later_release" is in use'),
    ({"a\x1b[2J": 1}, 'member "a\\x1b[2J" is in use'),
]


@pytest.mark.parametrize(("members", "line"), HOSTILE_HF, ids=[line[:60] for _, line in HOSTILE_HF])
def test_hostile_hugging_face_configurations_are_refused(members: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigRefusedError) as caught:
        hf(**members)
    shown = str(caught.value)
    assert shown.startswith(f"adapter_config.json: {line}")
    assert shown.isprintable()


HOSTILE_LORA: list[tuple[bytes, str]] = [
    (b"", "lora.json is not valid JSON at character 0"),
    (b"adapter\n", "lora.json is not valid JSON at character 0"),
    (b"\x80\x04\x95", "lora.json is not UTF-8 at byte 0"),
    (b"[8]", "lora.json must be a JSON object"),
    (b"8", "lora.json must be a JSON object"),
    (b'{"rank":8,"rank":9}', "lora.json: member rank appears more than once"),
    (b'{"rank":8,"r\\u0061nk":9}', "lora.json: member rank appears more than once"),
    (b'{"rank":8} {"rank":9}', "lora.json is not valid JSON at character 11: Extra data"),
    (b'{"rank":NaN}', "lora.json: member rank is NaN, which is not JSON"),
    (b'{"alpha":1e999}', "lora.json: member alpha is a number out of range"),
    (b'{"rank":' + b"9" * 5000 + b"}", "lora.json: member rank is an integer outside"),
    (b'{"base_model":"\\ud800"}', "lora.json: member base_model holds a lone surrogate"),
    (b'{"rank":' + b"[" * 50_000, "lora.json nests more than 127 containers"),
    (b'{"rank":8' + b" " * MAX_CONFIG_BYTES + b"}", "lora.json takes 65546 bytes; the limit is 65536"),
    (b"\xef\xbb\xbf{}", "lora.json starts with a byte order mark"),
    (b'{"rank":"8"}', "lora.json: rank must be an integer in 1..=4096"),
    (b'{"Rank":8}', 'lora.json: unknown member "Rank"'),
    (b'{"rank":8,"auto_map":{}}', 'lora.json: unknown member "auto_map"'),
    (b'{"rank":8,"":null}', 'lora.json: unknown member ""'),
    (
        b'{"r":8}',
        'lora.json: unknown member "r"; a Hugging Face configuration belongs into adapter_config.json',
    ),
    (b'{"target_modules":"q"}', "lora.json: target_modules is a pattern, which is not evaluated"),
]


@pytest.mark.parametrize(("data", "line"), HOSTILE_LORA, ids=[line[:60] for _, line in HOSTILE_LORA])
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
    start = time.monotonic()
    for members in (
        {"target_modules": pattern},
        {"rank_pattern": {pattern: 1}},
        {"target_modules": [word * 3]},
    ):
        with pytest.raises(ConfigRefusedError):
            hf(**members)
    assert hf(exclude_modules=pattern) == hf()
    assert time.monotonic() - start < 1


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
