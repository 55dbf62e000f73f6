"""What is known of an adapter besides its tensors: ``lora.json``, and Hugging Face's ``adapter_config.json``.

Both are read as data: nothing in them is evaluated, opened, fetched or imported. ``lora.json`` is ours, so a
member that is not known is refused. Hugging Face writes dozens of members, and more with every release; there

* members that say how to load the adapter are read,
* members that only tell how it was trained are passed over,
* members that change what the adapter means in a way that is not supported here, that name foreign code, or
  that are not known at all must be *unused*: null, false, or empty.

So a later release can add members without being refused, and none can take effect unseen. What was read can
be written as a ``lora.json`` that says the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.artifact_errors import ConfigRefusedError, quoted
from ticket_agent.protocol.errors import JsonError
from ticket_agent.protocol.json_strict import dumps, parse_object, sorted_members
from ticket_agent.protocol.text import has_control, trim

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MAX_ALPHA",
    "MAX_CONFIG_BYTES",
    "MAX_NAMES",
    "MAX_RANK",
    "MAX_TEXT_BYTES",
    "AdapterConfig",
    "is_module_name",
    "parse_hf_config",
    "parse_lora_json",
    "render_lora_json",
]

MAX_CONFIG_BYTES: Final = 64 * 1024
"""Of either file."""
MAX_RANK: Final = 4096
MAX_ALPHA: Final = 1_000_000
MAX_NAMES: Final = 4096
"""Entries of a list of modules or of a pattern."""
MAX_MODULE_BYTES: Final = 256
MAX_TEXT_BYTES: Final = 512
"""Of ``base_model`` and ``base_revision``, as UTF-8."""

MAX_MODULE_PARTS: Final = 32

_MODULE = re.compile(rf"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+){{0,{MAX_MODULE_PARTS - 1}}}")
_TASK = re.compile(r"[A-Z0-9_]{1,64}")
_HF_CLASS = re.compile(r"transformers(?:\.[A-Za-z0-9_]+)* [A-Za-z0-9_]+")

_INITS: Final = (True, False, "gaussian", "orthogonal", "eva")
"""Initialisations that leave the base model as it is. With the others (PiSSA, OLoRA, CorDA, LoftQ, ...) the
adapter fits only a base model that was changed with it."""

_TRAINING_ONLY: Final = frozenset(
    {
        "eva_config",
        "exclude_modules",
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "lora_dropout",
        "peft_version",
        "qalora_group_size",
        "runtime_config",
    }
)
"""Passed over. Which layers were chosen is seen from the tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """How to load an adapter; the same whichever file it was read from.

    Attributes:
        rank: 1..=4096; None when the file does not say.
        alpha: numerator of the scaling, above 0; None when the file does not say. A whole number is an int.
        target_modules: last parts of the adapted modules' names, sorted; None when the file does not say.
        base_model: what the adapter says its base model is. Text, also when it looks like a path or address.
        base_revision: likewise.
        task_type: Hugging Face's name for what the model is used for.
        use_rslora: alpha is divided by the root of the rank instead of the rank.
        use_dora: every adapted module also has a magnitude vector.
        lora_bias: every B has a bias.
        fan_in_fan_out: the base model's weights are stored transposed.
        rank_pattern: ranks of modules that differ, by the last parts of their names, sorted.
        alpha_pattern: likewise for alpha.
        modules_to_save: modules that the adapter brings whole, by the last parts of their names, sorted.
    """

    rank: int | None = None
    alpha: float | None = None
    target_modules: tuple[str, ...] | None = None
    base_model: str | None = None
    base_revision: str | None = None
    task_type: str | None = None
    use_rslora: bool = False
    use_dora: bool = False
    lora_bias: bool = False
    fan_in_fan_out: bool = False
    rank_pattern: tuple[tuple[str, int], ...] = ()
    alpha_pattern: tuple[tuple[str, float], ...] = ()
    modules_to_save: tuple[str, ...] = ()


def parse_lora_json(data: bytes, *, what: str = "lora.json") -> AdapterConfig:
    """Read a ``lora.json``; every member is optional, null is as good as absent.

    Raises:
        ConfigRefusedError: not one strict JSON object, a member that is not known, a value out of bounds.
    """
    document = _document(data, what)
    for name in document:
        if name not in _READERS:
            hint = (
                "; a Hugging Face configuration belongs into adapter_config.json" if name in _HF_NAMES else ""
            )
            raise ConfigRefusedError(f"{what}: unknown member {quoted(name)}{hint}")
    return _config({name: (name, value) for name, value in document.items()}, what)


def parse_hf_config(data: bytes, *, what: str = "adapter_config.json") -> AdapterConfig:
    """Read what Hugging Face's library wrote beside a LoRA adapter.

    Raises:
        ConfigRefusedError: not one strict JSON object, no LoRA, a value out of bounds, or a member that is in
            use and is not supported.
    """
    document = _document(data, what)
    if document.pop("peft_type", None) != "LORA":
        raise ConfigRefusedError(f"{what}: peft_type must be LORA; other methods are not supported")
    for name in ("r", "lora_alpha", "target_modules"):
        if document.get(name) is None:
            raise ConfigRefusedError(f"{what}: member {name} is required")
    members = {ours: (hf, document.pop(hf, None)) for hf, ours in _HF_NAMES.items()}
    for name, value in document.items():
        _check_other(name, value, what)
    return _config(members, what)


def render_lora_json(config: AdapterConfig, *, what: str = "lora.json") -> bytes:
    """Write a configuration in its one canonical form: compact, members sorted, defaults left out.

    Raises:
        ConfigRefusedError: the text would be longer than a ``lora.json`` may be.
    """
    members: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if value != field.default:
            members[field.name] = dict(value) if field.name in _PATTERNS else value
    data = dumps(sorted_members(members)) + b"\n"
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigRefusedError(f"{what} would take {len(data)} bytes; the limit is {MAX_CONFIG_BYTES}")
    return data


def is_module_name(name: str) -> bool:
    """Tell whether ``name`` is a module's name or the end of one.

    It has 1..=32 parts of letters, digits, ``_`` and ``-``, joined by dots; at most 256 characters.
    """
    return len(name) <= MAX_MODULE_BYTES and _MODULE.fullmatch(name) is not None


def _document(data: bytes, what: str) -> dict[str, Any]:
    try:
        return parse_object(data, what=what, max_bytes=MAX_CONFIG_BYTES)
    except JsonError as error:
        raise ConfigRefusedError(str(error)) from None


def _config(members: dict[str, tuple[str, object]], what: str) -> AdapterConfig:
    """Read members given as our name -> (the file's name for it, value)."""
    values = {
        ours: _READERS[ours](value, f"{what}: {shown}")
        for ours, (shown, value) in members.items()
        if value is not None
    }
    return AdapterConfig(**values)


def _check_other(name: str, value: object, what: str) -> None:
    if name in _TRAINING_ONLY or value is None or value is False or value in ([], {}, ""):
        return
    if name == "auto_mapping":
        _check_auto_mapping(value, what)
    elif name == "bias":
        if value != "none":
            raise ConfigRefusedError(
                f"{what}: bias must be none; biases of the base model are not taken over"
            )
    elif name == "init_lora_weights":
        if not any(value is known or (isinstance(known, str) and value == known) for known in _INITS):
            raise ConfigRefusedError(
                f"{what}: init_lora_weights {_shown(value)} may have changed the base model; "
                "convert the adapter to a plain LoRA when saving it"
            )
    elif (name, value) != ("megatron_core", "megatron.core"):
        raise ConfigRefusedError(f"{what}: member {quoted(name)} is in use and is not supported")


def _check_auto_mapping(value: object, what: str) -> None:
    """Let pass, unused, the note of which class of Hugging Face's own library the base model is.

    A loader that follows it imports the library and calls the class by name, so no other one may be named.
    """
    if isinstance(value, dict) and value.keys() == {"base_model_class", "parent_library"}:
        named = f"{value['parent_library']} {value['base_model_class']}"
        if _HF_CLASS.fullmatch(named):
            return
    raise ConfigRefusedError(
        f"{what}: auto_mapping names code outside of transformers; save the adapter with a task_type instead"
    )


def _shown(value: object) -> str:
    return quoted(value) if isinstance(value, str) else f"of type {type(value).__name__}"


def _rank(value: object, where: str) -> int:
    if type(value) is not int or not 1 <= value <= MAX_RANK:
        raise ConfigRefusedError(f"{where} must be an integer in 1..={MAX_RANK}")
    return value


def _alpha(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_ALPHA:
        raise ConfigRefusedError(f"{where} must be a number above 0 and at most {MAX_ALPHA}")
    return int(value) if value == int(value) else value


def _flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigRefusedError(f"{where} must be true or false")
    return value


def _text(value: object, where: str) -> str | None:
    if not isinstance(value, str) or has_control(value) or len(value.encode()) > MAX_TEXT_BYTES:
        raise ConfigRefusedError(
            f"{where} must be a string of at most {MAX_TEXT_BYTES} bytes without control characters"
        )
    return trim(value) or None


def _task(value: object, where: str) -> str:
    if not isinstance(value, str) or not _TASK.fullmatch(value):
        raise ConfigRefusedError(f"{where} must be 1..=64 of A-Z, 0-9 and _")
    return value


def _names(value: object, where: str) -> tuple[str, ...]:
    if isinstance(value, str):
        raise ConfigRefusedError(
            f"{where} is a pattern, which is not evaluated; write the list of module names"
        )
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_NAMES:
        raise ConfigRefusedError(f"{where} must be a list of 1..={MAX_NAMES} module names")
    return tuple(sorted({_name(item, where) for item in value}))


def _names_or_none(value: object, where: str) -> tuple[str, ...]:
    return () if value == [] else _names(value, where)


def _name(value: object, where: str) -> str:
    if not isinstance(value, str) or not is_module_name(value):
        shown = quoted(value) if isinstance(value, str) else "what is no string"
        raise ConfigRefusedError(
            f"{where} names {shown}; a module's name has letters, digits, _ - and dots only"
        )
    return value


def _pattern(value: object, where: str, number: Callable[[object, str], Any]) -> tuple[tuple[str, Any], ...]:
    if not isinstance(value, dict) or len(value) > MAX_NAMES:
        raise ConfigRefusedError(f"{where} must be an object of at most {MAX_NAMES} module names")
    return tuple(
        sorted((_name(name, where), number(item, f"{where}.{name}")) for name, item in value.items())
    )


_READERS: Final[dict[str, Callable[[object, str], Any]]] = {
    "rank": _rank,
    "alpha": _alpha,
    "target_modules": _names,
    "base_model": _text,
    "base_revision": _text,
    "task_type": _task,
    "use_rslora": _flag,
    "use_dora": _flag,
    "lora_bias": _flag,
    "fan_in_fan_out": _flag,
    "rank_pattern": lambda value, where: _pattern(value, where, _rank),
    "alpha_pattern": lambda value, where: _pattern(value, where, _alpha),
    "modules_to_save": _names_or_none,
}
"""Members of ``lora.json``; named as the fields of ``AdapterConfig``."""

_PATTERNS: Final = frozenset({"rank_pattern", "alpha_pattern"})

_HF_NAMES: Final[dict[str, str]] = {
    {
        "rank": "r",
        "alpha": "lora_alpha",
        "base_model": "base_model_name_or_path",
        "base_revision": "revision",
    }.get(ours, ours): ours
    for ours in _READERS
}
"""Hugging Face's name of each of them -> ours."""
