"""Which files make an adapter directory, told from the names in it; nothing is opened here.

Two layouts are known: ours, which is also the published client's, and the one of Hugging Face's PEFT. A file
that has no place in its layout is refused and not passed over: what an operator believes to be imported and
what is imported must be the same, and nobody should be led to load a pickle that lies beside an adapter.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.artifact_errors import LayoutRefusedError, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ADAPTER_FILE",
    "HF_ADAPTER_FILE",
    "HF_CONFIG_FILE",
    "LORA_FILE",
    "METRICS_FILE",
    "Layout",
    "is_pickle",
    "recognise",
]

ADAPTER_FILE: Final = "adapter.safetensors"
LORA_FILE: Final = "lora.json"
METRICS_FILE: Final = "metrics.json"
"""Optional, in either layout."""
HF_ADAPTER_FILE: Final = "adapter_model.safetensors"
HF_CONFIG_FILE: Final = "adapter_config.json"

_COMPANIONS: Final = frozenset(
    {
        ".gitattributes",
        "README.md",
        "added_tokens.json",
        "chat_template.jinja",
        "merges.txt",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
    }
)
"""What Hugging Face's trainers save beside an adapter. None of it is read or imported."""

_PICKLES: Final = (
    ".bin",
    ".ckpt",
    ".dill",
    ".joblib",
    ".npy",
    ".npz",
    ".pickle",
    ".pkl",
    ".pt",
    ".pth",
    ".pyc",
)
_RESERVED: Final = ".cohesix-"
"""Locks and unfinished work of tools that share the directory."""


class Layout(StrEnum):
    """Whose names the files of an adapter have."""

    NATIVE = "native"
    HUGGING_FACE = "hugging-face"

    @property
    def adapter(self) -> str:
        """Name of the tensors' file."""
        return ADAPTER_FILE if self is Layout.NATIVE else HF_ADAPTER_FILE

    @property
    def config(self) -> str:
        """Name of the configuration's file."""
        return LORA_FILE if self is Layout.NATIVE else HF_CONFIG_FILE


def is_pickle(name: str) -> bool:
    """Tell whether a file of this name is usually loaded by running what it contains."""
    return name.lower().endswith(_PICKLES)


def recognise(names: Iterable[str], *, what: str) -> Layout:
    """Tell an adapter directory's layout from all names in it.

    Args:
        names: every entry, as a listing returns it (undecodable bytes as surrogate escapes).
        what: the directory in error lines.

    Raises:
        LayoutRefusedError: a pickle, a file without a place, a missing file, or both layouts at once.
    """
    found = {name for name in names if not name.startswith(_RESERVED)}
    for name in sorted(found):
        if is_pickle(name):
            raise LayoutRefusedError(
                f"{what} holds {quoted(name)}, which may run code when loaded; remove it"
            )
    natives, foreign = found & {ADAPTER_FILE, LORA_FILE}, found & {HF_ADAPTER_FILE, HF_CONFIG_FILE}
    if natives and foreign:
        raise LayoutRefusedError(
            f"{what} holds both {min(natives)} and {min(foreign)}; keep the files of one layout"
        )
    layout = Layout.HUGGING_FACE if foreign else Layout.NATIVE
    for name in (layout.adapter, layout.config):
        if name not in found:
            raise LayoutRefusedError(f"{what} has no {name}")
    if extra := found - _COMPANIONS - {layout.adapter, layout.config, METRICS_FILE}:
        raise LayoutRefusedError(
            f"{what} holds {quoted(min(extra))}, which is no part of an adapter; remove it"
        )
    return layout
