"""Adapters with something wrong in them, made from a good one."""

from __future__ import annotations

import importlib
import json
import shutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
Tensors = dict[str, Any]


def edited(
    good: Path,
    to: Path,
    *,
    tensors: Callable[[Tensors], Tensors] | None = None,
    config: dict[str, Any] | None = None,
    raw: Callable[[bytes], bytes] | None = None,
) -> Path:
    """Copy an adapter and change its tensors, members of its configuration, or the bytes of its weights."""
    shutil.copytree(good, to)
    if tensors is not None:
        change_tensors(to / WEIGHTS, tensors)
    if config is not None:
        members = json.loads((to / CONFIG).read_bytes()) | config
        (to / CONFIG).write_text(json.dumps(members))
    if raw is not None:
        (to / WEIGHTS).write_bytes(raw((to / WEIGHTS).read_bytes()))
    return to


def change_tensors(path: Path, change: Callable[[Tensors], Tensors]) -> None:
    """Change the tensors of a file."""
    library = importlib.import_module("safetensors.numpy")
    library.save_file(change(library.load_file(str(path))), str(path))


def scaled(factor: float, part: str = "lora_B") -> Callable[[Tensors], Tensors]:
    return lambda tensors: {
        name: (value * factor).astype(value.dtype) if part in name else value
        for name, value in tensors.items()
    }


def without(part: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: value for name, value in tensors.items() if part not in name}


def renamed(old: str, new: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name.replace(old, new): value for name, value in tensors.items()}


def with_zeros(name: str, *shape: int) -> Callable[[Tensors], Tensors]:
    def change(tensors: Tensors) -> Tensors:
        return tensors | {name: importlib.import_module("numpy").zeros(shape, dtype="float32")}

    return change


def with_number(part: str, number: float) -> Callable[[Tensors], Tensors]:
    def change(tensors: Tensors) -> Tensors:
        name = next(name for name in tensors if part in name)
        tensors[name] = tensors[name].copy()
        tensors[name].flat[0] = number
        return tensors

    return change


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 540000000\n"
