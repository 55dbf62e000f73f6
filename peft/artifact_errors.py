"""Why the content of an adapter is not accepted: one printable line each, beginning with the file's name."""

from __future__ import annotations

from ticket_agent.peft.errors import ArtifactRefusedError

__all__ = [
    "ArtifactRefusedError",
    "ConfigRefusedError",
    "HeaderRefusedError",
    "LayoutRefusedError",
    "LoraRefusedError",
    "quoted",
]

MAX_QUOTED = 120
"""Longest part of an untrusted name that is shown, in characters."""


class HeaderRefusedError(ArtifactRefusedError):
    """Not a safetensors file, or one that readers could understand in different ways."""

    code = "peft-safetensors"


class LoraRefusedError(ArtifactRefusedError):
    """The tensors are no complete LoRA adapter, or not the one that the configuration describes."""

    code = "peft-lora"


class ConfigRefusedError(ArtifactRefusedError):
    """``lora.json`` or ``adapter_config.json`` cannot be read, or asks for what is not supported."""

    code = "peft-config"


class LayoutRefusedError(ArtifactRefusedError):
    """The directory does not hold exactly one adapter in one of the two layouts."""

    code = "peft-layout"


def quoted(name: str) -> str:
    """Return an untrusted name in quotes, cut where it is too long for an error line."""
    return f'"{name}"' if len(name) <= MAX_QUOTED else f'"{name[:MAX_QUOTED]}…"'
