"""Tests that need the extra ``train`` carry that marker; without it ``tests/conftest.py`` skips them."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def extra(name: str) -> list[str]:
    """The packages that an extra names."""
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    return [re.split(r"[^\w.-]", wanted, maxsplit=1)[0] for wanted in extras[name]]


@cache
def why_not() -> str | None:
    """The packages of the extra that are not installed, as a reason to skip; None if all are.

    A folder on the path that is named like a package, as ``peft`` in the checkout's root, is not one.
    """
    missing = []
    for package in extra("train"):
        try:
            version(package)
        except PackageNotFoundError:
            missing.append(package)
    return f"needs the extra train; not installed: {', '.join(missing)}" if missing else None
