"""The heavy libraries, imported when they are used; they are untyped for us, and may not be installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["library"]


def library(name: str) -> Any:
    """Import a library.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    return import_module(name)
