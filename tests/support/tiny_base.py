"""A tiny random Llama with a tokenizer of words; needs the extra ``train``, and no network.

    python tests/support/tiny_base.py FOLDER

makes the files of a base model in ``FOLDER``. The same ones each time.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

LAYERS, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 2, 32, 48, 4, 2, 8
_TEXT = (
    "the a sea lamp ship wind tide harbour keeper light storm night morning boat rope sail bell rock shore"
    " wave salt gull north south east west old new high low calm wild bright dark long short first last"
    " turns rises falls waits calls sees keeps leaves finds holds and then while until over under near far"
    " is was row of us"
)
WORDS = tuple(_TEXT.split())
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
VOCABULARY = (*SPECIAL, *WORDS, *(str(digit) for digit in range(10)))
VOCABULARY_SIZE = 96
SEED = 7


def make(folder: Path) -> None:
    """Write model, configuration and tokenizer."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    tokenizers = importlib.import_module("tokenizers")
    words = {word: number for number, word in enumerate(VOCABULARY)}
    fast = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    fast.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=fast,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )
    wrapped.save_pretrained(str(folder))
    torch.manual_seed(SEED)
    config = transformers.LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        vocab_size=VOCABULARY_SIZE,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = transformers.LlamaForCausalLM(config)
    # A random model of the usual scale has no opinion at all; with this one, adapters can be told apart.
    for parameter in model.parameters():
        parameter.data.mul_(4.0) if parameter.dim() > 1 else None
    model.save_pretrained(str(folder), safe_serialization=True)


def rows(count: int, start: int) -> list[str]:
    """Sentences of known words, all different, of a kind that can be learnt."""
    found = []
    for number in range(start, start + count):
        digits = " ".join(str(number).zfill(3))
        found.append(f"the old keeper of the lamp sees row {digits} and then the ship turns north near us")
    return found


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    make(target)
    print(json.dumps(sorted(path.name for path in target.iterdir())))
