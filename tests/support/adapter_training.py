"""An adapter that somebody trained with PEFT alone, elsewhere; needs the extra ``train``, and no network.

    python tests/support/adapter_training.py BASE ROWS STEPS FOLDER

trains on the rows of a JSON file, in turn, and saves the adapter in ``FOLDER`` as PEFT does.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from release_lab import RANK

SEED = 5
RATE = 0.03


def train(base: Path, rows: list[str], steps: int, folder: Path) -> None:
    torch, peft = importlib.import_module("torch"), importlib.import_module("peft")
    transformers = importlib.import_module("transformers")
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    lora = peft.LoraConfig(
        r=RANK,
        lora_alpha=2 * RANK,
        target_modules=["q_proj", "v_proj"],
        task_type="CAUSAL_LM",
    )
    model = peft.get_peft_model(model, lora)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE)
    for step in range(steps):
        ids = tokenizer(rows[step % len(rows)], return_tensors="pt").input_ids
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(str(folder), safe_serialization=True)


if __name__ == "__main__":
    _, base_path, rows_path, steps_text, target = sys.argv
    train(Path(base_path), json.loads(Path(rows_path).read_text("utf-8")), int(steps_text), Path(target))
