"""Tiny models to be served for real, and what they say; needs the extra ``train``, and no network.

    python tests/support/serving_models.py FOLDER

makes ``base``, two adapters ``one`` and ``two``, and of the first one a copy that lacks a tensor and one
whose tensors have names of no layer. ``expected.json`` holds the greedy answers of each, token by token.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import tiny_base
from release_support import CANARY

from ticket_agent.peft.release.native.effect import continuations

RANK = 4
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
WEIGHTS = "adapter_model.safetensors"


def make(folder: Path) -> None:
    base = folder / "base"
    base.mkdir(parents=True)
    tiny_base.make(base)
    config = json.loads((base / "tokenizer_config.json").read_text())
    (base / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    told = {"base": _answers(base, None)}
    for seed, name in enumerate(("one", "two"), start=1):
        _adapter(base, folder / name, seed)
        told[name] = _answers(base, folder / name)
    _spoilt(folder / "one", folder / "lacking", lambda tensors: dict(list(tensors.items())[1:]))
    _spoilt(
        folder / "one",
        folder / "elsewhere",
        lambda tensors: {name.replace("layers", "blocks"): tensor for name, tensor in tensors.items()},
    )
    (folder / "expected.json").write_text(json.dumps(told))


def _adapter(base: Path, folder: Path, seed: int) -> None:
    torch, peft = importlib.import_module("torch"), importlib.import_module("peft")
    torch.manual_seed(seed)
    lora = peft.LoraConfig(
        r=RANK,
        lora_alpha=2 * RANK,
        target_modules=["q_proj", "v_proj"],
        task_type="CAUSAL_LM",
        init_lora_weights=False,
    )
    peft.get_peft_model(_model(base), lora).save_pretrained(str(folder), safe_serialization=True)
    for path in base.glob("*.json"):
        shutil.copy(path, folder / path.name)


def _spoilt(source: Path, folder: Path, change: Any) -> None:
    tensors = importlib.import_module("safetensors.torch")
    shutil.copytree(source, folder)
    tensors.save_file(
        change(tensors.load_file(source / WEIGHTS)), folder / WEIGHTS, metadata={"format": "pt"}
    )


def _model(base: Path) -> Any:
    transformers, torch = importlib.import_module("transformers"), importlib.import_module("torch")
    return transformers.AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.float32, attn_implementation="eager"
    )


def _answers(base: Path, adapter: Path | None) -> list[list[str]]:
    """What an evaluation notes down: the text that each token of a greedy answer adds, for each prompt."""
    transformers, peft = importlib.import_module("transformers"), importlib.import_module("peft")
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    model = _model(base)
    if adapter is not None:
        model = peft.PeftModel.from_pretrained(model, str(adapter))
    told = continuations(model.eval(), tokenizer, CANARY.prompts, CANARY.max_tokens)
    return [list(answer.pieces) for answer in told]


if __name__ == "__main__":
    make(Path(sys.argv[1]))
