"""Adapters made by Hugging Face's PEFT on tiny random models; needs the extra ``train`` and no network.

    python tests/support/real_adapters.py FOLDER

makes one directory for each case. ``vectors/adapters`` was made this way, so that the rules are tested where
torch is not installed too. For each case one line of JSON tells whether the adapter is the same again after
it was loaded from its tensors and from nothing but the ``lora.json`` that we write.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

CASES: dict[str, dict[str, Any]] = {
    "llama-attention": {
        "model": "llama",
        "target_modules": ["q_proj", "v_proj"],
        "task_type": "CAUSAL_LM",
    },
    "llama-all-linear": {"model": "llama", "target_modules": "all-linear", "task_type": "CAUSAL_LM"},
    "llama-bf16": {
        "model": "llama",
        "dtype": "bfloat16",
        "target_modules": ["o_proj"],
        "task_type": "CAUSAL_LM",
    },
    "llama-dora": {
        "model": "llama",
        "target_modules": ["q_proj", "embed_tokens"],
        "use_dora": True,
        "task_type": "CAUSAL_LM",
    },
    "llama-head": {
        "model": "llama",
        "target_modules": ["q_proj"],
        "modules_to_save": ["lm_head"],
        "task_type": "CAUSAL_LM",
    },
    "llama-patterns": {
        "model": "llama",
        "target_modules": ["q_proj", "v_proj"],
        "rank_pattern": {"v_proj": 2, "layers.1.self_attn.q_proj": 3},
        "alpha_pattern": {"v_proj": 5},
        "use_rslora": True,
    },
    "llama-bias": {"model": "llama", "target_modules": ["down_proj"], "lora_bias": True},
    "gpt2-attention": {
        "model": "gpt2",
        "target_modules": ["c_attn"],
        "fan_in_fan_out": True,
        "task_type": "CAUSAL_LM",
    },
}
"""Arguments of ``LoraConfig``, and the base model."""

SEED = 20
TOLERANCE = 1e-5


def base_model(kind: str, dtype: str) -> Any:
    """Make a tiny model with random weights, the same ones each time."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    torch.manual_seed(SEED)
    if kind == "gpt2":
        shape = {"n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 16, "n_positions": 16}
        config = transformers.GPT2Config(**shape, bos_token_id=0, eos_token_id=0)
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(
            hidden_size=8,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            vocab_size=16,
            max_position_embeddings=16,
        )
        model = transformers.LlamaForCausalLM(config)
    model.name_or_path = f"tiny-random/{kind}"
    return model.to(getattr(torch, dtype)).eval()


def answer(model: Any) -> Any:
    """What a model says to one fixed input."""
    torch = importlib.import_module("torch")
    with torch.no_grad():
        return model(input_ids=torch.arange(12).reshape(1, 12)).logits.float()


def make(name: str, folder: Path) -> dict[str, Any]:
    """Make one case in ``folder``; return how far the adapter moves the base model, and is from its copy."""
    torch, hf = importlib.import_module("torch"), importlib.import_module("peft")
    case = {"dtype": "float32", **CASES[name]}
    kind, dtype = case.pop("model"), case.pop("dtype")
    before = answer(base_model(kind, dtype))
    # Random A and B, so that the adapter does something without training.
    config = hf.LoraConfig(r=4, lora_alpha=8, init_lora_weights=False, **case)
    model = hf.get_peft_model(base_model(kind, dtype), config, autocast_adapter_dtype=False).eval()
    torch.manual_seed(SEED + 1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(std=0.3)
    expected = answer(model)
    model.save_pretrained(str(folder))
    copy = answer(_copy(base_model(kind, dtype), folder))
    return {
        "case": name,
        "effect": float((expected - before).abs().max()),
        "difference": float((expected - copy).abs().max()),
    }


def _copy(model: Any, folder: Path) -> Any:
    """Load the saved adapter into a fresh base model, told nothing but what our ``lora.json`` says."""
    from ticket_agent.peft.adapter_config import parse_hf_config, render_lora_json  # noqa: PLC0415

    hf, torch = importlib.import_module("peft"), importlib.import_module("safetensors.torch")
    rendered = render_lora_json(parse_hf_config((folder / "adapter_config.json").read_bytes()))
    names = {"rank": "r", "alpha": "lora_alpha"}
    told = {names.get(key, key): value for key, value in json.loads(rendered).items() if key != "base_model"}
    model = hf.get_peft_model(model, hf.LoraConfig(**told), autocast_adapter_dtype=False).eval()
    tensors = torch.load_file(str(folder / "adapter_model.safetensors"))
    unexpected = hf.set_peft_model_state_dict(model, tensors).unexpected_keys
    assert not unexpected, unexpected
    return model


def main(folder: str) -> None:
    """Make every case."""
    warnings.simplefilter("ignore")
    importlib.import_module("transformers").logging.set_verbosity_error()
    for name in CASES:
        target = Path(folder) / name
        result = make(name, target)
        (target / "README.md").unlink()  # a template, no part of the adapter
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
