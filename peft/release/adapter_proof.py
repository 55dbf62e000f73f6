"""Which tensors of an adapter's file are in a model that this process has loaded, and switched on.

Loaders warn about tensors that found no place, or say nothing, and then serve the base model. So the model is
looked at itself, whatever has loaded it.
"""

from __future__ import annotations

import gc
import re
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["LoadedAdapter", "find_adapter", "plain_name"]

ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"

_PREFIX: Final = "base_model.model."
_ADAPTER = re.compile(r"\.(lora_[AB])\.([^.]+)\.weight$")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedAdapter:
    """How many tensors the file has, how many of them the model has, and how many more the model has."""

    tensors: int
    matched: int
    foreign: int

    @property
    def complete(self) -> bool:
        """The model has these tensors, all of them and no other ones."""
        return self.matched == self.tensors > 0 and self.foreign == 0


def plain_name(name: str) -> str:
    """The name of a tensor as files have it, without the wrapper's prefix and the adapter's name."""
    return _ADAPTER.sub(r".\1.weight", name.removeprefix(_PREFIX))


def find_adapter(directory: Path) -> LoadedAdapter | None:
    """Compare the adapter in ``directory`` with the model in this process; None: there is no model yet."""
    load_file = import_module("safetensors.torch").load_file
    models = list(_models())
    if not models:
        return None
    wanted = {plain_name(name): tensor for name, tensor in load_file(directory / ADAPTER_WEIGHTS).items()}
    found = dict(active for model in models for active in _active(model))
    matched = sum(name in found and _same(tensor, found[name]) for name, tensor in wanted.items())
    return LoadedAdapter(tensors=len(wanted), matched=matched, foreign=len(found.keys() - wanted.keys()))


def _models() -> Iterator[Any]:
    model_class = import_module("transformers").PreTrainedModel
    seen = [item for item in gc.get_objects() if issubclass(type(item), model_class)]
    inner = {id(part) for item in seen for name, part in item.named_modules() if name}
    return (item for item in seen if id(item) not in inner)


def _active(model: Any) -> Iterator[tuple[str, Any]]:
    """The adapter tensors that take part in what the model computes."""
    modules = dict(model.named_modules())
    for name, tensor in model.named_parameters():
        found = _ADAPTER.search(name)
        if found is None:
            continue
        layer, adapter = modules[name[: found.start()]], found[2]
        if adapter in layer.active_adapters and not layer.disable_adapters and layer.scaling[adapter] != 0:
            yield plain_name(name), tensor


def _same(wanted: Any, found: Any) -> bool:
    if wanted.shape != found.shape:
        return False
    return bool((wanted.to(found.dtype) == found.detach().cpu()).all())
