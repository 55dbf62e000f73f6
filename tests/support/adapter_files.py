"""Safetensors files as bytes, right and wrong ones, and readers of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ticket_agent.peft.adapter_config import AdapterConfig
from ticket_agent.peft.safetensors_header import DTYPE_BYTES, SafetensorsHeader, read_header

if TYPE_CHECKING:
    from collections.abc import Mapping

Shapes = dict[str, tuple[str, tuple[int, ...]]]
"""Name -> dtype and shape, in the order of the data."""

PREFIX = "base_model.model.model.layers.0.self_attn."
RANK, IN, OUT = 4, 6, 10


def entries(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, Any]:
    """Return the members of a header for tensors that follow each other."""
    members: dict[str, Any] = {}
    begin = 0
    for name, (dtype, shape) in tensors.items():
        size = DTYPE_BYTES[dtype]
        for dimension in shape:
            size *= dimension
        members[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, begin + size]}
        begin += size
    return members


def file_of(header: bytes | Mapping[str, Any], data: int | bytes) -> bytes:
    """Return a file with this header, given as text or as members, and so many bytes of data."""
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text + (bytes(data) if isinstance(data, int) else data)


def file_with(tensors: Mapping[str, tuple[str, tuple[int, ...]]], **metadata: str) -> bytes:
    """Return a right file with these tensors."""
    members = entries(tensors)
    size = max((member["data_offsets"][1] for member in members.values()), default=0)
    return file_of({"__metadata__": metadata} | members if metadata else members, size)


def read(data: bytes, *, size: int | None = None) -> SafetensorsHeader:
    """Read the header of a file given as bytes."""
    return read_header(
        lambda offset, count: data[offset : offset + count], len(data) if size is None else size
    )


def pair(module: str = f"{PREFIX}q_proj", *, rank: int = RANK, dtype: str = "F32") -> Shapes:
    """The two matrices of one adapted linear layer."""
    return {
        f"{module}.lora_A.weight": (dtype, (rank, IN)),
        f"{module}.lora_B.weight": (dtype, (OUT, rank)),
    }


PLAIN = AdapterConfig(rank=RANK, alpha=8, target_modules=("q_proj", "v_proj"))
