"""A tiny random language model to try releases with: a Llama of two layers and a tokenizer of words.

It is made without any library and is the same each time, on every machine. It knows nothing, but an adapter
can be trained on it in seconds on a CPU, and what the adapter changes can be seen.
"""

from __future__ import annotations

import json
import random
import sys
from array import array
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.bundle import BASE_CONFIG, BASE_WEIGHTS
from ticket_agent.peft.release.geometry import LLAMA, Geometry
from ticket_agent.peft.release.native.base_model import base_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CHAT_TEMPLATE", "REVISION", "SOURCE", "TINY_GEOMETRY", "base_files", "safetensors_bytes"]

SOURCE: Final = "local/tiny-llama"
REVISION: Final = "seed-7"

CHAT_TEMPLATE: Final = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""The contents of all messages, one after the other: a server sees the same text as the evaluator."""

TINY_GEOMETRY: Final = Geometry(
    architecture=LLAMA,
    layers=2,
    hidden_size=32,
    intermediate_size=48,
    heads=4,
    kv_heads=2,
    head_dim=8,
    vocab_size=96,
    target_modules=("q_proj", "v_proj"),
)

_SEED: Final = 7
# Several times the usual scale: a random model of that one has no opinion, and adapters of it look alike.
_SCALE: Final = 0.14
_HALF: Final = 2**31
_CONTEXT: Final = 128
_SPECIAL: Final = ("<pad>", "<s>", "</s>", "<unk>")
_WORDS: Final = (
    "the a sea lamp ship wind tide harbour keeper light storm night morning boat rope sail bell rock shore"
    " wave salt gull north south east west old new high low calm wild bright dark long short first last"
    " turns rises falls waits calls sees keeps leaves finds holds and then while until over under near far"
    " is was row of us 0 1 2 3 4 5 6 7 8 9"
)


def base_files() -> dict[str, bytes]:
    """The files of the model by name."""
    return {
        BASE_CONFIG: _json(_config()),
        "generation_config.json": _json({"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}),
        BASE_WEIGHTS: _weights(),
        "tokenizer.json": _json(_tokenizer()),
        "tokenizer_config.json": _json(_tokenizer_config()),
    }


def _config() -> dict[str, Any]:
    size = TINY_GEOMETRY
    return {
        "architectures": [size.architecture],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": size.head_dim,
        "hidden_act": "silu",
        "hidden_size": size.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": size.intermediate_size,
        "max_position_embeddings": _CONTEXT,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": size.heads,
        "num_hidden_layers": size.layers,
        "num_key_value_heads": size.kv_heads,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": size.vocab_size,
    }


def _weights() -> bytes:
    draw = random.Random(_SEED)  # noqa: S311 - weights, not secrets
    tensors = {}
    for name, shape in base_tensors(TINY_GEOMETRY).items():
        if len(shape) == 1:
            numbers = array("f", [1.0]) * shape[0]
        else:
            drawn = array("I", draw.randbytes(4 * shape[0] * shape[1]))
            if sys.byteorder == "big":
                drawn.byteswap()
            numbers = array("f", [(number - _HALF) / _HALF * _SCALE for number in drawn])
        if sys.byteorder == "big":
            numbers.byteswap()
        tensors[name] = (shape, numbers.tobytes())
    return safetensors_bytes(tensors)


def safetensors_bytes(tensors: Mapping[str, tuple[tuple[int, ...], bytes]]) -> bytes:
    """A safetensors file of float32 tensors: by name, each with its shape and its little-endian bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(data for _, data in tensors.values())


def _tokenizer() -> dict[str, Any]:
    words = (*_SPECIAL, *_WORDS.split())
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": content, **special} for number, content in enumerate(_SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words)},
            "unk_token": "<unk>",
        },
    }


def _tokenizer_config() -> dict[str, Any]:
    pad, begin, end, unknown = _SPECIAL
    return {
        "bos_token": begin,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": end,
        "model_max_length": _CONTEXT,
        "pad_token": pad,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": unknown,
    }


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2).encode("ascii") + b"\n"
