"""The shape of a base model, and from it the exact tensors that an adapter of it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.document_error import DocumentError, reading
from ticket_agent.peft.release.rules import array, choice, integer, refuse
from ticket_agent.protocol.json_strict import parse_object

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Geometry", "adapter_tensors", "check_base_config", "geometry_of"]

LLAMA: Final = "LlamaForCausalLM"
MAX_CONFIG_BYTES: Final = 64 * 1024

_ATTENTION: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP: Final = ("gate_proj", "up_proj", "down_proj")
_FOREIGN: Final = ("auto_map", "quantization_config")
"""Members of a base model's configuration that name code, or that change what its weights mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """A decoder's sizes, as the base model's ``config.json`` has to say them.

    Attributes:
        architecture: the model's class; ``LlamaForCausalLM``.
        layers: 1..=256.
        hidden_size: width of the residual stream.
        intermediate_size: width of the feed-forward part.
        heads: of the queries.
        kv_heads: of keys and values; a divisor of ``heads``.
        head_dim: width of one head.
        vocab_size: entries of the vocabulary.
        target_modules: the projections that an adapter changes, sorted, each once.

    Raises:
        DocumentError: sizes that no such model has.
    """

    architecture: str
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    target_modules: tuple[str, ...]

    def __post_init__(self) -> None:
        choice(self.architecture, "architecture", (LLAMA,))
        integer(self.layers, "layers", 1, 256)
        for name in ("hidden_size", "intermediate_size", "head_dim"):
            integer(getattr(self, name), name, 1, 1 << 17)
        integer(self.heads, "heads", 1, 1024)
        integer(self.kv_heads, "kv_heads", 1, self.heads)
        integer(self.vocab_size, "vocab_size", 1, 1 << 24)
        if self.heads % self.kv_heads:
            refuse("kv_heads", f"a divisor of the {self.heads} heads")
        modules = array(self.target_modules, "target_modules", 1, len(_ATTENTION + _MLP))
        for name in modules:
            choice(name, "each of target_modules", (*_ATTENTION, *_MLP))
        if list(modules) != sorted(set(modules)):
            refuse("target_modules", "sorted, each module once")

    def projection(self, module: str) -> tuple[str, int, int]:
        """The block that a projection is part of, and its numbers of inputs and outputs."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q_proj": ("self_attn", self.hidden_size, queries),
            "k_proj": ("self_attn", self.hidden_size, keys),
            "v_proj": ("self_attn", self.hidden_size, keys),
            "o_proj": ("self_attn", queries, self.hidden_size),
            "gate_proj": ("mlp", self.hidden_size, self.intermediate_size),
            "up_proj": ("mlp", self.hidden_size, self.intermediate_size),
            "down_proj": ("mlp", self.intermediate_size, self.hidden_size),
        }[module]


def adapter_tensors(geometry: Geometry, rank: int) -> dict[str, tuple[int, int]]:
    """Every tensor that an adapter of this rank has, by its name in the file, with its shape; no others."""
    found: dict[str, tuple[int, int]] = {}
    for layer in range(geometry.layers):
        for module in geometry.target_modules:
            block, inputs, outputs = geometry.projection(module)
            prefix = f"base_model.model.model.layers.{layer}.{block}.{module}"
            found[f"{prefix}.lora_A.weight"] = (rank, inputs)
            found[f"{prefix}.lora_B.weight"] = (outputs, rank)
    return found


def check_base_config(data: bytes, geometry: Geometry) -> None:
    """Compare a base model's ``config.json`` with a geometry.

    Raises:
        DocumentError: it says another size, nothing about one, or names foreign code or a quantisation. The
            line has both values.
    """
    with reading("the base model's config.json"):
        config = parse_object(data, what="the file", max_bytes=MAX_CONFIG_BYTES)
        for name in _FOREIGN:
            if config.get(name) is not None:
                raise DocumentError(f"has {name}, which is not supported", rule="base-config")
        wanted = _wanted(geometry)
        for name, value in wanted.items():
            found = _found(config, name)
            if type(found) is not type(value) or found != value:
                raise DocumentError(
                    f"{name} is {_short(found)}; the profile's geometry says {_short(value)}",
                    rule="base-config",
                )


def geometry_of(data: bytes, target_modules: tuple[str, ...]) -> Geometry:
    """The geometry that a base model's ``config.json`` says.

    Raises:
        DocumentError: it does not say all of it, or it is not that of a model that can be released.
    """
    with reading("the base model's config.json"):
        config = parse_object(data, what="the file", max_bytes=MAX_CONFIG_BYTES)
        architectures = config.get("architectures")
        if not isinstance(architectures, list) or len(architectures) != 1:
            raise DocumentError("must name exactly one class in architectures", rule="base-config")
        found = Geometry(
            architecture=architectures[0],
            target_modules=target_modules,
            **{name: _found(config, member) for name, member in _SIZES.items()},  # type: ignore[arg-type]
        )
    check_base_config(data, found)
    return found


_SIZES: Final = {
    "layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
}
"""Sizes of a geometry, and what the configuration calls them."""


def _wanted(geometry: Geometry) -> dict[str, Any]:
    sizes = {member: getattr(geometry, name) for name, member in _SIZES.items()}
    return {"architectures": [geometry.architecture], **sizes}


def _found(config: Mapping[str, Any], name: str) -> object:
    """A member's value, or what transformers takes when the file does not have it."""
    value = config.get(name)
    heads = config.get("num_attention_heads")
    if value is None and name == "num_key_value_heads":
        return heads
    width = config.get("hidden_size")
    if value is None and name == "head_dim" and type(heads) is int and type(width) is int and heads > 0:
        return width // heads
    return value


def _short(value: object) -> str:
    return repr(value)[:64]
