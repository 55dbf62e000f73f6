"""The variables that every process of a release gets: libraries stay offline, and compute the same each time.

The standard library is all that this module needs: the libraries read most of these once, on their import.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FLAGS", "OFFLINE"]

OFFLINE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_EVALUATE_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
        "DO_NOT_TRACK": "1",
        "NO_PROXY": "*",
        "no_proxy": "*",
    }
)
"""No network, no telemetry, no token, no proxy."""

FLAGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **OFFLINE,
        "TOKENIZERS_PARALLELISM": "false",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
)
"""All of them."""
