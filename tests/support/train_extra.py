"""Tests that need the extra ``train`` carry that marker; without it ``tests/conftest.py`` skips them."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def extra(name: str) -> list[str]:
    """The packages that an extra names."""
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    return [re.split(r"[^\w.-]", wanted, maxsplit=1)[0] for wanted in extras[name]]


@cache
def why_not() -> str | None:
    """The packages of the extra that are not installed, as a reason to skip; None if all are."""
    gone = missing(extra("train"))
    return f"needs the extra train; not installed: {', '.join(gone)}" if gone else None


def missing(packages: Sequence[str]) -> list[str]:
    """Which of them are not installed; the checkout's folder ``peft`` does not count as one."""
    found = []
    for package in packages:
        try:
            version(package)
        except PackageNotFoundError:
            found.append(package)
    return found
