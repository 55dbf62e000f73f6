from __future__ import annotations

import json
from dataclasses import replace

import pytest
from release_support import tiny_stack
from vector_files import VECTORS

from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.geometry import adapter_tensors, check_base_config
from ticket_agent.peft.release.qualified import QUALIFIED_STACK

TINY = tiny_stack().geometry
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "vocab_size": 64,
    "rope_theta": 10000.0,
    "auto_map": None,
}


def test_the_qualified_adapter_has_120_tensors() -> None:
    tensors = adapter_tensors(QUALIFIED_STACK.geometry, 4)
    assert len(tensors) == 120
    prefix = "base_model.model.model.layers.29.self_attn"
    assert tensors[f"{prefix}.q_proj.lora_A.weight"] == (4, 576)
    assert tensors[f"{prefix}.q_proj.lora_B.weight"] == (576, 4)
    assert tensors[f"{prefix}.v_proj.lora_A.weight"] == (4, 576)
    assert tensors[f"{prefix}.v_proj.lora_B.weight"] == (192, 4)


@pytest.mark.parametrize("case", ["llama-attention", "llama-all-linear"])
def test_a_real_adapter_has_exactly_the_tensors_that_follow(case: str) -> None:
    data = (VECTORS / "adapters" / case / "adapter_model.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    header.pop("__metadata__", None)
    found = {name: tuple(tensor["shape"]) for name, tensor in header.items()}
    modules = tuple(sorted({name.split(".")[6] for name in found}))
    layers = len({name.split(".")[4] for name in found})
    rank = next(shape[0] for name, shape in found.items() if ".lora_A." in name)
    sizes = {name.split(".")[6]: shape for name, shape in found.items() if ".lora_B." in name}
    geometry = replace(
        TINY,
        layers=layers,
        hidden_size=8,
        intermediate_size=sizes.get("up_proj", (16,))[0],
        heads=2,
        head_dim=4,
        kv_heads=sizes.get("k_proj", sizes["v_proj"])[0] // 4,
        target_modules=modules,
    )
    assert found == adapter_tensors(geometry, rank)


def test_every_projection_has_its_shape() -> None:
    modules = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    geometry = replace(TINY, head_dim=8, layers=1, target_modules=modules)
    shapes = {
        module: (tensors[0][1], tensors[1][0])
        for module in modules
        for tensors in [
            [shape for name, shape in sorted(adapter_tensors(geometry, 2).items()) if f".{module}." in name]
        ]
    }
    assert shapes == {
        "q_proj": (16, 32),
        "k_proj": (16, 16),
        "v_proj": (16, 16),
        "o_proj": (32, 16),
        "gate_proj": (16, 32),
        "up_proj": (16, 32),
        "down_proj": (32, 16),
    }
    blocks = {name.split(".")[5] for name in adapter_tensors(geometry, 2)}
    assert blocks == {"self_attn", "mlp"}


def test_a_config_that_fits() -> None:
    check_base_config(json.dumps(CONFIG).encode(), TINY)
    implied = {name: value for name, value in CONFIG.items() if name != "head_dim"}
    check_base_config(json.dumps(implied).encode(), TINY)
    alone = replace(TINY, kv_heads=4)
    implied.pop("num_key_value_heads")
    check_base_config(json.dumps(implied).encode(), alone)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("architectures", ["MistralForCausalLM"]),
        ("architectures", None),
        ("num_hidden_layers", 3),
        ("num_hidden_layers", 2.0),
        ("hidden_size", 32),
        ("hidden_size", True),
        ("intermediate_size", 16),
        ("num_attention_heads", 8),
        ("num_key_value_heads", 4),
        ("num_key_value_heads", None),
        ("head_dim", 8),
        ("vocab_size", 65),
        ("vocab_size", None),
        ("auto_map", {"AutoModel": "model.py"}),
        ("quantization_config", {"bits": 4}),
    ],
)
def test_a_config_of_another_model(name: str, value: object) -> None:
    with pytest.raises(DocumentError, match=name) as caught:
        check_base_config(json.dumps(CONFIG | {name: value}).encode(), TINY)
    assert caught.value.rule == "base-config"


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"version https://git-lfs.github.com/spec/v1", b"{}", b"{" * 70000]
)
def test_no_config(data: bytes) -> None:
    with pytest.raises(DocumentError, match=r"config\.json"):
        check_base_config(data, TINY)


def test_a_config_without_sense_is_no_crash() -> None:
    with pytest.raises(DocumentError):
        check_base_config(b'{"num_attention_heads":0,"hidden_size":"x"}', TINY)
