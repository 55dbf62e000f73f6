"""Whether the tensors of a file are one complete LoRA adapter, and the one that its configuration describes.

Every tensor must have a place in it. Names are those of Hugging Face's PEFT, with or without the name of the
adapter in them, and all with or all without ``base_model.model.`` in front:

* ``<module>.lora_A.weight`` [rank, in] and ``<module>.lora_B.weight`` [out, rank]; of a convolution
  [rank, in, k, ...] and [out, rank, 1, ...]; of an embedding ``lora_embedding_A`` and ``lora_embedding_B``;
* ``<module>.lora_B.bias`` [out] for each pair if the configuration has ``lora_bias``, otherwise none;
* ``<module>.lora_magnitude_vector`` of ``out`` elements likewise with ``use_dora``;
* all of a module named in ``modules_to_save``;
* ``<module>.base_layer.weight`` of an embedding or of the output head that is adapted: a copy of the base
  model's, which the library adds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.adapter_config import MAX_RANK, is_module_name
from ticket_agent.peft.artifact_errors import LoraRefusedError, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ticket_agent.peft.adapter_config import AdapterConfig
    from ticket_agent.peft.safetensors_header import SafetensorsHeader, Tensor

__all__ = ["FLOAT_DTYPES", "LoraSummary", "summarise"]

FLOAT_DTYPES: Final = ("F16", "BF16", "F32", "F64")
"""What LoRA's matrices may be of. The 8-bit floats need a scale that no adapter file has."""

_PREFIX: Final = "base_model.model."
"""Put before every name by the library; it is no part of the module's name."""
_SAVED_WITH_EMBEDDINGS: Final = ("embed_tokens", "lm_head")
_ADAPTER = re.compile(r"(?!weight$|bias$)[A-Za-z0-9_-]{1,64}")

_MIN_DIMENSIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSummary:
    """An adapter that was accepted.

    Attributes:
        rank: of the configuration, or the one that all pairs share.
        alpha: None when the configuration does not say.
        target_modules: of the configuration, or the last parts of the adapted modules' names; sorted.
        base_model: what the adapter says its base model is; text, never a place to look at.
        modules: adapted modules, each with its pair.
        tensors: all tensors of the file.
        dtype: of the pairs; more than one is joined with ``+``.
        parameters: elements of all tensors.
    """

    rank: int
    alpha: float | None
    target_modules: tuple[str, ...]
    base_model: str | None
    modules: int
    tensors: int
    dtype: str
    parameters: int


@dataclass(slots=True, kw_only=True)
class _Module:
    """The tensors of one adapted module, by their role."""

    name: str
    a: Tensor | None = None
    b: Tensor | None = None
    bias: Tensor | None = None
    magnitude: Tensor | None = None
    embedding_a: Tensor | None = None
    embedding_b: Tensor | None = None

    @property
    def is_embedding(self) -> bool:
        return self.embedding_a is not None or self.embedding_b is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    module: str
    a: Tensor
    b: Tensor
    bias: Tensor | None
    magnitude: Tensor | None
    embedding: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """A configuration made ready to be asked about every tensor, at a cost that its length has no part in."""

    config: AdapterConfig
    targets: frozenset[str] | None
    ranks: Mapping[str, int]
    saved: frozenset[str]

    @classmethod
    def of(cls, config: AdapterConfig) -> _Rules:
        return cls(
            config=config,
            targets=None if config.target_modules is None else frozenset(config.target_modules),
            ranks=dict(config.rank_pattern),
            saved=frozenset(config.modules_to_save),
        )


def summarise(
    header: SafetensorsHeader, config: AdapterConfig, *, what: str = "adapter.safetensors"
) -> LoraSummary:
    """Check an adapter's tensors against each other and against its configuration.

    Raises:
        LoraRefusedError: the first tensor that does not fit, by name, and why.
    """
    if len({tensor.name.startswith(_PREFIX) for tensor in header.tensors}) > 1:
        raise LoraRefusedError(f"{what}: some tensors' names begin with {_PREFIX} and some do not")
    modules, others = _sorted_out(header, what)
    if not modules:
        raise LoraRefusedError(f"{what} holds no LoRA tensors (names with .lora_A.weight and .lora_B.weight)")
    pairs = [_pair(module, what) for module in modules.values()]
    rules = _Rules.of(config)
    ranks = {_check_pair(pair, rules, what) for pair in pairs}
    if config.rank is None and len(ranks) > 1:
        raise LoraRefusedError(
            f"{what} has pairs of ranks {', '.join(map(str, sorted(ranks)))}; the configuration must say so"
        )
    for tensor in others:
        _check_other(tensor, modules, rules, what)
    last_parts = {pair.module.rpartition(".")[2] for pair in pairs}
    return LoraSummary(
        rank=ranks.pop() if config.rank is None else config.rank,
        alpha=config.alpha,
        target_modules=config.target_modules or tuple(sorted(last_parts)),
        base_model=config.base_model,
        modules=len(pairs),
        tensors=len(header.tensors),
        dtype="+".join(sorted({pair.a.dtype for pair in pairs})),
        parameters=sum(tensor.elements for tensor in header.tensors),
    )


_ROLES: Final = {
    ("lora_A", "weight"): "a",
    ("lora_B", "weight"): "b",
    ("lora_B", "bias"): "bias",
    ("lora_magnitude_vector", ""): "magnitude",
    ("lora_magnitude_vector", "weight"): "magnitude",
    ("lora_embedding_A", ""): "embedding_a",
    ("lora_embedding_B", ""): "embedding_b",
}
_KINDS: Final = frozenset(kind for kind, _ in _ROLES)


def _sorted_out(header: SafetensorsHeader, what: str) -> tuple[dict[str, _Module], list[Tensor]]:
    """Tell the tensors of adapted modules, by module, from all other ones."""
    modules: dict[str, _Module] = {}
    others: list[Tensor] = []
    adapters: set[str] = set()
    for tensor in header.tensors:
        name = tensor.name.removeprefix(_PREFIX)
        if not is_module_name(name):
            raise LoraRefusedError(f"{what}: {quoted(tensor.name)} is not a dotted module name")
        if tensor.dtype not in FLOAT_DTYPES:
            raise LoraRefusedError(
                f"{what}: {quoted(tensor.name)} is of {tensor.dtype}, not of {', '.join(FLOAT_DTYPES)}"
            )
        parts = name.split(".")
        at = next((i for i in range(len(parts) - 1, 0, -1) if parts[i] in _KINDS), None)
        if at is None:
            others.append(tensor)
            continue
        role, adapter = _role(parts[at], parts[at + 1 :], tensor, what)
        adapters.add(adapter)
        module = ".".join(parts[:at])
        entry = modules.setdefault(module, _Module(name=module))
        if getattr(entry, role) is not None:
            raise LoraRefusedError(
                f"{what}: {quoted(getattr(entry, role).name)} and {quoted(tensor.name)} are the same tensor"
            )
        setattr(entry, role, tensor)
    if len(adapters) > 1:
        raise LoraRefusedError(f"{what} holds tensors of more than one adapter; save each on its own")
    return modules, others


def _role(kind: str, rest: Sequence[str], tensor: Tensor, what: str) -> tuple[str, str]:
    """Return a tensor's role in its module, and the adapter's name if there is one in the tensor's."""
    adapter = rest[0] if rest and _ADAPTER.fullmatch(rest[0]) else ""
    role = _ROLES.get((kind, ".".join(rest[1:] if adapter else rest)))
    if role is None:
        raise LoraRefusedError(f"{what}: {quoted(tensor.name)} is no tensor that a LoRA adapter has")
    return role, adapter


def _pair(module: _Module, what: str) -> _Pair:
    embedding = module.is_embedding
    a, b = (module.embedding_a, module.embedding_b) if embedding else (module.a, module.b)
    if embedding and (module.a, module.b, module.bias) != (None, None, None):
        raise LoraRefusedError(
            f"{what}: {quoted(module.name)} is adapted both as an embedding and as a layer"
        )
    for side, tensor in (("A", a), ("B", b)):
        if tensor is None:
            kind = "lora_embedding_" if embedding else "lora_"
            raise LoraRefusedError(
                f"{what}: {quoted(module.name)} has no {kind}{side}; the pair is not complete"
            )
    assert a is not None and b is not None  # noqa: PT018 - held by the loop
    return _Pair(
        module=module.name, a=a, b=b, bias=module.bias, magnitude=module.magnitude, embedding=embedding
    )


def _check_pair(pair: _Pair, rules: _Rules, what: str) -> int:
    """Check one pair; return its rank."""
    where = f"{what}: {quoted(pair.module)}"
    if rules.targets is not None and rules.targets.isdisjoint(_ends(pair.module)):
        raise LoraRefusedError(f"{where} is adapted, but it is not among the configuration's target_modules")
    if pair.a.dtype != pair.b.dtype:
        raise LoraRefusedError(f"{where}: A is of {pair.a.dtype} and B of {pair.b.dtype}")
    rank = _check_shapes(pair, where)
    wanted = _rank_of(pair.module, rules, where)
    if wanted not in (None, rank):
        raise LoraRefusedError(f"{where} is of rank {rank}, the configuration says {wanted}")
    out = pair.b.shape[0]
    if (pair.bias is not None) != rules.config.lora_bias:
        raise LoraRefusedError(f"{where}: {_presence('a bias of B', pair.bias, 'lora_bias')}")
    if pair.bias is not None and pair.bias.shape != (out,):
        raise LoraRefusedError(f"{where}: the bias of B is {list(pair.bias.shape)}, not {[out]}")
    if (pair.magnitude is not None) != rules.config.use_dora:
        raise LoraRefusedError(f"{where}: {_presence('a magnitude vector', pair.magnitude, 'use_dora')}")
    if pair.magnitude is not None and pair.magnitude.elements != out:
        raise LoraRefusedError(
            f"{where}: the magnitude vector has {pair.magnitude.elements} elements, not {out}"
        )
    return rank


def _check_shapes(pair: _Pair, where: str) -> int:
    a, b = pair.a.shape, pair.b.shape
    dimensions = len(a)
    # Convolutions have one to three more dimensions, over which B is a point.
    fits = (
        len(b) == dimensions
        and _MIN_DIMENSIONS <= dimensions <= (_MIN_DIMENSIONS if pair.embedding else _MIN_DIMENSIONS + 3)
        and min(*a, *b) > 0
        and a[0] == b[1]
        and all(dimension == 1 for dimension in b[2:])
    )
    if not fits:
        raise LoraRefusedError(
            f"{where}: A {list(a)} and B {list(b)} are no pair of [rank, in, ...] and [out, rank, 1, ...]"
        )
    if a[0] > MAX_RANK:
        raise LoraRefusedError(f"{where} is of rank {a[0]}; the limit is {MAX_RANK}")
    return a[0]


def _rank_of(module: str, rules: _Rules, where: str) -> int | None:
    named = {rules.ranks[end] for end in _ends(module) if end in rules.ranks}
    if len(named) > 1:
        raise LoraRefusedError(f"{where}: rank_pattern gives it more than one rank")
    return named.pop() if named else rules.config.rank


def _presence(part: str, found: Tensor | None, member: str) -> str:
    if found is None:
        return f"{part} is missing; the configuration has {member}"
    return f"{part} is not expected; the configuration does not have {member}"


def _check_other(tensor: Tensor, modules: Mapping[str, _Module], rules: _Rules, what: str) -> None:
    name = tensor.name.removeprefix(_PREFIX)
    owner, _, rest = name.rpartition(".base_layer.")
    adapted = modules.get(owner) if rest == "weight" else None
    if adapted is not None and (
        adapted.is_embedding or adapted.name.rpartition(".")[2] in _SAVED_WITH_EMBEDDINGS
    ):
        return
    parts = name.split(".")
    if not any(rules.saved.intersection(_ends(".".join(parts[:count]))) for count in range(1, len(parts))):
        raise LoraRefusedError(
            f"{what}: {quoted(tensor.name)} is no part of a LoRA pair and of no module in modules_to_save"
        )


def _ends(module: str) -> Iterator[str]:
    """Yield all that may name a module in a configuration: its name, and what follows each dot in it.

    What an attention block wraps (``<block>.base_layer.<projection>``) also goes by the block's name.
    """
    for name in dict.fromkeys((module, module.partition(".base_layer.")[0])):
        rest = name
        while rest:
            yield rest
            rest = rest.partition(".")[2]
