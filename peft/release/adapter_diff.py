"""What an adapter should be for a profile, and what it is: all differences at once, for people.

The scan of an adapter refuses at the first thing that is wrong. This says the rest of it.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.adapter_config import MAX_CONFIG_BYTES
from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.names import shown
from ticket_agent.peft.release.bundle import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from ticket_agent.peft.release.geometry import adapter_tensors
from ticket_agent.peft.release.native.weights import weights_header
from ticket_agent.protocol.errors import JsonError
from ticket_agent.protocol.json_strict import parse_object

if TYPE_CHECKING:
    from ticket_agent.peft.release.native.candidate import AdapterFiles
    from ticket_agent.peft.release.profile import Profile

__all__ = ["MAX_DIFFERENCES", "Difference", "differences"]

MAX_DIFFERENCES: Final = 32

_ABSENT: Final = "-"
_LAYER: Final = re.compile(r"\.layers\.[0-9]+\.")
_OFF: Final = ("use_dora", "use_rslora", "lora_bias", "fan_in_fan_out")
_UNSET: Final = (
    "alpha_pattern",
    "auto_mapping",
    "exclude_modules",
    "layers_pattern",
    "layers_to_transform",
    "modules_to_save",
    "rank_pattern",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference; layers that differ alike are one.

    Attributes:
        what: member of the configuration, or name of tensors with ``*`` for the layer.
        expected: by the profile; ``-``: nothing of that name.
        found: in the adapter, likewise.
        count: of how many tensors.
    """

    what: str
    expected: str
    found: str
    count: int = 1


def differences(files: AdapterFiles, profile: Profile) -> tuple[Difference, ...]:
    """All differences, at most ``MAX_DIFFERENCES``. A file that cannot be read at all has none."""
    found = [*_config(files, profile), *_tensors(files, profile)]
    return tuple(found[:MAX_DIFFERENCES])


def _config(files: AdapterFiles, profile: Profile) -> list[Difference]:
    try:
        data = files.read_file(ADAPTER_CONFIG, max_bytes=MAX_CONFIG_BYTES)
        config = parse_object(data, what=ADAPTER_CONFIG, max_bytes=MAX_CONFIG_BYTES)
    except (PeftError, JsonError):
        return []
    base, rank = profile.stack.base, profile.settings.rank
    modules = config.get("target_modules")
    if isinstance(modules, list):
        config["target_modules"] = sorted(map(str, modules))
    wanted: dict[str, Any] = {
        "base_model_name_or_path": base.source,
        "revision": base.revision,
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0,
        "bias": "none",
        "target_modules": list(profile.stack.geometry.target_modules),
    }
    told = [
        Difference(what=name, expected=_text(value), found=_text(config.get(name)))
        for name, value in wanted.items()
        if config.get(name) != value and not (name == "revision" and config.get(name) is None)
    ]
    told += [
        Difference(what=name, expected="not set", found=_text(config[name]))
        for name in (*_OFF, *_UNSET)
        if config.get(name) not in (None, False, "", [], {})
    ]
    return told


def _tensors(files: AdapterFiles, profile: Profile) -> list[Difference]:
    try:
        with files.open_file(ADAPTER_WEIGHTS, max_bytes=profile.stack.limits.adapter_bytes) as opened:
            header = weights_header(opened, ADAPTER_WEIGHTS)
    except PeftError:
        return []
    wanted = {
        name: str(list(shape))
        for name, shape in adapter_tensors(profile.stack.geometry, profile.settings.rank).items()
    }
    found = {tensor.name: str(list(tensor.shape)) for tensor in header.tensors}
    counts: Counter[tuple[str, str, str]] = Counter()
    for name in {**wanted, **found}:
        expected, has = wanted.get(name, _ABSENT), found.get(name, _ABSENT)
        if expected != has:
            counts[(_LAYER.sub(".layers.*.", shown(name, 160)), expected, has)] += 1
    return [
        Difference(what=what, expected=expected, found=has, count=count)
        for (what, expected, has), count in counts.items()
    ]


def _text(value: object) -> str:
    return _ABSENT if value is None else shown(str(value), 64)
